// Fuzzes the body of OpenAI's /v1/images/generations.
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/serve_api.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Serving& serving = fuzz::Serving::the();
  const fuzz::Answer answer = serving.ask("POST", "/v1/images/generations", fuzz::text_of(data, size));
  fuzz::require(answer.status == 0 || answer.status == 200 || answer.status >= 400, "waits, or refuses");
  serving.leave(answer);
  return 0;
}
