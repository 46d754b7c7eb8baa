// Contact sheets: pictures side by side on one ground, with words under them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "pom/io/image.h"

namespace pom::io {

struct SheetOptions {
  int columns = 0;                      // 0: so many that the sheet is near square
  std::vector<std::string> labels;      // under the pictures: none, or one for each (which may be empty)
  int label_lines = 1;                  // that a label may take, broken between words
  std::vector<std::string> row_labels;  // left of the rows: none, or one for each
  int padding = 0;      // pixels between pictures and around them; 0: by the size of the pictures
  int scale = 0;        // each pixel becomes scale x scale; 0: the least that makes them 96 pixels
  int text_scale = 0;   // likewise for the words; 0: by the size of the pictures
  Rgb background = {};  // words are dark on a light one and light on a dark one
};

// An 8-bit RGB picture. Pictures of several sizes stand in the middle of cells as large as the largest;
// labels that are too long for a cell end in "...". Alpha lets the background through.
Image make_sheet(std::span<const Image> pictures, const SheetOptions& options = {});

}  // namespace pom::io
