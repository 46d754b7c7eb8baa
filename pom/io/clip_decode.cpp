// Reads clips with FFmpeg: frames in the order in which they are shown, at the rate and size that are wanted.
//
// Data comes from strangers. A file is read through our own descriptor, what it names (a playlist its parts)
// is not opened, FFmpeg tries none of its many rare formats on it, and no decoder makes a frame larger than
// we take.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <sys/stat.h>
#include <utility>

extern "C" {
#include <libavutil/avstring.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include "pom/io/av.h"
#include "pom/io/clip.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

using detail::AvFree;
using detail::AvPointer;

// By FFmpeg's names. Decoders of libraries that make frames before they ask are left out.
constexpr const char* known_formats =
    "mov,mp4,matroska,webm,avi,gif,yuv4mpegpipe,mpeg,mpegvideo,mpegts,ogg,flv,asf";
constexpr const char* known_decoders =
    "h264,hevc,libdav1d,av1,vp8,vp9,mpeg1video,mpeg2video,mpegvideo,mpeg4,msmpeg4,msmpeg4v2,mjpeg,gif,"
    "rawvideo,"
    "theora,flv,h263,vp6,vp6f,wmv1,wmv2,wmv3,vc1,prores,dnxhd,dvvideo,ffv1,ffvhuff,huffyuv";
constexpr std::int64_t probe_bytes = 1 << 22;  // to find streams in

int read_some(void* opaque, std::uint8_t* data, int size) {
  const int fd = static_cast<detail::FileDescriptor*>(opaque)->get();
  for (;;) {
    const ssize_t got = ::read(fd, data, static_cast<std::size_t>(size));
    if (got > 0) return static_cast<int>(got);
    if (got == 0) return AVERROR_EOF;
    if (errno != EINTR) return AVERROR(errno);
  }
}

std::int64_t seek_in(void* opaque, std::int64_t offset, int whence) {
  const int fd = static_cast<detail::FileDescriptor*>(opaque)->get();
  if ((whence & AVSEEK_SIZE) != 0) {
    struct stat status;
    return ::fstat(fd, &status) == 0 ? static_cast<std::int64_t>(status.st_size) : AVERROR(errno);
  }
  const off_t place = ::lseek(fd, offset, whence & ~AVSEEK_FORCE);
  return place >= 0 ? place : AVERROR(errno);
}

// Quarters of a turn against the clock by which pictures have to be turned to stand upright.
int quarters_of(const AVStream& stream) {
  const std::int32_t* matrix = nullptr;
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
  const AVPacketSideData* side = av_packet_side_data_get(
      stream.codecpar->coded_side_data, stream.codecpar->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
  if (side != nullptr && side->size >= 36) matrix = reinterpret_cast<const std::int32_t*>(side->data);
#else
  std::size_t size = 0;
  const std::uint8_t* side = av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
  if (side != nullptr && size >= 36) matrix = reinterpret_cast<const std::int32_t*>(side);
#endif
  if (matrix == nullptr) return 0;
  const double angle = av_display_rotation_get(matrix);
  return std::isfinite(angle) ? static_cast<int>(std::lround(angle / 90)) & 3 : 0;
}

// Turned against the clock.
Image turned(Image image, int quarters) {
  if (quarters == 0) return image;
  const bool across = quarters % 2 == 1;
  Image out =
      make_image("clip read", across ? image.height : image.width, across ? image.width : image.height, 3);
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x) {
      const int to_x = quarters == 1 ? y : quarters == 2 ? image.width - 1 - x : image.height - 1 - y;
      const int to_y = quarters == 1 ? image.width - 1 - x : quarters == 2 ? image.height - 1 - y : x;
      const std::uint8_t* from = &image.row(y)[static_cast<std::size_t>(3 * x)];
      std::copy(from, from + 3, &out.row(to_y)[static_cast<std::size_t>(3 * to_x)]);
    }
  return out;
}

struct Crop {
  int left = 0, top = 0, width = 0, height = 0;
};

// The middle of a picture that has the wanted proportions; offsets are even, where colour begins.
Crop middle_of(int width, int height, AVRational pixel, int wanted_width, int wanted_height) {
  Crop crop{0, 0, width, height};
  if (wanted_width == 0) return crop;
  const double shape = pixel.num > 0 && pixel.den > 0 ? av_q2d(pixel) : 1;  // of a pixel: width over height
  const double wanted = static_cast<double>(wanted_width) / wanted_height / shape;
  if (wanted * height < width)
    crop.width = std::max(1, static_cast<int>(std::lround(wanted * height)));
  else
    crop.height = std::clamp(static_cast<int>(std::lround(width / wanted)), 1, height);
  crop.left = (width - crop.width) / 2 & ~1;
  crop.top = (height - crop.height) / 2 & ~1;
  return crop;
}

// Where the planes of a frame begin, seen from the corner of a crop.
std::array<const std::uint8_t*, 4> corner_of(const AVFrame& frame, const Crop& crop) {
  const AVPixFmtDescriptor* layout = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  const bool palette = (layout->flags & AV_PIX_FMT_FLAG_PAL) != 0;
  int steps[4];
  av_image_fill_max_pixsteps(steps, nullptr, layout);
  std::array<const std::uint8_t*, 4> from = {};
  for (int p = 0; p < 4; ++p) {
    const bool colour = p == 1 || p == 2, still = palette && p == 1;
    const int x = crop.left >> (colour ? layout->log2_chroma_w : 0),
              y = crop.top >> (colour ? layout->log2_chroma_h : 0);
    const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(y) * frame.linesize[p] + x * steps[p];
    if (frame.data[p] != nullptr) from[static_cast<std::size_t>(p)] = frame.data[p] + (still ? 0 : offset);
  }
  return from;
}

}  // namespace

