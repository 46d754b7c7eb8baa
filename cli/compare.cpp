#include "cli/compare.h"

#include <algorithm>
#include <cstdlib>

#include "pom/base/error.h"
#include "pom/io/clip.h"

namespace pom::cli {
namespace {

std::string shape_text(const io::Image& image) {
  return detail::concat(image.width, "x", image.height, " with ", image.channels, " channels of ", image.bits,
                        " bits");
}

}  // namespace

std::string Difference::text() const {
  if (!shape.empty()) return shape;
  const bool clip = of_frames != 1;
  if (pixels == 0)
    return clip ? detail::concat("the pixels of all ", of_frames, " frames agree") : "the pixels agree";
  return detail::concat(clip ? detail::concat(frames, " of ", of_frames, " frames differ: ") : "", pixels,
                        " of ", all, " pixels differ, by at most ", largest,
                        largest == 1 ? " grey level" : " grey levels");
}

Difference compare(const io::Image& before, const io::Image& now) {
  Difference difference;
  difference.all = std::int64_t{before.width} * before.height;
  if (before.width != now.width || before.height != now.height || before.channels != now.channels ||
      before.bits != now.bits) {
    difference.shape = detail::concat("the images differ in size or kind: ", shape_text(before), " before, ",
                                      shape_text(now), " now");
    return difference;
  }
  const std::size_t step = before.pixel_bytes();
  for (std::size_t at = 0; at < before.data.size(); at += step) {
    int largest = 0;
    for (std::size_t i = at; i < at + step; ++i)
      largest = std::max(largest, std::abs(before.data[i] - now.data[i]));
    difference.pixels += largest > 0;
    difference.largest = std::max(difference.largest, largest);
  }
  difference.frames = difference.pixels > 0;
  return difference;
}

Difference compare_clips(const std::filesystem::path& before, const std::filesystem::path& now) {
  io::ClipReader first(before), second(now);
  Difference all;
  all.of_frames = 0;
  io::Image a, b;
  while (true) {
    const bool more = first.next(a), also = second.next(b);
    if (!more && !also) return all;
    ++all.of_frames;
    if (more != also) {
      all.shape =
          detail::concat("the clips differ in length: one of them ends after ", all.of_frames - 1, " frames");
      return all;
    }
    const Difference one = compare(a, b);
    if (!one.shape.empty()) return one;
    all.pixels += one.pixels, all.all += one.all, all.frames += one.frames;
    all.largest = std::max(all.largest, one.largest);
  }
}

ClipShape clip_shape(const std::filesystem::path& clip) {
  io::ClipReader reader(clip);
  ClipShape shape;
  for (io::Image frame; reader.next(frame); ++shape.frames)
    shape.width = frame.width, shape.height = frame.height;
  return shape;
}

}  // namespace pom::cli
