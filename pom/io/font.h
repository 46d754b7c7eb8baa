// A small font of pixels for labels: the printable characters of ASCII, each as wide as it needs.
#pragma once

#include <string>
#include <string_view>

#include "pom/io/image.h"

namespace pom::io {

// At scale 1: capitals stand on the seventh row from the top; two more are for the tails of g and y.
inline constexpr int font_height = 9;
inline constexpr int font_ascent = 7;

// In pixels, without the gap after the last character. Text is UTF-8; what the font lacks is a box.
int text_width(std::string_view text, int scale = 1);

// The text, or as much of its beginning as fits into the width with "..." after it.
std::string fit_text(std::string_view text, int width, int scale = 1);

// Draws into an 8-bit RGB picture, with the top left corner of the text at (x, y). What is outside is cut
// off.
void draw_text(Image& image, int x, int y, std::string_view text, Rgb colour, int scale = 1);

}  // namespace pom::io
