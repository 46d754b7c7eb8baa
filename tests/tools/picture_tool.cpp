// A command line around the pictures' readers and writers, for referees that are not written in C++.
//
//   picture_tool decode FILE RAW                     "width height channels bits"; the samples into RAW
//   picture_tool rgb8 FILE RAW                       the same of to_rgb8, on white
//   picture_tool encode RAW W H C BITS OUT QUALITY [KEYWORD TEXT] ...
//   picture_tool text FILE                           a JSON array [keyword, text] a line, of a PNG
//   picture_tool sha256 FILE ...                     a line of digits each
//   picture_tool sheet OUT COLUMNS [FILE LABEL] ...  a sheet of them
#include <iostream>
#include <string>
#include <vector>

#include "pom/base/error.h"
#include "pom/io/atomic_file.h"
#include "pom/io/json_header.h"
#include "pom/io/picture.h"
#include "pom/io/read_file.h"
#include "pom/io/sha256.h"
#include "pom/io/sheet.h"

namespace {

using namespace pom::io;
using Words = std::vector<std::string>;

std::string quote(std::string_view text) {
  std::string out;
  detail::append_json_string(out, text);
  return out;
}

void show(const Image& image, const std::string& raw) {
  AtomicFile file(raw);
  file.write(std::as_bytes(std::span(image.data)));
  file.commit();
  std::cout << image.width << ' ' << image.height << ' ' << image.channels << ' ' << image.bits << '\n';
}

void encode(const Words& words) {
  Image image{
      std::stoi(words.at(1)), std::stoi(words.at(2)), std::stoi(words.at(3)), std::stoi(words.at(4)), {}};
  for (const std::byte byte : detail::read_file(words.at(0), "picture_tool"))
    image.data.push_back(std::to_integer<std::uint8_t>(byte));
  std::vector<TextEntry> text;
  for (std::size_t i = 7; i + 1 < words.size(); i += 2) text.push_back({words[i], words[i + 1]});
  write_picture(words.at(5), image, text, std::stoi(words.at(6)));
}

void sheet(const Words& words) {
  SheetOptions options;
  options.columns = std::stoi(words.at(1));
  std::vector<Image> pictures;
  for (std::size_t i = 2; i + 1 < words.size(); i += 2) {
    pictures.push_back(read_picture(words[i]));
    options.labels.push_back(words[i + 1]);
  }
  write_picture(words.at(0), make_sheet(pictures, options));
}

void run(const std::string& command, const Words& words) {
  if (command == "decode") {
    show(read_picture(words.at(0)), words.at(1));
  } else if (command == "rgb8") {
    show(to_rgb8(read_picture(words.at(0))), words.at(1));
  } else if (command == "encode") {
    encode(words);
  } else if (command == "text") {
    for (const TextEntry& entry : read_png_text(words.at(0)))
      std::cout << '[' << quote(entry.keyword) << ',' << quote(entry.text) << "]\n";
  } else if (command == "sha256") {
    for (const std::string& path : words) std::cout << sha256_file(path) << '\n';
  } else if (command == "sheet") {
    sheet(words);
  } else {
    pom::fail("picture_tool: command: expected decode, rgb8, encode, text, sha256 or sheet, got ", command);
  }
}

}  // namespace

int main(int count, char** arguments) try {
  const Words words(arguments + 1, arguments + count);
  run(words.at(0), {words.begin() + 1, words.end()});
} catch (const std::out_of_range&) {
  std::cerr << "picture_tool: too few arguments\n";
  return 2;
} catch (const pom::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
