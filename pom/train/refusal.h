// What was asked for does not go with the recipe, the data, the folder or the checkpoint: a person's mistake,
// found before anything was written. Other errors are of the work itself.
#pragma once

#include "pom/base/error.h"

namespace pom::train {

class Refusal : public Error {
 public:
  using Error::Error;
};

// As pom::check.
template <class... Parts>
void refuse_unless(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw Refusal(detail::concat(parts...));
}

}  // namespace pom::train
