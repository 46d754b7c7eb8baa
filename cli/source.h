// What a file says about itself: what made the image or clip and, of a sheet, the request of the whole run.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pom/generate/metadata.h"

namespace pom::cli {

struct Source {
  generate::Origin origin;                 // of the image or clip, or of the first one of a sheet
  std::optional<generate::Request> sheet;  // of the run, where it is a sheet

  const generate::Request& request() const { return sheet ? *sheet : origin.request; }
};

// Throws pom::Error that says why where the file does not tell.
Source read_source(const std::string& file);

// Turns the text of a sheet's first image into that of the sheet: what other programs read (`parameters`)
// says how many images it shows, and the request of the run is added.
void describe_sheet(std::vector<io::TextEntry>& text, const generate::Request& run,
                    std::span<const generate::Request> items);

}  // namespace pom::cli
