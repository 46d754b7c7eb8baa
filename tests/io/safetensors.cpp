// Tests of the safetensors reader and writer: what goes in comes out, the reference's bytes are made again,
// and each hostile file is refused for its own reason.
#include "pom/io/safetensors.h"

#include <csignal>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>

#if defined(__has_feature)
#define POM_HAS_FEATURE(feature) __has_feature(feature)
#else
#define POM_HAS_FEATURE(feature) 0
#endif

namespace pom::io::safetensors {

// So that a failed comparison prints something.
void PrintTo(Dtype dtype, std::ostream* out) {
  *out << name(dtype);
}

namespace {

namespace fs = std::filesystem;
using Kind = SafetensorsError::Kind;

const fs::path tests = POM_TESTS_FOLDER;

std::string file_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The bytes of a file with this header.
std::string framed(const std::string& header, const std::string& data = "") {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return length + header + data;
}

// A tensor that owns what a TensorView shows.
struct Sample {
  std::string name;
  Dtype dtype;
  std::vector<std::int64_t> shape;
  std::string data;

  Sample(std::string name, Dtype dtype, std::vector<std::int64_t> shape)
      : name(std::move(name)), dtype(dtype), shape(std::move(shape)) {
    data.resize(bit_count(this->dtype, this->shape).value() / 8);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + this->name.size());
  }
  TensorView view() const { return {name, dtype, shape, bytes_of(data)}; }
};

std::vector<TensorView> views(const std::vector<Sample>& samples) {
  std::vector<TensorView> result;
  for (const Sample& sample : samples) result.push_back(sample.view());
  return result;
}

void expect_equal(const TensorView& got, const TensorView& expected) {
  EXPECT_EQ(got.name, expected.name);
  EXPECT_EQ(got.dtype, expected.dtype) << got.name;
  EXPECT_EQ(std::vector(got.shape.begin(), got.shape.end()),
            std::vector(expected.shape.begin(), expected.shape.end()))
      << got.name;
  EXPECT_EQ(text_of(got.data), text_of(expected.data)) << got.name;
}

// The error the action must throw.
template <class Action>
SafetensorsError error_of(Action action) {
  try {
    action();
  } catch (const SafetensorsError& error) {
    return error;
  }
  ADD_FAILURE() << "no SafetensorsError was thrown";
  return SafetensorsError(Kind::FileTooSmall, "");
}

template <class Action>
void expect_kind(Kind kind, Action action) {
  const SafetensorsError error = error_of(action);
  EXPECT_EQ(name(error.kind()), name(kind)) << error.what();
}

void expect_parts(const std::string& message, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
}

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-safetensors-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  fs::path put(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name, std::ios::binary) << text;
    return folder / name;
  }

  fs::path folder;
};

std::vector<Dtype> all_dtypes() {
  std::vector<Dtype> all;
  for (std::size_t i = 0; i < dtype_count; ++i) all.push_back(static_cast<Dtype>(i));
  return all;
}

std::vector<Sample> all_samples() {
  std::vector<Sample> samples;
  for (const Dtype dtype : all_dtypes())
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{4, 3}, {8}, {0}, {2, 0, 3}, {1, 1, 1, 4}})
      samples.emplace_back(std::string(name(dtype)) + "." + std::to_string(samples.size()), dtype, shape);
  samples.emplace_back("scalar", Dtype::F32, std::vector<std::int64_t>{});
  return samples;
}

// ---- dtypes