struct ClipReader::Impl {
  std::string name;
  ClipReading reading;
  ClipInfo info;
  detail::FileDescriptor file;
  AvPointer<AVIOContext> io;
  AVFormatContext* format = nullptr;
  AVStream* stream = nullptr;
  AvPointer<AVCodecContext> codec;
  AvPointer<AVPacket> packet;
  AvPointer<AVFrame> frame, ahead;  // the one that is on, and the one after it
  SwsContext* scaler = nullptr;
  int quarters = 0;  // of a turn
  bool drained = false;
  double first_time = 0;         // of the first frame: files need not begin at 0
  std::int64_t given = 0;        // frames
  double now_time = 0, end = 0;  // when `frame` comes, and when it goes, in seconds from the first

  Impl(const std::filesystem::path& path, const ClipReading& wanted);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void require(int code, const char* step) const;
  void open_format();
  void meet_streams();
  void find_streams();
  void open_codec();
  void describe();
  void seek_to_start();
  bool decode(AVFrame* into);
  double time_of(const AVFrame& f) const;
  double length_of(const AVFrame& f) const;
  bool advance();
  void prepare_scaler(const Crop& crop, int width, int height);
  void convert(Image& out);
};

ClipReader::Impl::Impl(const std::filesystem::path& path, const ClipReading& wanted)
    : name(path.string()), reading(wanted) {
  check((reading.width == 0) == (reading.height == 0) && reading.width >= 0 && reading.height >= 0,
        "clip read: ", name, ": expected both sides or none, got ", reading.width, "x", reading.height);
  if (reading.width > 0) check_size("clip read: " + name, reading.width, reading.height);
  check(reading.fps >= 0 && reading.fps <= 1000, "clip read: ", name, ": fps: expected 0 to 1000, got ",
        reading.fps);
  check(reading.start >= 0 && std::isfinite(reading.start), "clip read: ", name,
        ": start: expected at least 0, got ", reading.start);
  detail::quieten_av();
  file = detail::open_for_reading(path, "clip read");
  try {
    open_format();
    meet_streams();
    find_streams();
    open_codec();
    describe();
    seek_to_start();
  } catch (...) {
    avformat_close_input(&format);
    throw;
  }
}

