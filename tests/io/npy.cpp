// Tests of .npy: numpy's own bytes, orders, versions and types, and headers that are wrong.
#include "pom/io/npy.h"

#include "tests/io/picture_support.h"
#include <cstring>

namespace pom::io {
namespace {

using Shape = std::vector<std::int64_t>;

template <class Element>
std::string_view text_of(const std::vector<Element>& elements) {
  return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element)};
}

template <class Element>
std::string file_of(NpyType type, const Shape& shape, const std::vector<Element>& elements) {
  return write_npy(type, shape, std::as_bytes(std::span(elements)));
}

// A file with this header, of version 1 to 3.
std::string with_header(const std::string& dict, const std::string& data = "", char version = 1) {
  std::string file = std::string("\x93NUMPY") + version + '\0';
  for (std::size_t i = 0; i < (version == 1 ? 2u : 4u); ++i)
    file += static_cast<char>(dict.size() >> (8 * i));
  return file + dict + data;
}

std::string dict_of(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': " + descr + ", 'fortran_order': " + (fortran ? "True" : "False") + ", 'shape': " + shape +
         ", }\n";
}

TEST(Npy, BytesAreThoseOfNumpy) {
  // numpy.save of numpy.arange(6, dtype="<f4").reshape(2, 3)
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  const std::string file = file_of(NpyType::single, {2, 3}, values);
  std::string head = std::string("\x93NUMPY\x01\0\x76\0", 10) +
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  head.append(127 - head.size(), ' ').append("\n");
  EXPECT_EQ(file, head + std::string(text_of(values)));
}

TEST(Npy, WhatIsWrittenIsRead) {
  const std::vector<std::int64_t> one = {-7};
  NpyArray number = read_npy(file_of(NpyType::int64, {}, one), "test");
  EXPECT_TRUE(number.header.shape.empty());
  EXPECT_EQ(number.elements, text_of(one));
  const std::vector<std::uint16_t> halves = {0x3c00, 0xc000, 0};
  const NpyArray row = read_npy(file_of(NpyType::half, {3}, halves), "test");
  EXPECT_EQ(row.header.shape, (Shape{3}));
  EXPECT_EQ(row.header.type, NpyType::half);
  EXPECT_EQ(row.elements, text_of(halves));
  const NpyArray none = read_npy(file_of(NpyType::boolean, {2, 0, 3}, std::vector<char>()), "test");
  EXPECT_EQ(none.header.count, 0u);
  error_of([&] { file_of(NpyType::half, {4}, halves); },
           {"npy write: expected 8 bytes for the shape (4,), got 6"});
  error_of([&] { file_of(NpyType::half, {-1}, halves); }, {"npy write: shape"});
}

TEST(Npy, FortranOrderBecomesC) {
  // Of [[0, 1, 2], [3, 4, 5]].
  const std::vector<std::int32_t> columns = {0, 3, 1, 4, 2, 5}, rows = {0, 1, 2, 3, 4, 5};
  const NpyArray array =
      read_npy(with_header(dict_of("'<i4'", "(2, 3)", true), std::string(text_of(columns))), "test");
  EXPECT_EQ(array.elements, text_of(rows));
  std::vector<std::int32_t> cube(24), mixed(24);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) {
        cube[static_cast<std::size_t>(i * 12 + j * 4 + k)] = i * 100 + j * 10 + k;
        mixed[static_cast<std::size_t>(i + 2 * (j + 3 * k))] = i * 100 + j * 10 + k;
      }
  EXPECT_EQ(read_npy(with_header(dict_of("'<i4'", "(2, 3, 4)", true), std::string(text_of(mixed))), "test")
                .elements,
            text_of(cube));
}

