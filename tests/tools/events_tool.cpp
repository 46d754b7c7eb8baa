// Writes an event file for python/tests/test_tensorboard.py: events_tool FOLDER SECONDS, with one event in
// each line of stdin, and prints the file's path.
//
//   scalar TAG STEP SECONDS VALUE
//   text TAG STEP SECONDS THE REST OF THE LINE (\n stands for a line break)
//   image TAG STEP SECONDS WIDTH HEIGHT FILE
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "pom/io/events.h"

namespace {

std::string rest(std::istream& words) {
  std::string text;
  std::getline(words >> std::ws, text);
  for (std::size_t at; (at = text.find("\\n")) != std::string::npos;) {
    text.erase(at, 1);
    text[at] = '\n';
  }
  return text;
}

std::string contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write_line(pom::io::EventWriter& writer, const std::string& line) {
  std::istringstream words(line);
  std::string kind, tag;
  std::int64_t step = 0;
  double seconds = 0;
  words >> kind >> tag >> step >> seconds;
  if (kind == "scalar") {
    std::string value;  // as text: a stream does not read nan
    words >> value;
    writer.scalar(tag, std::strtod(value.c_str(), nullptr), step, seconds);
  } else if (kind == "text") {
    writer.text(tag, rest(words), step, seconds);
  } else if (kind == "image") {
    int width = 0, height = 0;
    std::string file;
    words >> width >> height >> file;
    const std::string png = contents(file);
    writer.image(tag, std::as_bytes(std::span(png)), width, height, step, seconds);
  } else {
    throw std::runtime_error("events_tool: expected scalar, text or image, got " + kind);
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  try {
    pom::io::EventWriter writer(words[1], std::strtod(words[2], nullptr));
    for (std::string line; std::getline(std::cin, line);) write_line(writer, line);
    std::cout << writer.path().string() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