TEST(SafetensorsDtype, NamesAndSizes) {
  const std::map<std::string_view, unsigned> expected = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"U8", 8},   {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},     {"I16", 16},        {"U16", 16}, {"F16", 16},
      {"BF16", 16},   {"I32", 32},    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"U32", 32}, {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},        {"U64", 64}};
  ASSERT_EQ(expected.size(), dtype_count);
  for (const Dtype dtype : all_dtypes()) {
    EXPECT_EQ(expected.at(name(dtype)), bits(dtype));
    EXPECT_EQ(dtype_named(name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_named("f32"), std::nullopt);
  EXPECT_EQ(dtype_named(""), std::nullopt);
}

TEST(SafetensorsDtype, BitCount) {
  const auto count = [](Dtype dtype, std::vector<std::int64_t> shape) { return bit_count(dtype, shape); };
  EXPECT_EQ(count(Dtype::F32, {}), 32u);
  EXPECT_EQ(count(Dtype::F4, {3, 5}), 60u);
  EXPECT_EQ(count(Dtype::F32, {0, 7}), 0u);
  EXPECT_EQ(count(Dtype::U8, {-1}), std::nullopt);
  EXPECT_EQ(count(Dtype::U8, {0, -1}), std::nullopt);
  EXPECT_EQ(count(Dtype::U8, {std::int64_t{1} << 61}), std::nullopt);
  EXPECT_EQ(count(Dtype::U8, {(std::int64_t{1} << 61) - 1}), ~std::uint64_t{0} - 7);
  EXPECT_EQ(count(Dtype::U8, {std::int64_t{1} << 40, std::int64_t{1} << 40, 0}), std::nullopt);
  EXPECT_EQ(count(Dtype::U8, {0, std::int64_t{1} << 40, std::int64_t{1} << 40}), 0u);
}

// ---- round trips

TEST_F(SafetensorsTest, RoundTripsEveryDtypeAndShape) {
  const std::vector<Sample> samples = all_samples();
  const Metadata metadata = {{"format", "pt"}, {"b", "2"}, {"a", "1"}};
  write(folder / "a.safetensors", views(samples), metadata);
  const File file = File::open(folder / "a.safetensors");
  ASSERT_EQ(file.tensors().size(), samples.size());
  for (const Sample& sample : samples) expect_equal(file.at(sample.name), sample.view());
  EXPECT_EQ(file.header().metadata(), metadata);
  EXPECT_EQ(*file.header().find_metadata("b"), "2");
  EXPECT_EQ(file.header().find_metadata("c"), nullptr);
}

TEST_F(SafetensorsTest, MemoryAndFileAreTheSameBytes) {
  const std::vector<Sample> samples = all_samples();
  const Metadata metadata = {{"k", "v"}};
  write(folder / "a", views(samples), metadata);
  EXPECT_EQ(file_text(folder / "a"), text_of(serialize(views(samples), metadata)));
}

TEST_F(SafetensorsTest, NothingAtAll) {
  const File file = File::parse(serialize({}));
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.header().metadata(), std::nullopt);
  EXPECT_EQ(file.header().data_bytes(), 0u);
  EXPECT_EQ(text_of(serialize({})), framed("{}      "));
  EXPECT_EQ(text_of(serialize({}, Metadata{})), framed("{\"__metadata__\":{}}     "));
  EXPECT_EQ(File::parse(serialize({}, Metadata{})).header().metadata(), Metadata{});
}

TEST_F(SafetensorsTest, NamesInUnicodeAndEscapes) {
  using namespace std::string_literals;
  std::vector<Sample> samples;
  for (const std::string& text :
       {""s, "ß"s, "日本語"s, "🙂"s, "a\"b\\c/d"s, "\b\t\n\f\r"s, "\0\x01\x1f\x7f"s, "a.b"s})
    samples.emplace_back(text, Dtype::I16, std::vector<std::int64_t>{3});
  const File file = File::parse(serialize(views(samples)));
  ASSERT_EQ(file.tensors().size(), samples.size());
  for (const Sample& sample : samples) expect_equal(file.at(sample.name), sample.view());
}

TEST_F(SafetensorsTest, WritesEscapesAsTheReferenceDoes) {
  using namespace std::string_literals;
  const Metadata metadata = {{"\"\\/\b\t\n\v\f\r\0\x1f\x7fß"s, ""}};
  const std::string json = R"({"__metadata__":{"\"\\/\b\t\n\u000b\f\r\u0000\u001f)"
                           "\x7fß\":\"\"}}";
  EXPECT_EQ(text_of(serialize({}, metadata)).substr(8, json.size()), json);
}

TEST_F(SafetensorsTest, ReadsEscapesOfOtherWriters) {
  const std::string header =
      R"( { "\u0061\ud83d\uDE42\/\"\\\b\f\n\r\t\u00df\u20AC\u0000" : { "data_offsets" : [ 0 , 1 ] ,)"
      "\r\n\t\"shape\" : [ ] , \"dtype\" : \"\\u0055\\u0038\" } } \t\r\n";
  const File file = File::parse(bytes_of(framed(header.substr(1), "x")));
  ASSERT_EQ(file.tensors().size(), 1u);
  EXPECT_EQ(file.tensors()[0].name, std::string("a🙂/\"\\\b\f\n\r\tß€\0", 19));
  EXPECT_EQ(file.tensors()[0].dtype, Dtype::U8);
  EXPECT_EQ(text_of(file.tensors()[0].data), "x");
}

