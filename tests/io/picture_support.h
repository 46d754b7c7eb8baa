// What the tests of pictures share: a folder of their own, pictures that no mirror or shift leaves alone, and
// errors.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <span>
#include <string>
#include <vector>

#include "pom/base/error.h"
#include "pom/io/image.h"

namespace pom::io {

inline const std::filesystem::path tests_folder = POM_TESTS_FOLDER;

// Each sample a hash of its place, so that all bits of 16 are used and nothing is where something else was.
inline Image noisy_image(int width, int height, int channels, int bits) {
  Image image = make_image("test", width, height, channels, bits);
  std::uint32_t state = 12345u + static_cast<std::uint32_t>(width * 7 + channels);
  for (std::uint8_t& byte : image.data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  return image;
}

// Flat 8-bit colour.
inline Image flat_image(int width, int height, std::vector<std::uint8_t> pixel) {
  Image image = make_image("test", width, height, static_cast<int>(pixel.size()));
  for (std::size_t i = 0; i < image.data.size(); ++i) image.data[i] = pixel[i % pixel.size()];
  return image;
}

inline std::vector<std::uint8_t> pixel_at(const Image& image, int x, int y) {
  const auto row =
      image.row(y).subspan(static_cast<std::size_t>(x) * image.pixel_bytes(), image.pixel_bytes());
  return {row.begin(), row.end()};
}

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The message of the pom::Error that the action must throw; it has these parts.
template <class Action>
std::string error_of(Action action, std::initializer_list<std::string> parts = {}) {
  std::string message;
  try {
    action();
    ADD_FAILURE() << "no pom::Error was thrown";
  } catch (const Error& error) {
    message = error.what();
  }
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
  return message;
}

class PictureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "pom-pictures-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::size_t files() const {
    const std::filesystem::directory_iterator begin(folder);
    return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
  }

  std::filesystem::path folder;
};

}  // namespace pom::io
