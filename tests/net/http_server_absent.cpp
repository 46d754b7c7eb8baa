// Of a build without Boost's headers: it says what to install.
#include <gtest/gtest.h>

#include "pom/base/error.h"
#include "pom/net/http_server.h"

namespace pom::net {
namespace {

TEST(HttpServerAbsent, NamesThePackage) {
  EXPECT_FALSE(has_http_server());
  try {
    HttpServer server({}, [](const std::shared_ptr<Exchange>&) {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "http server: this libpom was built without it: install libboost-dev and build it again");
  }
}

}  // namespace
}  // namespace pom::net