TEST_F(SafetensorsTest, RewritesGoldenFilesOfTheReferenceByteForByte) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(tests / "golden" / "safetensors")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++count;
    const File file = File::open(entry.path());
    write(folder / "again", file.tensors(), file.header().metadata());
    EXPECT_EQ(file_text(folder / "again"), file_text(entry.path())) << entry.path();
  }
  EXPECT_GE(count, 8u);
}

TEST_F(SafetensorsTest, OrderOfInputDoesNotMatter) {
  std::vector<Sample> samples = all_samples();
  const auto bytes = serialize(views(samples));
  std::reverse(samples.begin(), samples.end());
  EXPECT_EQ(bytes, serialize(views(samples)));
}

TEST_F(SafetensorsTest, LaysOutByDtypeThenName) {
  const std::vector<Sample> samples = {{"b", Dtype::U8, {1}},  {"a", Dtype::U8, {1}},
                                       {"z", Dtype::F32, {1}}, {"A", Dtype::F32, {1}},
                                       {"m", Dtype::I64, {1}}, {"é", Dtype::F32, {1}}};
  const File file = File::parse(serialize(views(samples)));
  std::string names;
  for (const TensorView& tensor : file.tensors()) names += tensor.name;
  EXPECT_EQ(names, "mAzéab");
}

// ---- reading in parts

TEST_F(SafetensorsTest, ReadsHeaderAlone) {
  const std::vector<Sample> samples = {{"x", Dtype::F32, {2, 3}}, {"y", Dtype::U8, {5}}};
  write(folder / "a", views(samples), Metadata{{"k", "v"}});
  const Header header = read_header(folder / "a");
  ASSERT_EQ(header.tensors().size(), 2u);
  const TensorInfo& y = header.at("y");
  EXPECT_EQ(y.begin, 24u);
  EXPECT_EQ(y.end, 29u);
  EXPECT_EQ(y.shape, std::vector<std::int64_t>{5});
  EXPECT_EQ(header.find("z"), nullptr);
  EXPECT_EQ(header.data_bytes(), 29u);
  EXPECT_EQ(header.data_start() + header.data_bytes(), fs::file_size(folder / "a"));
  EXPECT_EQ(header.data_start() % 8, 0u);
  EXPECT_EQ(*header.find_metadata("k"), "v");
}

TEST_F(SafetensorsTest, HeaderSurvivesCopies) {
  write(folder / "a", views({{"x", Dtype::U8, {1}}, {"y", Dtype::U8, {2}}}));
  auto original = std::make_unique<Header>(read_header(folder / "a"));
  const Header copy = *original;
  original.reset();
  EXPECT_EQ(copy.at("y").bytes(), 2u);
}

TEST_F(SafetensorsTest, ReadsSingleTensors) {
  const std::vector<Sample> samples = all_samples();
  write(folder / "a", views(samples));
  Reader opened(folder / "a");
  const Reader reader = std::move(opened);
  for (const Sample& sample : samples) {
    const Buffer buffer = reader.read(sample.name);
    EXPECT_EQ(text_of(buffer.span()), sample.data) << sample.name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
  }
  std::vector<std::byte> small(3);
  expect_kind(Kind::SizeMismatch, [&] { reader.read(reader.header().at("scalar"), small); });
  std::vector<float> value(1);
  reader.read(reader.header().at("scalar"), std::as_writable_bytes(std::span(value)));
  EXPECT_EQ(std::memcmp(value.data(), samples.back().data.data(), 4), 0);
}

TEST_F(SafetensorsTest, ReadsFromManyThreads) {
  std::vector<Sample> samples;
  for (int i = 0; i < 32; ++i)
    samples.emplace_back(std::to_string(i) + ".t", Dtype::I32, std::vector<std::int64_t>{5000});
  write(folder / "a", views(samples));
  const Reader reader(folder / "a");
  std::array<bool, 4> same = {};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < same.size(); ++t)
    threads.emplace_back([&, t] {
      bool all = true;
      for (const Sample& sample : samples) all &= text_of(reader.read(sample.name).span()) == sample.data;
      same[t] = all;
    });
  for (std::thread& thread : threads) thread.join();
  for (const bool all : same) EXPECT_TRUE(all);
}

