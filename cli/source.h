// What a PNG says about itself: what made the picture and, of a sheet, the request of the whole run.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pom/generate/metadata.h"

namespace pom::cli {

struct Source {
  generate::Origin origin;                 // of the picture, or of the first one of a sheet
  std::optional<generate::Request> sheet;  // of the run, where it is a sheet

  const generate::Request& request() const { return sheet ? *sheet : origin.request; }
};

// Throws pom::Error that says why where the picture does not tell.
Source read_source(const std::string& picture);

// Turns the text of a sheet's first picture into that of the sheet: what other programs read (`parameters`)
// says how many pictures it shows, and the request of the run is added.
void describe_sheet(std::vector<io::TextEntry>& text, const generate::Request& run,
                    std::span<const generate::Request> pictures);

}  // namespace pom::cli
