// Fuzzes the bodies of /pom/v1/jobs and /pom/v1/forecast.
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/serve_api.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Serving& serving = fuzz::Serving::the();
  const std::string_view body = fuzz::text_of(data, size);
  const fuzz::Answer forecast = serving.ask("POST", "/pom/v1/forecast", body);
  static std::uint64_t number = 0;
  const std::vector<std::pair<std::string, std::string>> key = {
      {"Idempotency-Key", std::to_string(++number)}};
  const fuzz::Answer job = serving.ask("POST", "/pom/v1/jobs", body, key);
  fuzz::require((forecast.status == 200) == (job.status == 202), "what can be forecast can be made");
  const fuzz::Answer again = serving.ask("POST", "/pom/v1/jobs", body, key);
  fuzz::require(again.status == job.status, "the same key and the same body: the same answer");
  serving.leave(job);
  return 0;
}
