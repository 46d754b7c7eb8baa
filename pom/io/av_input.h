// Private to the room: a file that FFmpeg reads, opened with care for what strangers put into files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

#include "pom/io/av.h"
#include "pom/io/read_file.h"

namespace pom::io::detail {

// By FFmpeg's names. Decoders of libraries that make frames before they ask are left out.
inline constexpr const char* known_decoders =
    "h264,hevc,libdav1d,av1,vp8,vp9,mpeg1video,mpeg2video,mpegvideo,mpeg4,msmpeg4,msmpeg4v2,mjpeg,gif,"
    "rawvideo,"
    "theora,flv,h263,vp6,vp6f,wmv1,wmv2,wmv3,vc1,prores,dnxhd,dvvideo,ffv1,ffvhuff,huffyuv";
inline constexpr std::int64_t probe_bytes = 1 << 22;  // to find streams in

// Read through our own descriptor; what the file names (a playlist its parts) is not opened, and FFmpeg tries
// none of its many rare formats on it. Of an .y4m the text after its frames is not seen. Errors begin with
// `operation` and the path.
class AvInput {
 public:
  // FFmpeg gets no more than `most` bytes of the file in all, however often it goes back.
  AvInput(const std::filesystem::path& path, std::string_view operation,
          std::int64_t most = std::numeric_limits<std::int64_t>::max());
  ~AvInput();
  AvInput(const AvInput&) = delete;
  AvInput& operator=(const AvInput&) = delete;

  AVFormatContext* format() const { return format_; }
  // "clip read: a.mp4: cannot decode: …" where the code is FFmpeg's for a failure.
  void require(int code, const char* step) const;

 private:
  static int read(void* self, std::uint8_t* data, int size);
  static std::int64_t seek(void* self, std::int64_t offset, int whence);
  std::int64_t size() const;

  FileParts file_;
  std::int64_t left_;        // bytes that may still be given
  std::int64_t frames_end_;  // of an .y4m with text; else -1
  std::int64_t place_ = 0;
  AvPointer<AVIOContext> io_;
  AVFormatContext* format_ = nullptr;
};

}  // namespace pom::io::detail
