// Where a network runs, as a person says it: cpu, cuda, cuda:N, or auto (a GPU where there is one).
#pragma once

#include <string_view>

#include <c10/core/Device.h>

#include "pom/base/fields.h"

namespace pom::generate {

// The one declaration of `device`, for the options of every command that has it.
Field device_field(std::string_view group);

// Throws pom::Error that begins with `operation` for any other text, and for a GPU that this build of torch
// or this machine does not have. A GPU has its number in the result.
c10::Device device_named(std::string_view text, std::string_view operation);

}  // namespace pom::generate
