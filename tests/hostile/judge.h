// Hostile files against expected.tsv beside them: a line for each, its name and the whole of its error, in
// which FOLDER stands for the folder it was read in. With $POM_WRITE_EXPECTED the tables are written instead,
// to be looked through with `git diff`.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/error.h"

namespace pom::hostile {

namespace fs = std::filesystem;

inline const fs::path folder_of_tests = fs::path(POM_TESTS_FOLDER) / "hostile";
inline const std::string accepted = "(accepted)";

inline std::string bytes_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void put_bytes(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A folder of the test's own, gone at its end.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "pom-hostile-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A message as a line of a table: what is no printable ASCII as \xNN, but for "…", and of a long one the
// beginning and its length.
inline std::string line_of(std::string message, const fs::path& folder) {
  for (std::size_t at; (at = message.find(folder.string())) != std::string::npos;)
    message.replace(at, folder.string().size(), "FOLDER");
  constexpr std::size_t longest = 400;
  constexpr std::string_view more = "…", digits = "0123456789abcdef";
  std::string line;
  for (std::size_t i = 0; i < std::min(message.size(), longest); ++i) {
    const auto byte = static_cast<unsigned char>(message[i]);
    if (std::string_view(message).substr(i).starts_with(more)) {
      line += more;
      i += more.size() - 1;
    } else if (byte >= 0x20 && byte < 0x7f) {
      line += message[i];
    } else {
      line.append("\\x").append(1, digits[byte >> 4]).append(1, digits[byte & 15]);
    }
  }
  if (message.size() > longest) line += "... (" + std::to_string(message.size()) + " bytes)";
  return line;
}

class Table {
 public:
  explicit Table(const std::string& kind) : path_(folder_of_tests / kind / "expected.tsv") {
    std::ifstream file(path_);
    for (std::string name, error; std::getline(file, name, '\t') && std::getline(file, error);)
      expected_[name] = error;
  }

  // Reads one; `folder` is what FOLDER stands for.
  void judge(const std::string& name, const fs::path& folder, const std::function<void()>& read) {
    std::string error = accepted;
    try {
      read();
    } catch (const Error& caught) {
      error = caught.what();
    }
    found_[name] = line_of(error, folder);
  }

  // After all: each is as it says, and each has been there. Those named good are accepted, as the others
  // would be but for what is wrong with them.
  void finish() const {
    if (std::getenv("POM_WRITE_EXPECTED") != nullptr) {
      std::ofstream file(path_);
      for (const auto& [name, error] : found_) file << name << '\t' << error << '\n';
      return;
    }
    EXPECT_EQ(names(found_), names(expected_)) << path_;
    for (const auto& [name, error] : found_) {
      const auto line = expected_.find(name);
      EXPECT_EQ(error, line == expected_.end() ? "" : line->second) << name;
      EXPECT_TRUE(error == accepted || !name.starts_with("good")) << name << ": " << error;
    }
  }

 private:
  static std::set<std::string> names(const std::map<std::string, std::string>& lines) {
    std::set<std::string> names;
    for (const auto& [name, error] : lines) names.insert(name);
    return names;
  }

  fs::path path_;
  std::map<std::string, std::string> expected_, found_;
};

// The files of a kind, those that its make.py made.
inline std::vector<fs::path> files_of(const std::string& kind) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_of_tests / kind))
    if (const auto ending = entry.path().extension(); ending != ".py" && ending != ".tsv")
      files.push_back(entry.path());
  return files;
}

}  // namespace pom::hostile
