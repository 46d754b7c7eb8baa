// The dataset.json of NVIDIA's training code (StyleGAN, EDM, EDM2): {"labels": [["00000/img00000000.png", 6],
// …]}. It has a line for each file, a hundred megabytes of them: it is read as it comes and never kept whole
// as a tree.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace pom::io {

inline constexpr std::uint64_t max_labels_bytes = std::uint64_t{1} << 30;

// Calls `label` for each entry. False where the file has no "labels", or null for them.
bool read_json_labels(std::string_view text, std::string_view source,
                      const std::function<void(std::string& name, std::int64_t label)>& label);
std::string read_labels_text(const std::filesystem::path& path);

}  // namespace pom::io
