// Fuzzes the bodies of /pom/v1/streams and of what a stream is told: prompt, pause, fork.
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/serve_api.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Serving& serving = fuzz::Serving::the();
  const std::string_view body = fuzz::text_of(data, size);
  const fuzz::Answer opened = serving.ask("POST", "/pom/v1/streams", body);
  const std::string stream = "/pom/v1/streams/" + serving.stream_id();
  for (const char* what : {"/prompt", "/pause", "/fork"}) serving.ask("POST", stream + what, body);
  serving.ask("GET", stream);
  serving.leave(opened);
  return 0;
}
