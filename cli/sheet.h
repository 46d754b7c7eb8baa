// The labelled sheet of a run, the same whenever it is made of the same requests.
#pragma once

#include <span>

#include "pom/generate/engine.h"

namespace pom::cli {

// An image of each item. Where there are several classes or prompts and several images of each: rows of one,
// labelled with the seeds, or, of more subjects than images and not too many, columns, labelled with both.
// Else near square.
io::Image sheet_of(std::span<const io::Image> images, std::span<const generate::Request> items);

// The settings of a run's items, with its classes or prompts, its seeds and its count: what makes the whole
// sheet again.
generate::Request run_request(const generate::Request& asked, const generate::Job& job);

}  // namespace pom::cli
