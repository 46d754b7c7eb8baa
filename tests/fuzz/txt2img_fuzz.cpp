// Fuzzes the bodies of Automatic1111's routes: txt2img, options, png-info, interrupt.
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/serve_api.h"

#include "pom/net/base64.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Serving& serving = fuzz::Serving::the();
  const std::string_view body = fuzz::text_of(data, size);
  const fuzz::Answer answer = serving.ask("POST", "/sdapi/v1/txt2img", body);
  serving.ask("GET", "/sdapi/v1/progress");
  serving.ask("POST", "/sdapi/v1/interrupt", body);
  serving.leave(answer);
  serving.ask("POST", "/sdapi/v1/options", body);
  serving.ask("GET", "/sdapi/v1/options");
  serving.ask("POST", "/sdapi/v1/png-info", body);
  const pom::serve::Json picture = {{"image", pom::net::base64_encode(body)}};
  serving.ask("POST", "/sdapi/v1/png-info", picture.dump());
  return 0;
}
