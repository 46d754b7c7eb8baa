#include "pom/io/sheet.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pom/base/error.h"
#include "pom/io/font.h"

namespace pom::io {
namespace {

constexpr int legible = 96;  // pixels that the longer side of a small picture shall have at least

// Where everything goes, in pixels of the sheet. 64 bits: make_image is who refuses what is too large.
struct Layout {
  std::int64_t columns, rows;
  std::int64_t cell_width, cell_height;  // of the largest picture, magnified
  std::int64_t padding;
  std::int64_t label_height;     // under each picture, 0 without labels
  std::int64_t row_label_width;  // left of all, with the padding after it
  int scale, text_scale;

  std::int64_t width() const { return row_label_width + padding + columns * (cell_width + padding); }
  std::int64_t height() const { return padding + rows * (cell_height + label_height + padding); }
  std::int64_t left(std::int64_t column) const {
    return row_label_width + padding + column * (cell_width + padding);
  }
  std::int64_t top(std::int64_t row) const { return padding + row * (cell_height + label_height + padding); }
};

void check_options(std::span<const Image> pictures, const SheetOptions& options) {
  check(!pictures.empty(), "make_sheet: pictures: expected one or more, got none");
  for (const Image& picture : pictures) check_image("make_sheet: pictures", picture);
  const auto limited = [](int value, const char* name) {
    check(value >= 0 && value <= 4096, "make_sheet: ", name, ": expected 0 (automatic) to 4096, got ", value);
  };
  check(options.columns >= 0, "make_sheet: columns: expected 0 (automatic) or more, got ", options.columns);
  limited(options.padding, "padding");
  limited(options.scale, "scale");
  limited(options.text_scale, "text_scale");
  check(options.label_lines >= 1 && options.label_lines <= 64,
        "make_sheet: label_lines: expected 1 to 64, got ", options.label_lines);
  check(options.labels.empty() || options.labels.size() == pictures.size(),
        "make_sheet: labels: expected none or one for each of ", pictures.size(), " images, got ",
        options.labels.size());
}

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// The count whose sheet is nearest to a square; of equals the wider.
std::int64_t near_square(std::int64_t count, std::int64_t cell_width, std::int64_t cell_height) {
  std::int64_t best = 1;
  double least = INFINITY;
  for (std::int64_t columns = 1; columns <= std::min<std::int64_t>(count, 4096); ++columns) {
    const std::int64_t rows = ceil_divide(count, columns);
    const double ratio = static_cast<double>(columns * cell_width) / static_cast<double>(rows * cell_height);
    const double distance = std::abs(std::log(ratio));
    if (distance <= least) best = columns, least = distance;
  }
  return ceil_divide(count, ceil_divide(count, best));  // no column without a picture
}

std::int64_t widest(const std::vector<std::string>& texts, int scale) {
  std::int64_t width = 0;
  for (const std::string& text : texts) width = std::max<std::int64_t>(width, text_width(text, scale));
  return width;
}

Layout plan(std::span<const Image> pictures, const SheetOptions& options) {
  int width = 0, height = 0;
  for (const Image& picture : pictures) {
    width = std::max(width, picture.width);
    height = std::max(height, picture.height);
  }
  Layout layout = {};
  layout.scale =
      options.scale > 0
          ? options.scale
          : static_cast<int>(std::max<std::int64_t>(ceil_divide(legible, std::max(width, height)), 1));
  layout.cell_width = std::int64_t{width} * layout.scale;
  layout.cell_height = std::int64_t{height} * layout.scale;
  const std::int64_t side = std::min(layout.cell_width, layout.cell_height);
  layout.text_scale = options.text_scale > 0
                          ? options.text_scale
                          : static_cast<int>(std::clamp<std::int64_t>((side + 64) / 128, 1, 8));
  layout.padding = options.padding > 0 ? options.padding : std::clamp<std::int64_t>(side / 12, 4, 32);
  if (!options.labels.empty())
    layout.label_height = (font_height * options.label_lines + options.label_lines + 4) * layout.text_scale;
  if (!options.row_labels.empty())
    layout.row_label_width = layout.padding + std::min(widest(options.row_labels, layout.text_scale),
                                                       std::max<std::int64_t>(2 * layout.cell_width, 200));
  const auto count = static_cast<std::int64_t>(pictures.size());
  layout.columns = options.columns > 0
                       ? std::min<std::int64_t>(options.columns, count)
                       : near_square(count, layout.cell_width, layout.cell_height + layout.label_height);
  layout.rows = ceil_divide(count, layout.columns);
  return layout;
}

void fill(Image& image, Rgb colour) {
  for (std::size_t i = 0; i < image.data.size(); i += 3) {
    image.data[i] = colour.red;
    image.data[i + 1] = colour.green;
    image.data[i + 2] = colour.blue;
  }
}

// Magnifies a row once and copies it for the rest of its pixels' height.
void paste(Image& sheet, const Image& picture, std::int64_t left, std::int64_t top, int scale) {
  const auto factor = static_cast<std::size_t>(scale);
  const std::size_t bytes = picture.row_bytes() * factor;
  for (int y = 0; y < picture.height; ++y) {
    const std::uint8_t* from = picture.row(y).data();
    const int first = static_cast<int>(top) + y * scale;
    std::uint8_t* into = sheet.row(first).data() + 3 * static_cast<std::size_t>(left);
    for (std::size_t x = 0; x < static_cast<std::size_t>(picture.width); ++x)
      for (std::size_t i = 0; i < factor; ++i) std::memcpy(into + 3 * (x * factor + i), from + 3 * x, 3);
    for (int i = 1; i < scale; ++i)
      std::memcpy(sheet.row(first + i).data() + 3 * static_cast<std::size_t>(left), into, bytes);
  }
}

Rgb text_colour(Rgb background) {
  const int light = 299 * background.red + 587 * background.green + 114 * background.blue;
  return light >= 128'000 ? Rgb{48, 48, 52} : Rgb{224, 224, 228};
}

// As many words as fit, and at least one, are taken from the beginning of `text`.
std::string take_line(std::string& text, int room, int scale) {
  std::size_t end = text.find(' ');
  for (std::size_t next = end; next != std::string::npos;) {
    next = text.find(' ', next + 1);
    if (text_width(text.substr(0, next), scale) > room) break;
    end = next;
  }
  std::string line = text.substr(0, end);
  text.erase(0, end == std::string::npos ? end : end + 1);
  return line;
}

void draw_label(Image& sheet, const Layout& layout, std::int64_t left, std::int64_t top, std::string label,
                int lines, Rgb colour) {
  // A little into the padding on both sides: neighbours still stand apart.
  const auto room = static_cast<int>(layout.cell_width + layout.padding / 2);
  std::int64_t y = top + layout.cell_height + 4 * layout.text_scale;
  for (int i = 0; i < lines && !label.empty(); ++i, y += (font_height + 1) * layout.text_scale) {
    const std::string line = i + 1 < lines ? take_line(label, room, layout.text_scale) : label;
    const std::string text = fit_text(line, room, layout.text_scale);
    const std::int64_t x = left + (layout.cell_width - text_width(text, layout.text_scale)) / 2;
    draw_text(sheet, static_cast<int>(x), static_cast<int>(y), text, colour, layout.text_scale);
  }
}

void draw_row_label(Image& sheet, const Layout& layout, std::int64_t row, const std::string& label,
                    Rgb colour) {
  const std::int64_t room = layout.row_label_width - layout.padding;
  const std::string text = fit_text(label, static_cast<int>(room), layout.text_scale);
  const std::int64_t x = layout.row_label_width - text_width(text, layout.text_scale);
  const std::int64_t y = layout.top(row) + (layout.cell_height - font_ascent * layout.text_scale) / 2;
  draw_text(sheet, static_cast<int>(x), static_cast<int>(y), text, colour, layout.text_scale);
}

}  // namespace

Image make_sheet(std::span<const Image> pictures, const SheetOptions& options) {
  check_options(pictures, options);
  const Layout layout = plan(pictures, options);
  check(options.row_labels.empty() || static_cast<std::int64_t>(options.row_labels.size()) == layout.rows,
        "make_sheet: row_labels: expected none or one for each of ", layout.rows, " rows, got ",
        options.row_labels.size());
  Image sheet = make_image("make_sheet", layout.width(), layout.height(), 3);
  fill(sheet, options.background);
  const Rgb ink = text_colour(options.background);
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const Image picture = to_rgb8(pictures[i], options.background);
    const auto index = static_cast<std::int64_t>(i);
    const std::int64_t left = layout.left(index % layout.columns), top = layout.top(index / layout.columns);
    paste(sheet, picture, left + (layout.cell_width - std::int64_t{picture.width} * layout.scale) / 2,
          top + (layout.cell_height - std::int64_t{picture.height} * layout.scale) / 2, layout.scale);
    if (!options.labels.empty())
      draw_label(sheet, layout, left, top, options.labels[i], options.label_lines, ink);
  }
  for (std::size_t row = 0; row < options.row_labels.size(); ++row)
    draw_row_label(sheet, layout, static_cast<std::int64_t>(row), options.row_labels[row], ink);
  return sheet;
}

}  // namespace pom::io
