#include "cli/sprite_files.h"

#include <cstdio>
#include <vector>

#include "cli/output_names.h"
#include "pom/io/atomic_file.h"
#include "pom/io/clip.h"
#include "pom/io/image.h"

namespace pom::cli {
namespace {

std::string clip_name(std::int64_t index) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%06lld", static_cast<long long>(index));
  return digits + sprite_ending();
}

// Frame `f` of planes (3, F, H, W).
io::Image frame_of(const std::vector<std::uint8_t>& planes, const data::ClipFormat& format, std::int64_t f) {
  io::Image image = io::make_image("dataset", format.width, format.height, 3);
  const std::int64_t pixels = format.width * format.height;
  for (std::int64_t c = 0; c < 3; ++c)
    for (std::int64_t i = 0; i < pixels; ++i)
      image.data[static_cast<std::size_t>(3 * i + c)] =
          planes[static_cast<std::size_t>((c * format.frames + f) * pixels + i)];
  return image;
}

void write_clip(const std::filesystem::path& path, const data::SpriteClip& clip,
                const data::ClipFormat& format) {
  std::vector<std::uint8_t> planes(
      static_cast<std::size_t>(3 * format.frames * format.width * format.height));
  data::draw_clip(clip, format, planes);
  const auto writer = io::open_clip(path, {.width = static_cast<int>(format.width),
                                           .height = static_cast<int>(format.height),
                                           .fps = format.fps,
                                           .quality = 100});
  for (std::int64_t f = 0; f < format.frames; ++f) writer->add(frame_of(planes, format, f));
  writer->finish();
}

}  // namespace

std::string sprite_ending() {
  return io::clip_libraries().empty() ? ".gif" : ".mp4";
}

std::int64_t write_sprites(const SpriteFiles& files, const std::atomic<bool>& stop,
                           const std::function<void(std::int64_t done)>& on_clip) {
  std::string captions = "file,caption\n";
  std::int64_t done = 0;
  while (done < files.count && !stop) {
    const data::SpriteClip clip = data::sprite_clip_at({}, files.seed, done);
    const std::filesystem::path path = files.folder / clip_name(done);
    make_folder_of(path);
    write_clip(path, clip, files.format);
    captions += path.filename().string() + ",\"" + data::caption_of(clip) + "\"\n";  // which has no quotes
    on_clip(++done);
  }
  const std::filesystem::path list = files.folder / captions_file;
  make_folder_of(list);
  io::write_file_atomically(list, captions);
  return done;
}

}  // namespace pom::cli
