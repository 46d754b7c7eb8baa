// What a request may say, as JSON Schema: made from the declared fields, so that a new option is one line.
#pragma once

#include "pom/serve/queue.h"

namespace pom::serve {

// Of what a job or, with `live`, a stream of this model may say.
Json request_schema(const Backend& backend, std::size_t model, const QueueLimits& limits, bool live = false);

// Steps of a stream that does not say how many, at most: time is short there.
inline constexpr std::int64_t most_usual_live_steps = 24;

// A request of what is left in an object when a route has taken its own fields out. Fields that name files of
// this machine, and those that mean nothing to this model, are not there. Throws ApiError.
generate::Request request_of(const Json& object, const ModelInfo& model);

}  // namespace pom::serve
