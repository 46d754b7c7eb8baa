#include "cli/eval/scene_sheet.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "pom/eval/shapes_eval.h"
#include "pom/io/font.h"
#include "pom/io/sheet.h"

namespace pom::cli {
namespace {

constexpr int cell_side = 192, cell_frame = 3;  // pixels of a picture's longer side, and of its frame
constexpr int cell_lines = 6;                   // of words
constexpr io::Rgb cell_ink{30, 30, 30}, wrong_ink{190, 20, 20};

std::vector<std::string> wrapped_words(const std::string& text, int width) {
  std::vector<std::string> rows;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::string longer = rows.empty() ? word : rows.back() + " " + word;
    if (rows.empty() || io::text_width(longer) > width)
      rows.push_back(word);
    else
      rows.back() = longer;
  }
  return rows;
}

void fill_box(io::Image& image, int x, int y, int width, int height, const io::Rgb& colour) {
  for (int v = y; v < y + height; ++v)
    for (int u = x; u < x + width; ++u) {
      std::uint8_t* pixel = image.data.data() + 3 * (static_cast<std::int64_t>(v) * image.width + u);
      pixel[0] = colour.red, pixel[1] = colour.green, pixel[2] = colour.blue;
    }
}

void put_enlarged(io::Image& cell, const io::Image& picture, int scale) {
  for (std::int64_t y = 0; y < picture.height * scale; ++y)
    for (std::int64_t x = 0; x < picture.width * scale; ++x) {
      const std::uint8_t* from = picture.data.data() + 3 * (y / scale * picture.width + x / scale);
      std::copy_n(from, 3, cell.data.data() + 3 * ((y + cell_frame) * cell.width + x + cell_frame));
    }
}

}  // namespace

std::string scene_verdict_text(const eval::SceneQuestion& question, const eval::SceneVerdict& verdict) {
  const eval::SceneAgreement agreement = eval::compare(question.scene, verdict);
  std::string text;
  const auto deny = [&](bool right, const char* name) {
    if (!right) text += (text.empty() ? "not: " : ", ") + std::string(name);
  };
  deny(agreement.objects, "objects"), deny(agreement.colours, "colours");
  deny(agreement.pairs || !agreement.objects || !agreement.colours, "pairs");
  deny(agreement.relations, "relations"), deny(agreement.count, "count");
  deny(agreement.ground, "ground"), deny(agreement.fits, "fits");
  return text;
}

io::Image scene_cell(const at::Tensor& picture, const eval::SceneQuestion& question,
                     const eval::SceneVerdict& verdict) {
  const io::Image image = eval::unstack_pictures(picture.unsqueeze(0)).front();
  const int scale = std::max(1, cell_side / static_cast<int>(std::max(image.width, image.height)));
  const int width = static_cast<int>(image.width) * scale + 2 * cell_frame,
            height = static_cast<int>(image.height) * scale + 2 * cell_frame;
  const int step = io::font_height + 2;
  io::Image cell = io::make_image("eval", width, height + cell_lines * step, 3);
  const std::string wrong = scene_verdict_text(question, verdict);
  fill_box(cell, 0, 0, width, height + cell_lines * step, {255, 255, 255});
  fill_box(cell, 0, 0, width, height, wrong.empty() ? io::Rgb{255, 255, 255} : wrong_ink);
  put_enlarged(cell, image, scale);
  int y = height + 2;
  for (const std::string& row : wrapped_words(question.caption, width - 2))
    io::draw_text(cell, 1, std::exchange(y, y + step), row, cell_ink);
  for (const std::string& row : wrapped_words(wrong, width - 2))
    io::draw_text(cell, 1, std::exchange(y, y + step), row, wrong_ink);
  return cell;
}

io::Image scene_sheet(const std::vector<io::Image>& cells, int columns) {
  io::SheetOptions options;
  options.columns = columns;
  options.scale = 1;
  options.padding = 6;
  options.background = {255, 255, 255};
  return io::make_sheet(cells, options);
}

}  // namespace pom::cli
