// Fuzzes what is read of a stream's file before any tensor is: its header, and the request, prompt and rate
// within it.
#include "tests/fuzz/fuzz.h"
#include <cstdint>

#include "pom/generate/job.h"

namespace {

using namespace pom::generate;

void parse(fuzz::Bytes bytes) {
  static fuzz::MemoryFile file;
  ModelConfig config;
  config.network.kind = "vdipom";
  config.sample.size = {32, 32};
  Request request;
  request.continue_from = file.put(bytes).string();
  Job job;
  if (!fuzz::accepted([&] { job = resolve(request, config, {.factor = 1, .block_frames = 2}); })) return;
  fuzz::require(job.fps > 0 && job.fps <= 1000 && job.frames > 0, "a job that can be done");
  fuzz::require(job.first().steps && job.first().width && job.first().height, "a complete request");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::Bytes bytes = std::as_bytes(std::span(data, size));
  parse(bytes);
  if (size > 8) parse(fuzz::with_whole_header(bytes));
  return 0;
}
