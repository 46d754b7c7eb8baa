// Tests of event files: sums and frames of records, names of files, and failures. That TensorBoard reads them
// is python/tests/test_tensorboard.py's to say.
#include "pom/io/events.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/resource.h>
#include <vector>

#include "pom/base/error.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string contents(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

template <class Number>
Number number_at(std::string_view bytes, std::size_t place) {
  Number value = 0;
  std::memcpy(&value, bytes.substr(place, sizeof value).data(), sizeof value);
  return value;
}

// The messages of a file whose frames are all as they should be.
std::vector<std::string> messages(std::string_view file) {
  std::vector<std::string> all;
  while (!file.empty()) {
    const auto size = number_at<std::uint64_t>(file, 0);
    EXPECT_EQ(number_at<std::uint32_t>(file, 8), masked_crc32c(bytes_of(file.substr(0, 8))));
    const std::string_view message = file.substr(12, size);
    EXPECT_EQ(number_at<std::uint32_t>(file, 12 + size), masked_crc32c(bytes_of(message)));
    all.emplace_back(message);
    file.remove_prefix(16 + size);
  }
  return all;
}

class EventsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-events-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  fs::path folder;
};

// RFC 3720, B.4, and the check value of the catalogue of CRCs.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62a8ab43u);
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(masked_crc32c({}), 0xa282ead8u);
}

TEST_F(EventsTest, BeginsWithTheVersion) {
  const EventWriter writer(folder, 1700000000.75);
  EXPECT_EQ(writer.path(), folder / "events.out.tfevents.1700000000.pom");
  const std::vector<std::string> all = messages(contents(writer.path()));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0][0], '\x09');
  EXPECT_EQ(number_at<double>(all[0], 1), 1700000000.75);
  EXPECT_EQ(all[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
}

TEST_F(EventsTest, AScalarByteForByte) {
  EventWriter writer(folder, 1);
  writer.scalar("loss", 0.5, 300, 2.0);
  const std::vector<std::string> all = messages(contents(writer.path()));
  ASSERT_EQ(all.size(), 2u);
  using namespace std::string_literals;
  EXPECT_EQ(all[1],
            "\x09\0\0\0\0\0\0\0\x40"s                        // wall_time 2.0
            "\x10\xac\x02"s                                  // step 300
            "\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f"s);  // summary.value {tag, simple_value 0.5}
}

TEST_F(EventsTest, RecordsAreInTheFileAtOnce) {
  EventWriter writer(folder, 1);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(messages(contents(writer.path())).size(), 1 + 3 * i);
    writer.scalar("a", 1, static_cast<std::int64_t>(i), 2);
    writer.text("b", "words", static_cast<std::int64_t>(i), 2);
    writer.image("c", bytes_of(std::string(100'000, 'x')), 3, 4, static_cast<std::int64_t>(i), 2);
  }
}

TEST_F(EventsTest, FilesOfOneSecondSortAsTheyBegan) {
  std::vector<std::string> names;
  for (int i = 0; i < 12; ++i) names.push_back(EventWriter(folder, 5.5, "run").path().filename());
  EXPECT_EQ(names[0], "events.out.tfevents.0000000005.run");
  EXPECT_EQ(names[1], "events.out.tfevents.0000000005.run.001");
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST_F(EventsTest, AFullDiskLeavesWholeRecords) {
  EventWriter writer(folder, 1);
  writer.scalar("a", 1, 1, 2);
  const std::string before = contents(writer.path());
  rlimit old = {};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit limit = {before.size() + 1000, old.rlim_max};
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::string message;
  try {
    writer.text("b", std::string(5000, 'x'), 2, 3);
  } catch (const Error& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, "events: " + writer.path().string() + ": cannot write: File too large");
  EXPECT_EQ(contents(writer.path()), before);
  writer.scalar("a", 2, 2, 3);
  EXPECT_EQ(messages(contents(writer.path())).size(), 3u);
}

TEST_F(EventsTest, Refusals) {
  EXPECT_THROW(EventWriter(folder / "none", 1), Error);
  EventWriter writer(folder, 1);
  EXPECT_THROW(writer.scalar("\xff", 1, 1, 1), Error);
  EXPECT_THROW(writer.text("a", "\xff", 1, 1), Error);
  EXPECT_EQ(messages(contents(writer.path())).size(), 1u);
}

}  // namespace
}  // namespace pom::io
