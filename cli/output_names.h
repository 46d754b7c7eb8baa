// Where pictures go: -o FILE, PATTERN or FOLDER, turned into one path for each picture and checked before the
// work.
//
//   cat.png            one picture
//   cat_%03d.png       %d, %3d, %03d: the number of the picture, from 0; %% is a percent sign
//   {class}/{seed}.png the item's class (or {prompt}) and seed
//   cats/              a folder (one that is there, or a slash at the end): cats/MODEL_%03d.png
//   nothing            out/{class}_{seed}.png; a sheet is out/MODEL_sheet_{seed}.png
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pom::cli {

struct NamedItem {
  std::string subject;  // its class or prompt
  std::int64_t seed = 0;
};

enum class OutputKind { image, clip };

// One path per item. Throws UsageError where the name is not that of an image (.png, .jpg) or of a clip, the
// pattern makes no sense, or two items would have the same name. A folder of one clip is its own: its frames
// go there.
std::vector<std::filesystem::path> item_names(const std::string& output, std::string_view model,
                                              std::span<const NamedItem> items, OutputKind kind);

// The path of the one sheet of a run that begins with this item.
std::filesystem::path sheet_name(const std::string& output, std::string_view model, const NamedItem& first,
                                 OutputKind kind);

bool is_image_name(const std::filesystem::path& path);  // .png, .jpg or .jpeg, in any case

bool is_npz_name(const std::filesystem::path& path);  // .npz, likewise

// Picture `index` of a sheet, where it has to have a file of its own: "sheet_002.png".
std::filesystem::path numbered(const std::filesystem::path& path, std::int64_t index);

// "name.png" after three steps: "name_preview_003.png".
std::filesystem::path preview_name(const std::filesystem::path& path, std::int64_t step);

// A name as part of a file's: no slashes, no spaces, not too long.
std::string file_safe(std::string_view name);

bool is_jpeg(const std::filesystem::path& path);

// Before the work begins: that each name can be a file's, that none is there already (unless `replace`), and
// that each folder, or the nearest one above it that is there, can be written to. Leaves nothing behind.
void check_outputs(std::span<const std::filesystem::path> files, bool replace);

// The same for previews, of which only the first part of the names is known.
void check_previews(std::span<const std::filesystem::path> files, bool replace);

// The folders that lead to the file, where they are missing.
void make_folder_of(const std::filesystem::path& file);

}  // namespace pom::cli
