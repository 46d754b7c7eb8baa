// What this process takes of the machine's memory, and what is left. Zero where the
// system does not say.
#pragma once

#include <cstdint>

namespace pom::generate {

std::int64_t resident_bytes();  // of this process, now
std::int64_t peak_bytes();      // of this process, at its largest so far
// What processes could take without swapping, within the limits of the control group where it has some.
std::int64_t available_bytes();

}  // namespace pom::generate
