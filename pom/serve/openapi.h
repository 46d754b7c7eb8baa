// The interface as an OpenAPI 3.1 document, made from the table of routes and the declared fields.
#pragma once

#include "pom/net/router.h"
#include "pom/serve/schema.h"

namespace pom::serve {

Json openapi(const net::Router& router, const Backend& backend, const QueueLimits& limits);

}  // namespace pom::serve
