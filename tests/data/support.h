// What tests of data share: a folder of their own, files in it, errors as text, bytes of tensors.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/base/error.h"

namespace pom::data {

namespace fs = std::filesystem;

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-data-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  // A file under the folder, with the folders that lead to it.
  fs::path put(const std::string& name, const std::string& text) {
    const fs::path path = folder / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  fs::path folder;
};

// The message of the pom::Error that the action must throw.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no pom::Error was thrown";
  return {};
}

inline std::vector<std::uint8_t> bytes_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  const auto* data = static_cast<const std::uint8_t*>(whole.data_ptr());
  return {data, data + whole.nbytes()};
}

}  // namespace pom::data
