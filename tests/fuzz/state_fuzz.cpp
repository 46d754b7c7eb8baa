// Fuzzes what is read of a stream's file before any tensor is: its header, and the request, prompt and rate
// within it.
#include "tests/fuzz/fuzz.h"
#include <cstdint>

#include "pom/generate/clip_request.h"

namespace {

using namespace pom::generate;

void parse(fuzz::Bytes bytes) {
  static fuzz::MemoryFile file;
  ModelConfig config;
  config.network.kind = "vdipom";
  config.sample.size = {32, 32};
  ClipRequest clip;
  clip.continue_from = file.put(bytes).string();
  ClipJob job;
  if (!fuzz::accepted([&] { job = resolve_clip(clip, {}, config, 1, 2); })) return;
  fuzz::require(job.fps > 0 && job.fps <= 1000 && job.frames > 0, "a job that can be done");
  fuzz::require(job.request.steps && job.request.width && job.request.height, "a complete request");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::Bytes bytes = std::as_bytes(std::span(data, size));
  parse(bytes);
  if (size > 8) parse(fuzz::with_whole_header(bytes));
  return 0;
}
