// The labelled sheet of a run, the same whenever it is made of the same requests.
#pragma once

#include <span>

#include "pom/generate/engine.h"

namespace pom::cli {

// Where there are several classes and several pictures of each: rows of one class, labelled with the seeds,
// or, of more classes than pictures and not too many, columns, labelled with both. Else near square.
io::Image sheet_of(std::span<const generate::Picture> pictures);

// The settings of a run's pictures, with its classes and its count: what makes the whole sheet again.
generate::Request run_request(const generate::Request& asked, const generate::Request& first);

}  // namespace pom::cli
