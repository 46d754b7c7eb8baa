// Reads clips with FFmpeg: frames in the order in which they are shown, at the rate and size that are wanted.
//
// Data comes from strangers: files are opened as av_input.h says, and no decoder makes a frame larger than we
// take.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

extern "C" {
#include <libavutil/avstring.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include "pom/io/av_input.h"
#include "pom/io/clip_source.h"

namespace pom::io {
namespace {

using detail::AvPointer;

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

class Decoder final : public detail::FrameSource {
 public:
  Decoder(const std::filesystem::path& path, const ClipReading& wanted);
  ~Decoder() override { sws_freeContext(scaler); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  bool next(Image& out) override;

 private:
  std::string name;
  ClipReading reading;
  detail::AvInput input;
  AVFormatContext* format;
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

  void require(int code, const char* step) const { input.require(code, step); }
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

Decoder::Decoder(const std::filesystem::path& path, const ClipReading& wanted)
    : name(path.string()), reading(wanted), input(path, "clip read"), format(input.format()) {
  meet_streams();
  find_streams();
  open_codec();
  describe();
  seek_to_start();
}

// Some formats (.mpg, .ts, .flv) name their streams as they come, and for one that comes while FFmpeg looks
// for them it opens a decoder without our limits. So they come before that: all that lie as far as it looks.
void Decoder::meet_streams() {
  if ((format->ctx_flags & AVFMTCTX_NOHEADER) == 0) return;
  const AvPointer<AVPacket> any(av_packet_alloc());
  check(any != nullptr, "clip read: ", name, ": no memory");
  for (std::int64_t seen = 0; seen < detail::probe_bytes && av_read_frame(format, any.get()) >= 0;) {
    seen += any->size;
    av_packet_unref(any.get());
  }
  require(av_seek_frame(format, -1, 0, AVSEEK_FLAG_BYTE), "go back to the beginning");
}

// FFmpeg decodes some frames to see what they are.
void Decoder::find_streams() {
  std::vector<AVDictionary*> settings(format->nb_streams, nullptr);
  for (AVDictionary*& each : settings) av_dict_set_int(&each, "max_pixels", max_frame_pixels, 0);
  const int found = avformat_find_stream_info(format, settings.data());
  for (AVDictionary*& each : settings) av_dict_free(&each);
  require(found, "find pictures");
}

void Decoder::open_codec() {
  const AVCodec* decoder = nullptr;
  const int index = av_find_best_stream(format, AVMEDIA_TYPE_VIDEO, -1, -1, &decoder, 0);
  check(index != AVERROR_STREAM_NOT_FOUND, "clip read: ", name, ": expected pictures, got none");
  require(index, "find a decoder");
  stream = format->streams[index];
  check(av_match_list(decoder->name, detail::known_decoders, ',') > 0, "clip read: ", name,
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

void Decoder::describe() {
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
void Decoder::seek_to_start() {
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
bool Decoder::decode(AVFrame* into) {
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
double Decoder::time_of(const AVFrame& f) const {
  const std::int64_t stamp = f.best_effort_timestamp;
  if (stamp == AV_NOPTS_VALUE) return frame && frame->width > 0 ? end : 0;  // right after the last one
  return static_cast<double>(stamp) * av_q2d(stream->time_base) - first_time;
}

double Decoder::length_of(const AVFrame& f) const {
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(57, 30, 100)
  const std::int64_t length = f.duration;
#else
  const std::int64_t length = f.pkt_duration;
#endif
  if (length > 0) return static_cast<double>(length) * av_q2d(stream->time_base);
  return info.fps > 0 ? 1 / info.fps : 0.04;
}

// The next frame is on; false at the end.
bool Decoder::advance() {
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
void Decoder::prepare_scaler(const Crop& crop, int width, int height) {
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

void Decoder::convert(Image& out) {
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

bool Decoder::next(Image& out) {
  constexpr double nearly = 1e-3;  // files round their times to so much
  const double step = reading.fps > 0 ? 1 / reading.fps : 0;
  // The middle of a frame, whether of the file or of the result: times that were rounded do no harm there.
  const double middle = 0.5 * (info.fps > 0 ? std::min(step, 1 / info.fps) : step);
  const double wanted = reading.start + static_cast<double>(given) * step + middle;
  if (step == 0) {
    do {
      if (!advance()) return false;
    } while (now_time + nearly < reading.start);
  } else {
    if (frame->width == 0 && !advance()) return false;
    while (end <= wanted)
      if (!advance()) return false;
  }
  convert(out);
  ++given;
  return true;
}

}  // namespace

std::unique_ptr<detail::FrameSource> detail::open_decoded(const std::filesystem::path& path,
                                                          const ClipReading& reading) {
  return std::make_unique<Decoder>(path, reading);
}

}  // namespace pom::io
