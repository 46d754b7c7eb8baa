// Fuzzes the reader of clips. FFmpeg is the system's and counts no coverage: what is looked for is what our
// half does with whatever it hands out. A frame that is given must have the size that was asked for. Text has
// its limits.
#include "tests/fuzz/fuzz.h"
#include <cstdint>

#include "pom/io/clip.h"
#include "pom/io/clip_writers.h"
#include "pom/io/file_text.h"
#include "pom/io/json_header.h"

namespace {

using namespace pom::io;

void read(fuzz::Bytes bytes, const ClipReading& reading) {
  static fuzz::MemoryFile file;
  fuzz::accepted([&] {
    ClipReader reader(file.put(bytes), reading);
    Image frame;
    for (int i = 0; i < 6 && reader.next(frame); ++i) {
      check_image("fuzz", frame);
      fuzz::require(frame.channels == 3, "frames are RGB");
      fuzz::require(frame.width == reading.width && frame.height == reading.height,
                    "frames have the size that was asked for");
    }
  });
}

void read_text(fuzz::Bytes bytes) {
  static fuzz::MemoryFile file;
  fuzz::accepted([&] {
    std::size_t text = 0;
    for (const TextEntry& entry : read_file_text(file.put(bytes))) {
      fuzz::require(detail::find_invalid_utf8(entry.text) == entry.text.size(), "text is UTF-8");
      text += entry.keyword.size() + entry.text.size();
    }
    fuzz::require(text <= max_file_text, "text is no longer than we take");
  });
}

}  // namespace

std::string pom::io::detail::encoder_names() {  // of what writes, which is not linked
  return {};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::Bytes bytes = std::as_bytes(std::span(data, size));
  read(bytes, {.width = 16, .height = 16});
  read(bytes, {.width = 8, .height = 16, .fps = 8, .start = 0.25});
  read_text(bytes);
  return 0;
}