ClipReader::Impl::~Impl() {
  sws_freeContext(scaler);
  avformat_close_input(&format);
}

void ClipReader::Impl::require(int code, const char* step) const {
  if (code < 0) fail("clip read: ", name, ": cannot ", step, ": ", detail::av_error(code));
}

void ClipReader::Impl::open_format() {
  constexpr int size = 1 << 16;
  auto* buffer = static_cast<unsigned char*>(av_malloc(size));
  check(buffer != nullptr, "clip read: ", name, ": no memory");
  io.reset(avio_alloc_context(buffer, size, 0, &file, read_some, nullptr, seek_in));
  format = avformat_alloc_context();
  check(io != nullptr && format != nullptr, "clip read: ", name, ": no memory");
  format->pb = io.get();
  detail::AvOptions settings;
  settings.set("protocol_whitelist", "none")
      .set("format_whitelist", known_formats)
      .set("codec_whitelist", known_decoders)
      .set("probesize", std::to_string(probe_bytes));
  // The ending helps to tell formats apart that have no signature.
  require(avformat_open_input(&format, ("file" + std::filesystem::path(name).extension().string()).c_str(),
                              nullptr, settings.get()),
          "open");
}

// Some formats (.mpg, .ts, .flv) name their streams as they come, and for one that comes while FFmpeg looks
// for them it opens a decoder without our limits. So they come before that: all that lie as far as it looks.
void ClipReader::Impl::meet_streams() {
  if ((format->ctx_flags & AVFMTCTX_NOHEADER) == 0) return;
  const AvPointer<AVPacket> any(av_packet_alloc());
  check(any != nullptr, "clip read: ", name, ": no memory");
  for (std::int64_t seen = 0; seen < probe_bytes && av_read_frame(format, any.get()) >= 0;) {
    seen += any->size;
    av_packet_unref(any.get());
  }
  require(av_seek_frame(format, -1, 0, AVSEEK_FLAG_BYTE), "go back to the beginning");
}

// FFmpeg decodes some frames to see what they are.
void ClipReader::Impl::find_streams() {
  std::vector<AVDictionary*> settings(format->nb_streams, nullptr);
  for (AVDictionary*& each : settings) av_dict_set_int(&each, "max_pixels", max_frame_pixels, 0);
  const int found = avformat_find_stream_info(format, settings.data());
  for (AVDictionary*& each : settings) av_dict_free(&each);
  require(found, "find pictures");
}

void ClipReader::Impl::open_codec() {
  const AVCodec* decoder = nullptr;
  const int index = av_find_best_stream(format, AVMEDIA_TYPE_VIDEO, -1, -1, &decoder, 0);
  check(index != AVERROR_STREAM_NOT_FOUND, "clip read: ", name, ": expected pictures, got none");
  require(index, "find a decoder");
  stream = format->streams[index];
  check(av_match_list(decoder->name, known_decoders, ',') > 0, "clip read: ", name,
        ": expected pictures of a usual codec (h264, vp9, …), got ", decoder->name);
  const AVCodecParameters& parameters = *stream->codecpar;
  require(parameters.width > 0 ? 0 : AVERROR_INVALIDDATA, "find the size of its pictures");
  check_size("clip read: " + name, parameters.width, parameters.height, max_frame_pixels);
  codec.reset(avcodec_alloc_context3(decoder));
  packet.reset(av_packet_alloc());
  frame.reset(av_frame_alloc());
  ahead.reset(av_frame_alloc());
  check(codec && packet && frame && ahead, "clip read: ", name, ": no memory");
  require(avcodec_parameters_to_context(codec.get(), &parameters), "describe the stream");
  codec->thread_count = 1;  // who reads many files has threads of their own
  codec->pkt_timebase = stream->time_base;
  codec->max_pixels = max_frame_pixels;
  require(avcodec_open2(codec.get(), decoder, nullptr), "open the decoder");
  for (unsigned i = 0; i < format->nb_streams; ++i)
    if (static_cast<int>(i) != index) format->streams[i]->discard = AVDISCARD_ALL;
}

