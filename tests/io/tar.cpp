// Tests of tar: what is written is read again, the headers that others write, and each way in which a file
// can be damaged, with its error.
#include "pom/io/tar.h"

#include "tests/io/picture_support.h"
#include <fstream>

namespace pom::io {
namespace {

using TarTest = PictureTest;

const std::string end_of_tar(1024, '\0');

// A header of somebody else's: what is put at places of an own one, with the sum made right again.
std::string header_with(std::string block,
                        std::initializer_list<std::pair<std::size_t, std::string>> changes) {
  block.resize(512);
  for (const auto& [at, text] : changes) block.replace(at, text.size(), text);
  block.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  char digits[9];
  std::snprintf(digits, sizeof digits, "%06o", sum);
  block.replace(148, 7, digits, 7);
  return block;
}

std::string own(std::string_view name, std::string_view text) {
  return tar_member(name, std::as_bytes(std::span(text)));
}

// A member of any type.
std::string typed(char type, const std::string& name, const std::string& data) {
  const std::string whole = own(name, data);
  return header_with(whole.substr(0, 512), {{156, std::string(1, type)}}) + whole.substr(512);
}

void put(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<std::string> names_of(const std::string& bytes) {
  std::vector<std::string> names;
  for (const TarMember& member : list_tar(bytes, "test")) names.push_back(member.name);
  return names;
}

TEST_F(TarTest, WhatIsWrittenIsRead) {
  const std::string long_name = std::string(120, 'd') + "/" + std::string(90, 'f') + ".npy";
  const std::string very_long = std::string(150, 'x') + "/" + std::string(150, 'y');
  const std::vector<std::pair<std::string, std::string>> members = {{"a.txt", "hello"},
                                                                    {"empty", ""},
                                                                    {long_name, std::string(512, '1')},
                                                                    {very_long, std::string(1000, '2')}};
  TarWriter writer(folder / "a.tar");
  for (const auto& [name, text] : members) writer.add(name, text);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.tar"));
  writer.finish();
  EXPECT_EQ(writer.bytes(), std::filesystem::file_size(folder / "a.tar"));
  TarReader reader(folder / "a.tar");
  const std::vector<TarMember> found = reader.list();
  ASSERT_EQ(found.size(), members.size());
  std::uint64_t place = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(found[i].name, members[i].first);
    EXPECT_EQ(found[i].header, place);
    EXPECT_TRUE(found[i].is_file());
    EXPECT_EQ(reader.read(found[i], 1000), members[i].second);
    place = found[i].next;
    const std::string range = reader.range(found[i].header, found[i].next);
    const auto alone = list_tar_range(range, found[i].header, "range");
    ASSERT_EQ(alone.size(), 1u);
    EXPECT_EQ(alone[0].name, members[i].first);
    EXPECT_EQ(alone[0].data, found[i].data);
  }
  error_of([&] { reader.read(found[3], 999); },
           {"expected at most 999 bytes, got 1000", very_long.substr(0, 100)});
}

TEST_F(TarTest, TheSameMembersAreTheSameBytes) {
  for (const char* name : {"a.tar", "b.tar"}) {
    TarWriter writer(folder / name);
    writer.add("k.txt", "text");
    writer.add("k.npy", std::string(700, 'z'));
    writer.finish();
  }
  std::ifstream a(folder / "a.tar", std::ios::binary), b(folder / "b.tar", std::ios::binary);
  const std::string first{std::istreambuf_iterator<char>(a), {}},
      second{std::istreambuf_iterator<char>(b), {}};
  EXPECT_EQ(first, second);
  EXPECT_EQ(first.size(), 512u * (2 + 3 + 2));
}

TEST_F(TarTest, NotFinishedIsNotThere) {
  {
    TarWriter writer(folder / "a.tar");
    writer.add("a", "b");
  }
  EXPECT_EQ(files(), 0u);
  error_of([&] { TarWriter(folder / "b.tar").add("", "x"); }, {"tar write: name"});
  error_of([&] { TarWriter(folder / "b.tar").add("folder/", "x"); }, {"tar write: name"});
}

TEST_F(TarTest, HeadersOfOthers) {
  const std::string name = "long/" + std::string(200, 'n');
  const std::string gnu = typed('L', "././@LongLink", name + '\0') + typed('K', "././@LongLink", "target");
  const std::string pax = typed('x', "PaxHeaders/a", "19 mtime=170000.25\n16 path=renamed\n");
  const std::string global = typed('g', "pax_global_header", "17 comment=abcde\n");
  const auto members =
      list_tar(global + gnu + own("short", "1") + pax + own("a", "22") + typed('5', "folder", "") +
                   typed('2', "link", "") + typed('7', "contiguous", "333") + own("z", "") + end_of_tar,
               "test");
  ASSERT_EQ(members.size(), 6u);
  EXPECT_EQ(members[0].name, name);
  EXPECT_EQ(members[0].header, 0u);
  EXPECT_EQ(members[1].name, "renamed");
  EXPECT_EQ(members[1].size, 2u);
  EXPECT_EQ(members[2].type, '5');
  EXPECT_EQ(members[3].type, '2');
  EXPECT_TRUE(members[4].is_file());
  EXPECT_EQ(members[5].name, "z");
}

TEST_F(TarTest, SizesInPaxAndInBinary) {
  const std::string data(600, 'q');
  const std::string whole = own("a", data);
  const std::string without = header_with(whole.substr(0, 512), {{124, "00000000000"}}) + whole.substr(512);
  const auto by_pax = list_tar(typed('x', "p", "12 size=600\n") + without + end_of_tar, "test");
  ASSERT_EQ(by_pax.size(), 1u);
  EXPECT_EQ(by_pax[0].size, 600u);
  const std::string binary("\x80\0\0\0\0\0\0\0\0\0\x02\x58", 12);
  const std::string large = header_with(whole.substr(0, 512), {{124, binary}}) + whole.substr(512);
  const auto by_binary = list_tar(large + end_of_tar, "test");
  ASSERT_EQ(by_binary.size(), 1u);
  EXPECT_EQ(by_binary[0].size, 600u);
  const std::string negative(12, '\xff');
  error_of(
      [&] {
        names_of(header_with(whole.substr(0, 512), {{124, negative}}) + whole.substr(512) + end_of_tar);
      },
      {"member \"a\" at byte 0: expected a size"});
}

TEST_F(TarTest, CutOffIsAnErrorWherever) {
  const std::string whole = own("first.txt", std::string(700, 'a')) + own("second.txt", "b") + end_of_tar;
  ASSERT_EQ(names_of(whole).size(), 2u);
  const std::size_t members = whole.size() - 1024;
  for (std::size_t size = 0; size < members + 512; size += size % 512 == 0 ? 1 : 255) {
    const std::string cut = whole.substr(0, size);
    const std::string text = error_of([&] { names_of(cut); });
    EXPECT_NE(text.find("cut off"), std::string::npos) << size << ": " << text;
  }
  EXPECT_EQ(names_of(whole.substr(0, members + 512)).size(), 2u);  // one block of zeros is enough
  error_of([&] { names_of(whole.substr(0, 1100)); }, {"tar read: test: member \"first.txt\" at byte 0: cut "
                                                      "off: expected 700 bytes of data from byte 512 on, "
                                                      "got 588 until the end"});
}

TEST_F(TarTest, DamageIsNamed) {
  std::string flipped = own("a.txt", "x") + own("b.txt", "y") + end_of_tar;
  flipped[1024 + 3] ^= 4;
  error_of([&] { names_of(flipped); }, {"tar read: test: at byte 1024: expected a header", "checksum"});
  std::string hole = own("a.txt", "x") + own("b.txt", "y") + end_of_tar;
  hole.replace(1024, 512, std::string(512, '\0'));
  error_of([&] { names_of(hole); }, {"at byte 1536", "a hole in the file"});
  error_of([&] { names_of("no tar at all"); }, {"cut off: expected a header"});
  error_of([&] { names_of(std::string(2048, 'x')); }, {"damaged, or no tar"});
  error_of([&] { names_of(typed('x', "p", "12 size=600\n") + end_of_tar); },
           {"expected the member that this header describes"});
  error_of([&] { names_of(typed('x', "p", "99 size=6\n") + own("a", "") + end_of_tar); }, {"pax records"});
  error_of(
      [&] {
        names_of(typed('x', "p",
                       "10 size=6\n"
                       "no records") +
                 own("a", "") + end_of_tar);
      },
      {"pax records"});
  error_of([&] { names_of(typed('x', "p", "11 size=-6\n") + own("a", "") + end_of_tar); },
           {"expected a size in digits"});
  error_of([&] { names_of(typed('g', "p", "10 path=a\n") + own("a", "") + end_of_tar); },
           {"expected no path for all"});
  error_of([&] { names_of(typed('x', "p", "22 GNU.sparse.major=1\n") + own("a", "") + end_of_tar); },
           {"sparse"});
  error_of([&] { names_of(typed('S', "p", "") + end_of_tar); }, {"member \"p\" at byte 0", "sparse"});
  error_of([&] { names_of(typed('L', "l", std::string(70000, 'n')) + own("a", "") + end_of_tar); },
           {"expected at most 65537 bytes of a name, got 70000"});
}

TEST_F(TarTest, SizesThatLieTakeNoMemory) {
  const std::string whole = own("a", "x");
  const std::string lie =
      header_with(whole.substr(0, 512), {{124, "77777777777"}}) + whole.substr(512) + end_of_tar;
  error_of([&] { names_of(lie); }, {"cut off: expected 8589934591 bytes"});
  const std::string huge("\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12);
  error_of(
      [&] {
        names_of(header_with(whole.substr(0, 512), {{124, huge}}) + whole.substr(512));
      },
      {"cut off"});
  error_of([&] { names_of(typed('x', "p", "28 size=18446744073709551615\n") + own("a", "") + end_of_tar); },
           {"pax records"});
  error_of([&] { names_of(typed('x', "p", "29 size=18446744073709551615\n") + own("a", "") + end_of_tar); },
           {"member \"a\"", "cut off: expected 18446744073709551615"});
}

TEST_F(TarTest, AFileThatIsNone) {
  error_of([&] { TarReader(folder / "nothing.tar"); }, {"tar read: ", "cannot open"});
  error_of([&] { TarReader{folder}; }, {"expected a regular file, got a folder"});
  put(folder / "empty.tar", "");
  error_of([&] { TarReader(folder / "empty.tar").list(); }, {"cut off", "got the end of the file"});
}

}  // namespace
}  // namespace pom::io