TEST_F(SafetensorsTest, TensorsAreAlignedHoweverTheyLie) {
  // As writers laid files out before they sorted by dtype; the header's order is not the data's.
  const std::string header = R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[12,20]},)"
                             R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("c":{"dtype":"I8","shape":[3],"data_offsets":[9,12]},)"
                             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  const File file = File::parse(bytes_of(framed(header, "0123456789abcdefghij")));
  std::string names, data;
  for (const TensorView& tensor : file.tensors()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data.data()) % 64, 0u) << tensor.name;
    names += tensor.name;
    data += text_of(tensor.data) + "|";
  }
  EXPECT_EQ(names, "abcd");
  EXPECT_EQ(data, "0|12345678|9ab|cdefghij|");
}

TEST_F(SafetensorsTest, EmptyTensorsShareAPlace) {
  const std::string header = R"({"y":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                             R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("x":{"dtype":"F32","shape":[0,2],"data_offsets":[0,0]},)"
                             R"("e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})";
  const File file = File::parse(bytes_of(framed(header, "!")));
  std::string names;
  for (const TensorView& tensor : file.tensors()) names += tensor.name;
  EXPECT_EQ(names, "yxae");
}

TEST_F(SafetensorsTest, ViewsSurviveAMoveOfTheFile) {
  const std::vector<Sample> samples = {{"s", Dtype::U8, {4}}};
  auto first = std::make_unique<File>(File::parse(serialize(views(samples))));
  const TensorView view = first->tensors()[0];
  const File second = std::move(*first);
  first.reset();
  expect_equal(view, samples[0].view());
  expect_equal(second.at("s"), samples[0].view());
}

