// Places where a test may end the process or make a call fail: the only honest test of what survives a crash.
// Off, and no more than a load of a pointer, unless POM_FAILPOINT names one before the program starts:
//
//   POM_FAILPOINT=atomic_file.rename:3        the third time, kill -9 this very process
//   POM_FAILPOINT=atomic_file.write:1:ENOSPC  the first time, the call fails with that errno (or its number)
//   POM_FAILPOINT=a:1:EINVAL,b:2              several, each of its own count
//
// A value of another form is a pom::Error at the first use. A name that no place has never comes: who kills
// has to see that the process died.
#pragma once

#include <string_view>

namespace pom {

// Returns 0, or the errno with which the caller should fail; or does not return. From any thread.
int failpoint(std::string_view name);

// Whether POM_FAILPOINT names this place: for callers who would first do half of their work.
bool failpoint_is_set(std::string_view name);

}  // namespace pom
