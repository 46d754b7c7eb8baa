// Fuzzes the bodies of /pom/v1/jobs and /pom/v1/forecast.
#include "tests/fuzz/serve_api.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Serving& serving = fuzz::Serving::the();
  const std::string_view body = fuzz::text_of(data, size);
  const fuzz::Answer forecast = serving.ask("POST", "/pom/v1/forecast", body);
  const fuzz::Answer job = serving.ask("POST", "/pom/v1/jobs", body, {{"Idempotency-Key", "fuzz"}});
  fuzz::require((forecast.status == 200) == (job.status == 202) || job.status == 409,
                "what can be forecast can be made");
  serving.leave(job);
  return 0;
}