void ClipReader::Impl::describe() {
  quarters = quarters_of(*stream);
  const bool across = quarters % 2 == 1;
  info.width = across ? codec->height : codec->width;
  info.height = across ? codec->width : codec->height;
  const AVRational rate = stream->avg_frame_rate.num > 0 ? stream->avg_frame_rate : stream->r_frame_rate;
  info.fps = rate.num > 0 && rate.den > 0 ? av_q2d(rate) : 0;
  if (stream->duration > 0)
    info.seconds = static_cast<double>(stream->duration) * av_q2d(stream->time_base);
  else if (format->duration > 0)
    info.seconds = static_cast<double>(format->duration) / AV_TIME_BASE;
  info.format = format->iformat->name;
  info.codec = avcodec_get_name(codec->codec_id);
  for (const AVDictionary* where : {format->metadata, stream->metadata})
    if (const AVDictionaryEntry* entry = av_dict_get(where, "comment", nullptr, 0);
        entry && info.comment.empty())
      info.comment = entry->value;
}

// To the last key frame before; the rest of the way is decoded.
void ClipReader::Impl::seek_to_start() {
  if (stream->start_time != AV_NOPTS_VALUE)
    first_time = static_cast<double>(stream->start_time) * av_q2d(stream->time_base);
  if (reading.start > 0) {
    const double seconds =
        std::max(0.0, reading.start - 0.5) + first_time;  // frames shown later may come first
    const auto stamp = static_cast<std::int64_t>(seconds / av_q2d(stream->time_base));
    if (av_seek_frame(format, stream->index, stamp, AVSEEK_FLAG_BACKWARD) >= 0)
      avcodec_flush_buffers(codec.get());
  }
  if (!decode(ahead.get())) ahead.reset();
  check(ahead != nullptr || reading.start > 0, "clip read: ", name, ": expected frames, got none");
  if (ahead && stream->start_time == AV_NOPTS_VALUE && reading.start == 0)
    first_time = time_of(*ahead) + first_time;
}

// The next frame of the file; false at the end.
bool ClipReader::Impl::decode(AVFrame* into) {
  for (;;) {
    const int code = avcodec_receive_frame(codec.get(), into);
    if (code >= 0) {
      check_size("clip read: " + name, into->width, into->height, max_frame_pixels);
      return true;
    }
    if (code == AVERROR_EOF) return false;
    if (code != AVERROR(EAGAIN)) require(code, "decode");
    const int got = drained ? AVERROR_EOF : av_read_frame(format, packet.get());
    if (got == AVERROR_EOF) {
      drained = true;
      avcodec_send_packet(codec.get(), nullptr);
      continue;
    }
    require(got, "read");
    if (packet->stream_index == stream->index) {
      const int sent = avcodec_send_packet(codec.get(), packet.get());
      av_packet_unref(packet.get());
      require(sent, "decode");
    } else {
      av_packet_unref(packet.get());
    }
  }
}

// Seconds after the first frame.
double ClipReader::Impl::time_of(const AVFrame& f) const {
  const std::int64_t stamp = f.best_effort_timestamp;
  if (stamp == AV_NOPTS_VALUE) return frame && frame->width > 0 ? end : 0;  // right after the last one
  return static_cast<double>(stamp) * av_q2d(stream->time_base) - first_time;
}

double ClipReader::Impl::length_of(const AVFrame& f) const {
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(57, 30, 100)
  const std::int64_t length = f.duration;
#else
  const std::int64_t length = f.pkt_duration;
#endif
  if (length > 0) return static_cast<double>(length) * av_q2d(stream->time_base);
  return info.fps > 0 ? 1 / info.fps : 0.04;
}

