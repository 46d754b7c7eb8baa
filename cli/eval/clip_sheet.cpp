#include "cli/eval/clip_sheet.h"

#include <algorithm>
#include <sstream>

#include "cli/output_names.h"
#include "pom/io/font.h"
#include "pom/io/picture.h"
#include "pom/io/sheet.h"

namespace pom::cli {
namespace {

// (3, F, H, W) of a frame -> its picture.
io::Image frame_image(const at::Tensor& clip, std::int64_t frame) {
  const at::Tensor pixels = clip.select(1, frame).permute({1, 2, 0}).contiguous();
  io::Image image = io::make_image("eval", pixels.size(1), pixels.size(0), 3);
  std::copy_n(pixels.const_data_ptr<std::uint8_t>(), pixels.numel(), image.data.begin());
  return image;
}

// A caption over the frames of a row, as many words under each as there is room for.
std::vector<std::string> spread_words(const std::string& caption, std::size_t cells, int room) {
  std::vector<std::string> texts(cells);
  std::istringstream words(caption);
  std::size_t cell = 0;
  for (std::string word; words >> word;) {
    const std::string longer = texts[cell].empty() ? word : texts[cell] + " " + word;
    if (!texts[cell].empty() && io::text_width(longer) > room && cell + 1 < cells)
      texts[++cell] = word;
    else
      texts[cell] = longer;
  }
  return texts;
}

}  // namespace

void ClipSheet::add(const at::Tensor& clip, std::int64_t most_columns, const std::string& caption,
                    const std::string& row_label) {
  constexpr int room = 96;
  const std::int64_t columns = std::min(most_columns, (clip.size(1) + 1) / 2);
  for (std::int64_t c = 0; c < columns; ++c) shown_.push_back(frame_image(clip, 2 * c));
  for (std::string& text : spread_words(caption, static_cast<std::size_t>(columns), room))
    labels_.push_back(std::move(text));
  row_labels_.push_back(row_label);
}

void ClipSheet::write(const std::filesystem::path& path) const {
  io::SheetOptions sheet;
  sheet.columns = static_cast<int>(shown_.size() / row_labels_.size());
  sheet.labels = labels_;
  sheet.row_labels = row_labels_;
  make_folder_of(path);
  io::write_picture(path, io::make_sheet(shown_, sheet), {});
}

std::string what_is_wrong(const eval::SpriteAgreement& agreement) {
  std::string wrong;
  const auto deny = [&](bool right, const char* name) {
    if (!right) wrong += (wrong.empty() ? " (not " : ", ") + std::string(name);
  };
  deny(agreement.kind, "shape"), deny(agreement.hue, "colour"), deny(agreement.direction, "direction");
  return wrong.empty() ? wrong : wrong + ")";
}

}  // namespace pom::cli
