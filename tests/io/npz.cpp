// Tests of .npz: zips written here byte by byte, as numpy.savez has them and otherwise; bombs, lies and
// damage. python/tests/test_webdataset.py reads those of numpy itself.
#include "pom/io/npz.h"

#include "tests/io/picture_support.h"

#include "pom/io/crc32.h"

namespace pom::io {
namespace {

std::string little(std::uint64_t value, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// A member and what is said of it, which need not be true.
struct Member {
  std::string name, data;
  unsigned method = 0;
  std::optional<std::uint64_t> size = {}, packed = {};
  std::optional<std::uint32_t> crc = {};
  unsigned flags = 0;
  bool zip64 = false;
  std::optional<std::uint64_t> header = {};
};

std::string zip_of(const std::vector<Member>& members, std::optional<std::uint64_t> count = {},
                   const std::string& comment = "") {
  std::string file, directory;
  for (const Member& m : members) {
    const std::uint64_t size = m.size.value_or(m.data.size()), packed = m.packed.value_or(m.data.size());
    const std::uint32_t crc = m.crc.value_or(crc32(m.data));
    const std::uint64_t header = m.header.value_or(file.size());
    const std::string large = little(1, 2) + little(16, 2) + little(size, 8) + little(packed, 8);
    const std::string sizes = m.zip64 ? std::string(8, '\xff') : little(packed, 4) + little(size, 4);
    const std::string common = little(m.flags, 2) + little(m.method, 2) + little(0, 4) + little(crc, 4) +
                               sizes + little(m.name.size(), 2) + little(m.zip64 ? large.size() : 0, 2);
    file += little(0x04034b50, 4) + little(45, 2) + common + m.name + (m.zip64 ? large : "") + m.data;
    directory += little(0x02014b50, 4) + little(45, 2) + little(45, 2) + common + little(0, 2) +
                 little(0, 2) + little(0, 2) + little(0, 4) + little(header, 4) + m.name +
                 (m.zip64 ? large : "");
  }
  const std::uint64_t place = file.size(), n = count.value_or(members.size());
  return file + directory + little(0x06054b50, 4) + little(0, 4) + little(n, 2) + little(n, 2) +
         little(directory.size(), 4) + little(place, 4) + little(comment.size(), 2) + comment;
}

std::string numbers(std::vector<std::int64_t> values) {
  const std::vector<std::int64_t> shape = {std::ssize(values)};
  return write_npy(NpyType::int64, shape, std::as_bytes(std::span(values)));
}

constexpr std::uint64_t plenty = 1 << 20;

TEST(Npz, StoredMembers) {
  for (const bool zip64 : {false, true}) {
    const std::string file = zip_of({{.name = "arr_0.npy", .data = numbers({1, 2, 3}), .zip64 = zip64},
                                     {.name = "arr_1.npy", .data = numbers({4}), .zip64 = zip64}},
                                    {}, zip64 ? "a comment" : "");
    const Npz npz(file, "test", plenty);
    ASSERT_EQ(npz.entries().size(), 2u);
    EXPECT_EQ(npz.entries()[1].name, "arr_1");
    EXPECT_EQ(npz.read("arr_0").elements, std::string(little(1, 8) + little(2, 8) + little(3, 8)));
    EXPECT_EQ(npz.find("arr_2"), nullptr);
    error_of([&] { npz.read("arr_2"); }, {"test: expected the array arr_2, got arr_0, arr_1"});
  }
}

TEST(Npz, DeflatedMembers) {
  // A block that is not packed: 1 (last), length, its complement, the bytes.
  const std::string data = numbers({5, 6});
  const std::string deflated = std::string(1, '\1') + little(data.size(), 2) + little(~data.size(), 2) + data;
  const auto zip = [&](std::uint64_t size, const std::string& packed) {
    return zip_of({{.name = "a.npy", .data = packed, .method = 8, .size = size, .crc = crc32(data)}});
  };
  const std::string file = zip(data.size(), deflated);
  const Npz npz(file, "test", plenty);
  if (!npz_inflates()) {
    error_of([&] { npz.read("a"); }, {"need zlib"});
    return;
  }
  EXPECT_EQ(npz.read("a").elements, little(5, 8) + little(6, 8));
  for (const std::uint64_t size : {data.size() - 1, data.size() + 1}) {
    const std::string lie = zip(size, deflated);
    error_of([&] { Npz(lie, "test", plenty).read("a"); }, {"member \"a\": expected ", " bytes deflated"});
  }
  const std::string cut = zip(data.size(), deflated.substr(0, 20));
  error_of([&] { Npz(cut, "test", plenty).read("a"); }, {"bytes deflated, got something else"});
}

TEST(Npz, BombsAreRefusedBeforeMemoryIsTaken) {
  const std::string large = zip_of({{.name = "a.npy", .data = "x", .method = 8, .size = 4'000'000'000}});
  error_of([&] { Npz(large, "test", plenty); },
           {"expected at most 1048576 bytes in all members together, got more"});
  const std::string unlikely = zip_of({{.name = "a.npy", .data = "x", .method = 8, .size = 1'000'000}});
  if (npz_inflates())
    error_of([&] { Npz(unlikely, "test", plenty).read("a"); },
             {"expected at most 2064 bytes of 1 deflated ones"});
  const std::string many = zip_of({{.name = "a.npy", .data = std::string(600'000, 'x')},
                                   {.name = "b.npy", .data = std::string(600'000, 'x')}});
  error_of([&] { Npz(many, "test", plenty); }, {"member \"b\": expected at most 1048576 bytes in all"});
  const std::string counted = zip_of({{.name = "a.npy", .data = "x"}}, 60000);
  error_of([&] { Npz(counted, "test", plenty); }, {"expected at most 1 members, got 60000"});
}

TEST(Npz, DamageIsNamed) {
  const std::string good = zip_of({{.name = "a.npy", .data = numbers({1, 2, 3})}});
  std::string flipped = good;
  flipped[30 + 5 + 130] ^= 1;
  error_of([&] { Npz(flipped, "test", plenty).read("a"); },
           {"test: member \"a\": damaged: expected the CRC "});
  for (std::size_t size = 0; size < good.size(); size += 7)
    error_of([&] { Npz(good.substr(0, size), "test", plenty).read("a"); }, {"test: expected a zip, got "});
  const auto refused = [](const Member& member, std::initializer_list<std::string> parts) {
    const std::string file = zip_of({member});
    error_of([&] { Npz(file, "test", plenty).read("a"); }, parts);
  };
  refused({.name = "a.npy", .data = "x", .method = 12}, {"expected it stored or deflated, got method 12"});
  refused({.name = "a.npy", .data = "x", .flags = 1}, {"encrypted"});
  refused({.name = "a.npy", .data = "x", .size = 2}, {"stored: expected as many bytes as it has, 2, got 1"});
  refused({.name = "a.npy", .data = "x", .size = 2000, .packed = 2000}, {"cut off: expected 2000 bytes"});
  refused({.name = "a.npy", .data = "x", .header = 3}, {"expected its header at byte 3"});
  refused({.name = "a.npy", .data = "x", .header = 4'000'000'000},
          {"expected its header at byte 4000000000"});
  refused({.name = "a.npy", .data = "x"}, {"member \"a\": expected a .npy"});
  refused({.name = "a.npy", .data = "x", .size = 0xffffffff, .packed = 0xffffffff}, {"expected at most"});
  const std::string twice = zip_of({{.name = "a.npy", .data = "x"}, {.name = "a", .data = "x"}});
  error_of([&] { Npz(twice, "test", plenty); }, {"there twice"});
}

}  // namespace
}  // namespace pom::io
