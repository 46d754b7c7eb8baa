// Fuzzes the body of /pom/v1/reproduce, as JSON and as a PNG whose text says what made it.
#include "tests/fuzz/serve_api.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Serving& serving = fuzz::Serving::the();
  const std::string_view body = fuzz::text_of(data, size);
  serving.leave(serving.ask("POST", "/pom/v1/reproduce", body));
  serving.leave(serving.ask("POST", "/pom/v1/reproduce", body, {{"Content-Type", "image/png"}}));
  return 0;
}
