// A command line around the clips' reader and writers, for referees that are not written in C++.
//
//   clip_tool write OUT W H FPS [growing] [text=…] [json=…]
//                                          frames of raw RGB from stdin, as many as come; its text, which is
//                                          `parameters` and `pom`
//   clip_tool y4m W H FPS                  the same as y4m on stdout; exits with 3 where the pipe closes
//   clip_tool read FILE [W H FPS START]    frames on stdout, each after "width height"
//   clip_tool info FILE                    "width height fps seconds format codec"
//   clip_tool text FILE                    a JSON array [keyword, text] a line, of any file that carries text
//   clip_tool libraries
#include <iostream>
#include <string>
#include <unistd.h>
#include <vector>

#include "pom/io/clip.h"
#include "pom/io/file_text.h"
#include "pom/io/json_header.h"

namespace {

using namespace pom::io;
using Words = std::vector<std::string>;

ClipOptions options_of(const Words& words, std::size_t first) {
  return {.width = std::stoi(words.at(first)),
          .height = std::stoi(words.at(first + 1)),
          .fps = std::stod(words.at(first + 2))};
}

void copy_frames(ClipWriter& writer, const ClipOptions& options) {
  Image frame = make_image("clip_tool", options.width, options.height, 3);
  while (std::cin.read(reinterpret_cast<char*>(frame.data.data()), std::ssize(frame.data))) writer.add(frame);
  writer.finish();
}

void write(const Words& words) {
  ClipOptions options = options_of(words, 1);
  for (std::size_t i = 4; i < words.size(); ++i) {
    if (words[i] == "growing") options.growing = true;
    if (words[i].starts_with("text=")) options.text.push_back({"parameters", words[i].substr(5)});
    if (words[i].starts_with("json=")) options.text.push_back({"pom", words[i].substr(5)});
  }
  copy_frames(*open_clip(words.at(0), options), options);
}

void read(const Words& words) {
  ClipReading reading;
  if (words.size() > 1)
    reading = {.width = std::stoi(words.at(1)),
               .height = std::stoi(words.at(2)),
               .fps = std::stod(words.at(3)),
               .start = std::stod(words.at(4))};
  ClipReader reader(words.at(0), reading);
  for (Image frame; reader.next(frame);) {
    std::cout << frame.width << ' ' << frame.height << '\n';
    std::cout.write(reinterpret_cast<const char*>(frame.data.data()), std::ssize(frame.data));
  }
}

void print_text(const std::string& path) {
  for (const TextEntry& entry : read_file_text(path)) {
    std::string line = "[";
    detail::append_json_string(line, entry.keyword);
    detail::append_json_string(line += ',', entry.text);
    std::cout << line << "]\n";
  }
}

void run(const std::string& command, const Words& words) {
  if (command == "write") {
    write(words);
  } else if (command == "y4m") {
    const ClipOptions options = options_of(words, 0);
    copy_frames(*open_y4m(STDOUT_FILENO, options), options);
  } else if (command == "read") {
    read(words);
  } else if (command == "info") {
    const ClipReader reader(words.at(0));
    const ClipInfo& info = reader.info();
    std::cout << info.width << ' ' << info.height << ' ' << info.fps << ' ' << info.seconds << ' '
              << info.format << ' ' << info.codec << '\n';
  } else if (command == "text") {
    print_text(words.at(0));
  } else if (command == "libraries") {
    std::cout << clip_libraries() << '\n';
  } else {
    pom::fail("clip_tool: command: expected write, y4m, read, info, text or libraries, got ", command);
  }
}

}  // namespace

int main(int count, char** arguments) try {
  const Words words(arguments + 1, arguments + count);
  run(words.at(0), {words.begin() + 1, words.end()});
} catch (const std::out_of_range&) {
  std::cerr << "clip_tool: too few arguments\n";
  return 2;
} catch (const ClosedPipe& error) {
  std::cerr << error.what() << '\n';
  return 3;
} catch (const pom::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
