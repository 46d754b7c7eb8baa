// The labelled sheet of a run, the same whenever it is made of the same requests.
#pragma once

#include <span>

#include "pom/generate/engine.h"

namespace pom::cli {

// Rows of one class each where there are several classes and several pictures of each; else near square.
// Labels are the class names, or the seeds where all pictures of a row are of one class.
io::Image sheet_of(std::span<const generate::Picture> pictures);

// The settings of a run's pictures, with its classes and its count: what makes the whole sheet again.
generate::Request run_request(const generate::Request& asked, const generate::Request& first);

}  // namespace pom::cli
