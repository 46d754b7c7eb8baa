#include "pom/io/av_input.h"

#include <algorithm>
#include <cerrno>
#include <sys/stat.h>

#include "pom/base/error.h"
#include "pom/io/y4m_text.h"

namespace pom::io::detail {
namespace {

constexpr const char* known_formats =
    "mov,mp4,matroska,webm,avi,gif,yuv4mpegpipe,mpeg,mpegvideo,mpegts,ogg,flv,asf";

std::int64_t end_of_frames(const FileParts& file) {
  if (file.up_to(0, y4m_signature.size()) != y4m_signature) return -1;
  const std::optional<Y4mText> text = find_y4m_text(file);
  return text ? static_cast<std::int64_t>(text->begin) : -1;
}

}  // namespace

AvInput::AvInput(const std::filesystem::path& path, std::string_view operation, std::int64_t most)
    : file_(path, operation), left_(most), frames_end_(end_of_frames(file_)) {
  quieten_av();
  constexpr int size = 1 << 16;
  auto* buffer = static_cast<unsigned char*>(av_malloc(size));
  check(buffer != nullptr, file_.site(), ": no memory");
  io_.reset(avio_alloc_context(buffer, size, 0, this, read, nullptr, seek));
  format_ = avformat_alloc_context();
  check(io_ != nullptr && format_ != nullptr, file_.site(), ": no memory");
  format_->pb = io_.get();
  AvOptions settings;
  settings.set("protocol_whitelist", "none")
      .set("format_whitelist", known_formats)
      .set("codec_whitelist", known_decoders)
      .set("probesize", std::to_string(probe_bytes));
  // The ending helps to tell formats apart that have no signature. Where it fails the context is gone.
  const std::string name = "file" + path.extension().string();
  require(avformat_open_input(&format_, name.c_str(), nullptr, settings.get()), "open");
}

AvInput::~AvInput() {
  avformat_close_input(&format_);
}

void AvInput::require(int code, const char* step) const {
  if (code < 0) fail(file_.site(), ": cannot ", step, ": ", av_error(code));
}

int AvInput::read(void* self, std::uint8_t* data, int size) {
  AvInput& input = *static_cast<AvInput*>(self);
  std::int64_t count = std::min<std::int64_t>(size, input.left_);
  if (count == 0) return AVERROR(EFBIG);
  if (input.frames_end_ >= 0) count = std::min(count, input.frames_end_ - input.place_);
  if (count <= 0) return AVERROR_EOF;
  for (;;) {
    const ssize_t got =
        ::pread(input.file_.descriptor(), data, static_cast<std::size_t>(count), input.place_);
    if (got > 0) {
      input.place_ += got;
      input.left_ -= got;
      return static_cast<int>(got);
    }
    if (got == 0) return AVERROR_EOF;
    if (errno != EINTR) return AVERROR(errno);
  }
}

// Now, as a file may grow that is read.
std::int64_t AvInput::size() const {
  if (frames_end_ >= 0) return frames_end_;
  struct stat status;
  return ::fstat(file_.descriptor(), &status) == 0 ? static_cast<std::int64_t>(status.st_size)
                                                   : AVERROR(errno);
}

std::int64_t AvInput::seek(void* self, std::int64_t offset, int whence) {
  AvInput& input = *static_cast<AvInput*>(self);
  whence &= ~AVSEEK_FORCE;
  if (whence == AVSEEK_SIZE) return input.size();
  const std::int64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? input.place_ : input.size();
  std::int64_t place = 0;
  if (from < 0 || __builtin_add_overflow(from, offset, &place) || place < 0) return AVERROR(EINVAL);
  return input.place_ = place;
}

}  // namespace pom::io::detail