TEST(Npy, VersionsAndSpellings) {
  for (const char version : {1, 2, 3})
    EXPECT_EQ(parse_npy(with_header(dict_of("'|u1'", "(2,)"), "ab", version), "test").count, 2u);
  EXPECT_EQ(
      parse_npy(with_header("{\"shape\":(2L,),\"descr\":\"<i1\",\"fortran_order\":False}", "ab"), "test")
          .type,
      NpyType::int8);
  error_of([] { parse_npy(with_header(dict_of("'|u1'", "(2,)"), "ab", 4), "test"); },
           {"test: version: expected 1.0, 2.0 or 3.0, got 4.0"});
}

TEST(Npy, Texts) {
  const std::vector<std::uint32_t> star = {0x2605, 'a', 0x1f642, 0xe9, 0};
  EXPECT_EQ(
      npy_text(read_npy(with_header(dict_of("'<U5'", "()"), std::string(text_of(star))), "test"), "test"),
      "\xe2\x98\x85"
      "a\xf0\x9f\x99\x82\xc3\xa9");
  EXPECT_EQ(npy_text(read_npy(with_header(dict_of("'|S3'", "(1,)"), std::string("ab\0", 3)), "test"), "test"),
            "ab");
  EXPECT_EQ(npy_text(read_npy(with_header(dict_of("'<U0'", "()"), ""), "test"), "test"), "");
  const std::vector<std::uint32_t> bad = {0xd800};
  error_of(
      [&] {
        npy_text(read_npy(with_header(dict_of("'<U1'", "()"), std::string(text_of(bad))), "test"), "here");
      },
      {"here: expected Unicode characters, got 55296"});
  error_of([&] { npy_text(read_npy(with_header(dict_of("'|u1'", "()"), "a"), "test"), "here"); },
           {"here: expected one text, got a number"});
}

TEST(Npy, WhatIsNotRead) {
  const auto refused = [](const std::string& file, std::initializer_list<std::string> parts) {
    error_of([&] { parse_npy(file, "test"); }, parts);
  };
  refused(with_header(dict_of("'|O'", "()"), "x"), {"test: descr: expected numbers, got \"|O\"", "pickles"});
  refused(with_header(dict_of("'>f4'", "()"), "abcd"), {"expected little-endian numbers, got \">f4\""});
  refused(with_header(dict_of("'<c8'", "()"), "abcdefgh"), {"descr: expected one of", "got \"<c8\""});
  refused(with_header(dict_of("[('a', '<f4')]", "()"), "abcd"), {"one type for all elements"});
  refused(with_header(dict_of("'<f4'", "(2, 3)"), "abcd"), {"expected 24 bytes for the shape (2, 3), got 4"});
  refused(with_header(dict_of("'<f4'", "(-1,)"), "abcd"), {"shape: expected sizes of 0 or more"});
  refused(with_header(dict_of("'<f4'", "(4294967296, 4294967296)")), {"expected fewer than 2^64 bytes"});
  refused(with_header(dict_of("'<f4'", "(99999999999999999999,)")), {"shape: expected sizes"});
  refused(with_header("{'descr': '<f4', 'shape': (), }", "abcd"), {"fortran_order: expected it, got none"});
  refused(with_header("{'descr': '<f4', 'descr': '<f4'}", "abcd"), {"descr: given twice"});
  refused(with_header("{'colour': 1}", ""), {"got \"colour\""});
  refused(with_header(dict_of("'<f4'", "()") + "x", "abcd"), {"expected the end of the header"});
  refused(with_header(dict_of("'<f4'", "(" + std::string(80, '1') + ")")), {"shape"});
  std::string dimensions = "(";
  for (int i = 0; i < 40; ++i) dimensions += "1, ";
  refused(with_header(dict_of("'|u1'", dimensions + ")"), "a"), {"expected at most 32 dimensions"});
  refused("\x93NUMPX", {"expected a .npy"});
  refused("\x93NUMPY\x01", {"cut off"});
  refused(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12), {"header: expected at most 65536 bytes"});
  refused(std::string("\x93NUMPY\x01\0\xff\x10", 10), {"cut off: expected 4351 bytes of header, got 0"});
}

}  // namespace
}  // namespace pom::io
