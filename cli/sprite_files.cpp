#include "cli/sprite_files.h"

#include <cstdio>

#include "cli/output_names.h"
#include "pom/io/atomic_file.h"
#include "pom/io/clip.h"
#include "pom/io/image.h"
#include "pom/io/picture.h"

namespace pom::cli {
namespace {

std::string file_name(const SpriteFiles& files, std::int64_t index) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%06lld", static_cast<long long>(index));
  return std::string(digits) + (files.pictures() ? ".png" : io::clip_libraries().empty() ? ".gif" : ".mp4");
}

// Frame `f` of planes (3, F, H, W).
io::Image frame_of(const at::Tensor& planes, std::int64_t f) {
  const std::int64_t frames = planes.size(1), height = planes.size(2), width = planes.size(3);
  io::Image image = io::make_image("dataset", width, height, 3);
  const std::int64_t pixels = width * height;
  const auto* bytes = planes.const_data_ptr<std::uint8_t>();
  for (std::int64_t c = 0; c < 3; ++c)
    for (std::int64_t i = 0; i < pixels; ++i)
      image.data[static_cast<std::size_t>(3 * i + c)] = bytes[(c * frames + f) * pixels + i];
  return image;
}

void write_clip(const std::filesystem::path& path, const at::Tensor& planes, double fps) {
  const auto writer = io::open_clip(path, {.width = static_cast<int>(planes.size(3)),
                                           .height = static_cast<int>(planes.size(2)),
                                           .fps = fps,
                                           .quality = 100});
  for (std::int64_t f = 0; f < planes.size(1); ++f) writer->add(frame_of(planes, f));
  writer->finish();
}

}  // namespace

std::int64_t write_sprites(const SpriteFiles& files, const std::atomic<bool>& stop,
                           const std::function<void(std::int64_t done)>& on_clip) {
  const auto examples = data::open_dataset(files.config, files.seed).training;
  std::string captions = "file,caption\n";
  std::int64_t done = 0;
  while (done < files.count && !stop) {
    const data::Example example = examples->get(done, 0);
    const std::filesystem::path path = files.folder / file_name(files, done);
    make_folder_of(path);
    if (files.pictures())
      io::write_picture(path, frame_of(example.picture, 0));
    else
      write_clip(path, example.picture, files.config.fps);
    captions += path.filename().string() + ",\"" + example.caption + "\"\n";  // which has no quotes
    on_clip(++done);
  }
  const std::filesystem::path list = files.folder / captions_file;
  make_folder_of(list);
  io::write_file_atomically(list, captions);
  return done;
}

}  // namespace pom::cli