// The next frame is on; false at the end.
bool ClipReader::Impl::advance() {
  if (!ahead) return false;
  const double time = time_of(*ahead);
  std::swap(frame, ahead);
  av_frame_unref(ahead.get());
  now_time = time;
  end = time + length_of(*frame);
  if (!decode(ahead.get()))
    ahead.reset();
  else
    end = std::max(time, time_of(*ahead));
  return true;
}

// Brings the scaler to the frame's pixels and colours.
void ClipReader::Impl::prepare_scaler(const Crop& crop, int width, int height) {
  const auto pixels = static_cast<AVPixelFormat>(frame->format);
  const AVPixFmtDescriptor* layout = av_pix_fmt_desc_get(pixels);
  check(layout != nullptr && (layout->flags & AV_PIX_FMT_FLAG_HWACCEL) == 0, "clip read: ", name,
        ": a kind of pixel that cannot be read");
  constexpr int exact = SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_BITEXACT;
  scaler = sws_getCachedContext(scaler, crop.width, crop.height, pixels, width, height, AV_PIX_FMT_RGB24,
                                SWS_AREA | exact, nullptr, nullptr, nullptr);
  check(scaler != nullptr, "clip read: ", name, ": cannot scale ", av_get_pix_fmt_name(pixels));
  const bool hd = frame->colorspace == AVCOL_SPC_BT709 ||
                  (frame->colorspace == AVCOL_SPC_UNSPECIFIED && frame->height >= 720);
  const int* table = sws_getCoefficients(hd ? SWS_CS_ITU709 : SWS_CS_ITU601);
  const int full = frame->color_range == AVCOL_RANGE_JPEG ? 1 : 0;
  sws_setColorspaceDetails(scaler, table, full, sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
}

void ClipReader::Impl::convert(Image& out) {
  const bool across = quarters % 2 == 1;
  int width = across ? reading.height : reading.width, height = across ? reading.width : reading.height;
  const Crop crop = middle_of(frame->width, frame->height, frame->sample_aspect_ratio, width, height);
  if (width == 0) width = frame->width, height = frame->height;
  prepare_scaler(crop, width, height);
  const std::array<const std::uint8_t*, 4> from = corner_of(*frame, crop);
  // swscale writes a little beyond rows whose length does not suit it.
  const int stride = (3 * width + 63) / 64 * 64;
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(stride) * static_cast<std::size_t>(height) + 64);
  std::uint8_t* to[4] = {rows.data(), nullptr, nullptr, nullptr};
  const int strides[4] = {stride, 0, 0, 0};
  require(sws_scale(scaler, from.data(), frame->linesize, 0, crop.height, to, strides), "scale");
  Image upright = make_image("clip read: " + name, width, height, 3);
  for (int y = 0; y < height; ++y)
    std::copy_n(rows.data() + static_cast<std::ptrdiff_t>(y) * stride, 3 * width, upright.row(y).data());
  out = turned(std::move(upright), quarters);
}

ClipReader::ClipReader(const std::filesystem::path& path, const ClipReading& reading)
    : impl_(std::make_unique<Impl>(path, reading)) {}
ClipReader::~ClipReader() = default;
ClipReader::ClipReader(ClipReader&&) noexcept = default;

const ClipInfo& ClipReader::info() const {
  return impl_->info;
}

bool ClipReader::next(Image& out) {
  Impl& m = *impl_;
  constexpr double nearly = 1e-3;  // files round their times to so much
  const double step = m.reading.fps > 0 ? 1 / m.reading.fps : 0;
  // The middle of a frame, whether of the file or of the result: times that were rounded do no harm there.
  const double middle = 0.5 * (m.info.fps > 0 ? std::min(step, 1 / m.info.fps) : step);
  const double wanted = m.reading.start + static_cast<double>(m.given) * step + middle;
  if (step == 0) {
    do {
      if (!m.advance()) return false;
    } while (m.now_time + nearly < m.reading.start);
  } else {
    if (m.frame->width == 0 && !m.advance()) return false;
    while (m.end <= wanted)
      if (!m.advance()) return false;
  }
  m.convert(out);
  ++m.given;
  return true;
}

}  // namespace pom::io