TEST_F(SafetensorsTest, ReadsHeaderLargerThanAPage) {
  std::vector<Sample> samples;
  for (int i = 0; i < 3000; ++i)
    samples.emplace_back(std::to_string(i) + ".blocks.weight", Dtype::F16, std::vector<std::int64_t>{1, 2});
  write(folder / "a", views(samples));
  const File file = File::open(folder / "a");
  EXPECT_GT(file.header().data_start(), 200'000u);
  for (const Sample& sample : samples) expect_equal(file.at(sample.name), sample.view());
}

// ---- refusals

struct Hostile {
  fs::path path;
  std::string kind;
};

std::vector<Hostile> hostile_files() {
  const fs::path folder = tests / "hostile" / "safetensors";
  std::vector<Hostile> files;
  std::ifstream table(folder / "expected.tsv");
  for (std::string name, kind, rest; std::getline(table, name, '\t') && std::getline(table, kind, '\t');) {
    std::getline(table, rest);
    files.push_back({folder / name, kind});
  }
  return files;
}

TEST(SafetensorsHostile, EachFileIsRefusedForItsReason) {
  const std::vector<Hostile> files = hostile_files();
  ASSERT_GE(files.size(), 100u);
  for (const Hostile& hostile : files) {
    const fs::path& path = hostile.path;
    const std::string text = file_text(path);
    const SafetensorsError parsed = error_of([&] { File::parse(bytes_of(text), path.string()); });
    EXPECT_EQ(name(parsed.kind()), hostile.kind) << path << "\n" << parsed.what();
    EXPECT_EQ(std::string(parsed.what()).find("safetensors read: " + path.string() + ": "), 0u)
        << parsed.what();
    EXPECT_LT(std::string(parsed.what()).size(), path.string().size() + 500) << path;
    const SafetensorsError opened = error_of([&] { File::open(path); });
    EXPECT_STREQ(opened.what(), parsed.what());
    EXPECT_STREQ(error_of([&] { read_header(path); }).what(), parsed.what());
  }
}

TEST(SafetensorsHostile, TableCoversEveryKindAndEveryFile) {
  std::set<std::string> kinds, listed, present;
  for (const auto& [path, kind] : hostile_files()) {
    kinds.insert(kind);
    listed.insert(path.filename().string());
  }
  for (int i = 0; i <= static_cast<int>(Kind::TrailingBytes); ++i)
    EXPECT_TRUE(kinds.contains(std::string(name(static_cast<Kind>(i))))) << name(static_cast<Kind>(i));
  for (const auto& entry : fs::directory_iterator(tests / "hostile" / "safetensors"))
    if (entry.path().extension() == ".safetensors") present.insert(entry.path().filename().string());
  EXPECT_EQ(listed, present);
}

TEST(SafetensorsHostile, EveryTruncationIsRefused) {
  const std::string whole = text_of(serialize(views(all_samples()), Metadata{{"key", "ßvalue\n"}}));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_THROW(File::parse(bytes_of(whole.substr(0, length))), SafetensorsError) << length;
  EXPECT_THROW(File::parse(bytes_of(whole + "x")), SafetensorsError);
  EXPECT_NO_THROW(File::parse(bytes_of(whole)));
}

TEST(SafetensorsHostile, EveryFlippedByteOfTheHeaderIsRefusedOrHarmless) {
  const std::string whole = text_of(serialize(views({{"ab", Dtype::F32, {2, 2}}, {"c", Dtype::U8, {3}}})));
  const std::size_t end = whole.size() - 19;
  for (std::size_t i = 0; i < end; ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
      try {
        const File file = File::parse(bytes_of(changed));
        std::uint64_t bytes = 0;
        for (const TensorView& tensor : file.tensors()) bytes += tensor.data.size();
        EXPECT_EQ(bytes, 19u);
      } catch (const SafetensorsError&) {
      }
    }
}

TEST(SafetensorsHostile, ManyTensorsAndLongNamesStayFast) {
  std::string header = "{";
  for (int i = 0; i < 50'000; ++i)
    header +=
        (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(File::parse(bytes_of(framed(header + "}"))).tensors().size(), 50'000u);
  const std::string long_name(1 << 20, 'n');
  const SafetensorsError error =
      error_of([&] { File::parse(bytes_of(framed("{\"" + long_name + "\":1}"))); });
  EXPECT_EQ(error.kind(), Kind::TensorNotObject);
  EXPECT_LT(std::strlen(error.what()), 400u);
}

TEST_F(SafetensorsTest, BigHeaderIsRefusedBeforeItIsRead) {
  const fs::path path = put("a", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8));  // 100,000,001
  fs::resize_file(path, 200'000'000);                                          // sparse
  expect_kind(Kind::HeaderTooLarge, [&] { File::open(path); });
  const fs::path exact = put("b", std::string("\x00\xe1\xf5\x05\0\0\0\0{", 9));  // 100,000,000, then zeros
  fs::resize_file(exact, 8 + 100'000'000);
  expect_kind(Kind::JsonSyntax, [&] { File::open(exact); });
}

TEST_F(SafetensorsTest, HeaderOfExactlyTheLimitIsRead) {
  std::string text = framed("{}" + std::string(max_header_bytes - 2, ' '));
  EXPECT_TRUE(File::parse(bytes_of(text)).tensors().empty());
}

TEST_F(SafetensorsTest, MessagesNameFileTensorExpectedAndGot) {
  const fs::path path =
      put("bad.safetensors",
          framed(R"({"net.w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})", std::string(20, 'x')));
  EXPECT_EQ(std::string(error_of([&] { File::open(path); }).what()),
            "safetensors read: " + path.string() +
                ": tensor \"net.w\": expected 24 bytes for F32 [2, 3], got 20 from data_offsets [0, 20]");
}

TEST_F(SafetensorsTest, UnknownTensorComesWithASuggestion) {
  write(folder / "a", views({{"blocks.0.weight", Dtype::U8, {1}}, {"head.bias", Dtype::U8, {1}}}));
  const File file = File::open(folder / "a");
  const SafetensorsError error = error_of([&] { file.at("blocks.0.weigth"); });
  EXPECT_EQ(error.kind(), Kind::NoSuchTensor);
  expect_parts(error.what(), {(folder / "a").string(), "2 tensors", "\"blocks.0.weigth\"",
                              "did you mean \"blocks.0.weight\""});
  expect_kind(Kind::NoSuchTensor, [&] { Reader(folder / "a").read("x"); });
  expect_kind(Kind::NoSuchTensor, [&] { File::parse(serialize({})).at("x"); });
}

TEST_F(SafetensorsTest, SystemErrorsArePlainErrors) {
  const auto message = [](const fs::path& path) -> std::string {
    try {
      File::open(path);
    } catch (const SafetensorsError& error) {
      ADD_FAILURE() << "a malformation: " << error.what();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  expect_parts(message(folder / "none"),
               {(folder / "none").string(), "cannot open", "No such file or directory"});
  expect_parts(message(folder), {"expected a regular file, got a folder"});
  expect_parts(message("/dev/zero"), {"expected a regular file, got a device"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_parts(message(folder / "pipe"), {"expected a regular file"});  // and does not wait for a writer
}

TEST_F(SafetensorsTest, FileTruncatedWhileOpenIsAnError) {
  write(folder / "a", views({{"x", Dtype::U8, {100'000}}}));
  const Reader reader(folder / "a");
  fs::resize_file(folder / "a", 50'000);
  EXPECT_THROW(reader.read("x"), Error);
}

TEST_F(SafetensorsTest, TensorsLargerThanMemoryAreAnError) {
#if defined(__SANITIZE_ADDRESS__) || POM_HAS_FEATURE(address_sanitizer)
  GTEST_SKIP() << "AddressSanitizer ends the program where memory does";
#endif
  constexpr std::uint64_t size = std::uint64_t{64} << 30;
  const std::string header = R"({"t":{"dtype":"U8","shape":[68719476736],"data_offsets":[0,68719476736]}})";
  const fs::path path = put("sparse", framed(header));
  fs::resize_file(path, 8 + header.size() + size);
  rlimit before = {};
  ::getrlimit(RLIMIT_AS, &before);
  const rlimit limit = {rlim_t{32} << 30, before.rlim_max};
  ::setrlimit(RLIMIT_AS, &limit);
  std::string message;
  try {
    File::open(path);
  } catch (const Error& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_AS, &before);
  expect_parts(message, {path.string(), "expected memory for 68719476736 bytes"});
  EXPECT_EQ(read_header(path).data_bytes(), size);
}

TEST(SafetensorsWrite, RefusesBadInput) {
  const Sample good("x", Dtype::F32, {2});
  const auto written = [](const std::vector<TensorView>& tensors,
                          const std::optional<Metadata>& metadata = {}) {
    return [=] { serialize(tensors, metadata); };
  };
  const auto renamed = [&](std::string_view name) {
    TensorView view = good.view();
    view.name = name;
    return view;
  };
  EXPECT_NO_THROW(written({good.view(), renamed("y")})());
  expect_kind(Kind::DuplicateTensor, written({good.view(), renamed("y"), good.view()}));
  expect_kind(Kind::ReservedName, written({renamed("__metadata__")}));
  expect_kind(Kind::InvalidUtf8, written({renamed("\xff")}));
  expect_kind(Kind::InvalidUtf8, written({renamed("\xed\xa0\x80")}));
  expect_kind(Kind::InvalidUtf8, written({}, Metadata{{"\xc0\x80", ""}}));
  expect_kind(Kind::InvalidUtf8, written({}, Metadata{{"", "\xc3"}}));
  expect_kind(Kind::DuplicateMetadataKey, written({}, Metadata{{"a", "1"}, {"b", "1"}, {"a", "2"}}));

  const std::vector<std::int64_t> three = {3}, negative = {-2}, huge = {std::int64_t{1} << 62, 8};
  const auto shaped = [&](Dtype dtype, const std::vector<std::int64_t>& shape) {
    return TensorView{"x", dtype, shape, good.view().data};
  };
  expect_kind(Kind::SizeMismatch, written({shaped(Dtype::F32, three)}));
  expect_kind(Kind::NegativeDimension, written({shaped(Dtype::F32, negative)}));
  expect_kind(Kind::ShapeOverflow, written({shaped(Dtype::F32, huge)}));
  expect_kind(Kind::PartialByte, written({shaped(Dtype::F4, three)}));
  expect_parts(error_of(written({shaped(Dtype::F32, three)})).what(),
               {"safetensors write", "tensor \"x\"", "expected 12 bytes for F32 [3], got 8"});
}

TEST(SafetensorsWrite, RefusesHeaderOverTheLimit) {
  const std::string text(max_header_bytes, 'a');
  expect_kind(Kind::HeaderTooLarge, [&] { serialize({}, Metadata{{"a", text}}); });
}

TEST_F(SafetensorsTest, RefusedInputLeavesNoFile) {
  const std::vector<Sample> twice = {{"x", Dtype::U8, {1}}, {"x", Dtype::U8, {1}}};
  expect_kind(Kind::DuplicateTensor, [&] { write(folder / "a", views(twice)); });
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(SafetensorsTest, FullDiskLeavesOldFile) {
  write(folder / "a", views({{"old", Dtype::U8, {4}}}));
  const std::vector<Sample> large = {{"new", Dtype::U8, {100'000}}};
  rlimit before = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit = {50'000, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_THROW(write(folder / "a", views(large)), Error);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(File::open(folder / "a").tensors()[0].name, "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(SafetensorsTest, RewritesAFileOverItself) {
  write(folder / "a", views(all_samples()));
  const std::string before = file_text(folder / "a");
  const File file = File::open(folder / "a");
  write(folder / "a", file.tensors(), file.header().metadata());
  EXPECT_EQ(file_text(folder / "a"), before);
}

}  // namespace
}  // namespace pom::io::safetensors
