// Data sets in files: one folder for each class, one file for each example, in the order of their names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pom/data/dataset.h"

namespace pom::data {

// The same examples as training sees them and as validation does: with and without what chance does to them.
struct FileSets {
  std::shared_ptr<const Dataset> training, validation;
};

// Pixels of a picture in a data set; one with more is broken. Each worker decodes one at a time, and a file
// of a few kilobytes can claim them.
inline constexpr std::int64_t max_data_pixels = std::int64_t{1} << 26;

// Pictures: .png, .jpg, .jpeg in any case. Brought to the size by resize.h; grey and alpha become RGB.
FileSets open_picture_folder(const DataConfig& config, std::uint64_t seed);

// Latents: .safetensors with `mean` (C, h, w) and perhaps `std` of the same shape. Training sees
// mean + std·normal, validation the mean. The size of the config is not looked at: the files have one.
FileSets open_latents(const DataConfig& config, std::uint64_t seed);

const std::vector<std::string_view>& picture_endings();
const std::vector<std::string_view>& latent_endings();

// What lies in a folder: paths are under `root`, classes are sorted.
struct FileTree {
  std::filesystem::path root;
  std::vector<std::string> classes;
  struct Entry {
    std::string path;  // "cat/tabby.png"
    std::int64_t label;
  };
  std::vector<Entry> files;

  std::filesystem::path path_of(std::int64_t index) const;
};

// Finds files with one of these endings (".png", in any case) one level below the folders of the classes.
// Hidden ones (with a dot) and links that lead nowhere are passed over; a class without files is an error.
FileTree find_files(const std::string& root, const std::vector<std::string_view>& endings,
                    std::string_view what);

}  // namespace pom::data
