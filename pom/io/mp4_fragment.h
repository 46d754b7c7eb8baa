// The time at which a fragment of an .mp4 begins (the box moof/traf/tfdt), in the units of its track: whoever
// comes late to a stream gets the fragments of the others, from 0 on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pom::io {

// Nothing where the bytes are no fragment.
std::optional<std::uint64_t> fragment_time(std::string_view fragment);
// False, and nothing done, where they are none or the time does not fit.
bool set_fragment_time(std::string& fragment, std::uint64_t time);

}  // namespace pom::io
