// What a PNG says about itself: what made the picture and, of a sheet, the request of the whole run.
#pragma once

#include <optional>
#include <string>

#include "pom/generate/metadata.h"

namespace pom::cli {

struct Source {
  generate::Origin origin;                 // of the picture, or of the first one of a sheet
  std::optional<generate::Request> sheet;  // of the run, where it is a sheet

  const generate::Request& request() const { return sheet ? *sheet : origin.request; }
};

// Throws pom::Error that says why where the picture does not tell.
Source read_source(const std::string& picture);

// The text in which a sheet carries the request of its run.
io::TextEntry sheet_entry(const generate::Request& run);

}  // namespace pom::cli
