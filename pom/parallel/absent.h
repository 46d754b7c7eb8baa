// After a collective has failed: who is no longer there, and what it said before it left. A note goes through
// the store of the group, which outlives a rank (under torchrun it belongs to the agent).
#pragma once

#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;
}

namespace pom::parallel {

void leave_note(c10d::ProcessGroup& group, const std::string& why);

// Of these ranks of the group: "rank 2 is gone; " or "rank 2 left: why; ", empty where nothing is known.
// Takes a second or two: all that are left sign, and who has not signed by then is gone.
std::string who_is_absent(c10d::ProcessGroup& group, const std::vector<int>& ranks);

}  // namespace pom::parallel
