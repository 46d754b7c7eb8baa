// .mp4 and .webm through FFmpeg's encoders and muxers, in 4:2:0.
//
// A clip that does not grow is muxed in memory, where the muxer may go back to its head: an .mp4 begins with
// its index (faststart), a .webm knows how long it is. One that grows is never gone back in: an .mp4 consists
// of fragments, a .webm is live.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "pom/base/error.h"
#include "pom/io/av.h"
#include "pom/io/clip_sink.h"
#include "pom/io/clip_writers.h"
#include "pom/io/text_comment.h"
#include "pom/io/yuv.h"

namespace pom::io::detail {
namespace {

// ---- encoders

// Those that need no hardware and are good come first; then whatever else there is.
constexpr std::array preferred = {"libx264", "libopenh264", "libvpx-vp9", "libvpx"};

bool takes_yuv420(const AVCodec* codec) {
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(61, 13, 100)
  const void* list = nullptr;
  int count = 0;
  if (avcodec_get_supported_config(nullptr, codec, AV_CODEC_CONFIG_PIX_FORMAT, 0, &list, &count) < 0)
    return false;
  const auto* formats = static_cast<const AVPixelFormat*>(list);
  return formats == nullptr || std::find(formats, formats + count, AV_PIX_FMT_YUV420P) != formats + count;
#else
  for (const AVPixelFormat* f = codec->pix_fmts; f != nullptr && *f != AV_PIX_FMT_NONE; ++f)
    if (*f == AV_PIX_FMT_YUV420P) return true;
  return false;
#endif
}

int rank_of(const AVCodec* codec) {
  const auto found = std::ranges::find(preferred, std::string_view(codec->name));
  return static_cast<int>(found - preferred.begin());
}

// Of a container, the best first.
std::vector<const AVCodec*> encoders_of(const std::string& container) {
  const std::vector<AVCodecID> kinds =
      container == "mp4" ? std::vector{AV_CODEC_ID_H264} : std::vector{AV_CODEC_ID_VP9, AV_CODEC_ID_VP8};
  std::vector<const AVCodec*> found;
  for (const AVCodecID kind : kinds) {
    const auto first = static_cast<std::ptrdiff_t>(found.size());
    void* place = nullptr;
    while (const AVCodec* codec = av_codec_iterate(&place))
      if (av_codec_is_encoder(codec) != 0 && codec->id == kind && takes_yuv420(codec)) found.push_back(codec);
    std::stable_sort(found.begin() + first, found.end(),
                     [](const AVCodec* a, const AVCodec* b) { return rank_of(a) < rank_of(b); });
  }
  return found;
}

// What each takes for quality; others get a bit rate. 90 is 16 of H.264 and 24 of VP9: hardly to be told from
// the original.
void set_quality(AvOptions& options, AVCodecContext* codec, int quality) {
  const std::string name = codec->codec->name;
  const double worse = 1 - quality / 100.0;
  if (name == "libx264") {
    // Its tree of macroblocks reads memory that nobody has written, unless the width is a multiple of 128:
    // the same frames would give other files.
    options.set("crf", std::to_string(static_cast<int>(std::lround(12 + 39 * worse))))
        .set("preset", "medium")
        .set("mbtree", "0");
  } else if (name.starts_with("libvpx")) {
    options.set("crf", std::to_string(static_cast<int>(std::lround(20 + 43 * worse))));
    options.set("deadline", "good").set("cpu-used", "2");
    if (name == "libvpx") codec->bit_rate = 8'000'000;  // without, VP8 takes crf for nothing
  } else {
    const double pixels = static_cast<double>(codec->width) * codec->height * av_q2d(codec->framerate);
    codec->bit_rate =
        std::max<std::int64_t>(200'000, static_cast<std::int64_t>(pixels * (0.6 - 0.5 * worse)));
  }
}

// ---- the muxer's file

// What FFmpeg calls back. An exception must not go through its frames: it is kept, and thrown after.
struct MuxFile {
  template <class... Where>
  explicit MuxFile(Where&&... where) : sink(std::forward<Where>(where)...) {}

  ClipSink sink;
  std::exception_ptr thrown;
  std::size_t read_place = 0;

  static MuxFile& of(void* opaque) { return *static_cast<MuxFile*>(opaque); }
};

std::int64_t moved(std::size_t& place, std::size_t size, std::int64_t offset, int whence) {
  if ((whence & AVSEEK_SIZE) != 0) return static_cast<std::int64_t>(size);
  const std::int64_t from =
      whence == SEEK_SET ? 0 : static_cast<std::int64_t>(whence == SEEK_CUR ? place : size);
  if (from + offset < 0) return AVERROR(EINVAL);
  place = static_cast<std::size_t>(from + offset);
  return from + offset;
}

int write_bytes(void* opaque, const std::uint8_t* data, int size) {
  MuxFile& file = MuxFile::of(opaque);
  try {
    file.sink.write(std::as_bytes(std::span(data, static_cast<std::size_t>(size))));
    return size;
  } catch (...) {
    file.thrown = std::current_exception();
    return AVERROR_EXTERNAL;
  }
}

#if LIBAVFORMAT_VERSION_MAJOR < 61
int write_mutable(void* opaque, std::uint8_t* data, int size) {
  return write_bytes(opaque, data, size);
}
constexpr auto write_callback = write_mutable;
#else
constexpr auto write_callback = write_bytes;
#endif

std::int64_t seek_bytes(void* opaque, std::int64_t offset, int whence) {
  MuxFile& file = MuxFile::of(opaque);
  std::size_t place = file.sink.place();
  const std::int64_t result = moved(place, file.sink.bytes().size(), offset, whence);
  if (result >= 0 && (whence & AVSEEK_SIZE) == 0) file.sink.seek(place);
  return result;
}

int read_back(void* opaque, std::uint8_t* data, int size) {
  MuxFile& file = MuxFile::of(opaque);
  const std::vector<std::byte>& bytes = file.sink.bytes();
  const std::size_t left = bytes.size() - std::min(bytes.size(), file.read_place);
  const std::size_t count = std::min(static_cast<std::size_t>(size), left);
  if (count == 0) return AVERROR_EOF;
  std::memcpy(data, bytes.data() + file.read_place, count);
  file.read_place += count;
  return static_cast<int>(count);
}

std::int64_t seek_back(void* opaque, std::int64_t offset, int whence) {
  MuxFile& file = MuxFile::of(opaque);
  return moved(file.read_place, file.sink.bytes().size(), offset, whence);
}

AVIOContext* make_io(MuxFile& file, bool reading) {
  constexpr int size = 1 << 16;
  auto* buffer = static_cast<unsigned char*>(av_malloc(size));
  if (buffer == nullptr) return nullptr;
  if (reading) return avio_alloc_context(buffer, size, 0, &file, read_back, nullptr, seek_back);
  return avio_alloc_context(buffer, size, 1, &file, nullptr, write_callback,
                            file.sink.growing() ? nullptr : seek_bytes);
}

// To put the index first the muxer opens what it has written for reading, and moves it.
int open_for_shift(AVFormatContext* format, AVIOContext** io, const char*, int flags, AVDictionary**) {
  MuxFile& file = MuxFile::of(format->opaque);
  if ((flags & AVIO_FLAG_WRITE) != 0) return AVERROR(EPERM);
  file.read_place = 0;
  *io = make_io(file, true);
  return *io != nullptr ? 0 : AVERROR(ENOMEM);
}

int close_shift(AVFormatContext*, AVIOContext* io) {
  AvFree()(io);
  return 0;
}

// ---- the writer

struct Muxer {
  AVFormatContext* context = nullptr;
  ~Muxer() {
    if (context != nullptr) {
      if (context->pb != nullptr) AvFree()(std::exchange(context->pb, nullptr));
      avformat_free_context(context);
    }
  }
};

class EncodedWriter final : public ClipWriter {
 public:
  EncodedWriter(const std::filesystem::path& path, const std::string& container, const ClipOptions& options)
      : ClipWriter(path.string(), options), container_(container) {
    quieten_av();
    rate_ = frame_rate(options.fps);
    open_encoder();
    file_ = std::make_unique<MuxFile>(path, options.growing);
    open_muxer();
  }

  // In pieces, for whoever takes them.
  EncodedWriter(const ClipOptions& options, std::function<void(ClipPiece&&)> take)
      : ClipWriter("a stream", options), container_("mp4"), take_(std::move(take)) {
    quieten_av();
    rate_ = frame_rate(options.fps);
    open_encoder();
    file_ = std::make_unique<MuxFile>([this](std::span<const std::byte> bytes) {
      piece_.bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
    open_muxer();
    avio_flush(muxer_.context->pb);
    give_piece();
  }

 private:
  bool is_mp4() const { return container_ == "mp4"; }

  void require(int code, const char* step) {
    if (file_ && file_->thrown) std::rethrow_exception(std::exchange(file_->thrown, nullptr));
    if (code < 0) fail("clip write: ", name(), ": cannot ", step, ": ", av_error(code));
  }

  void describe(AVCodecContext& codec) const {
    const int even = is_mp4() ? 1 : 0;
    codec.width = (options().width + even) & ~even;
    codec.height = (options().height + even) & ~even;
    codec.pix_fmt = AV_PIX_FMT_YUV420P;
    codec.time_base = {static_cast<int>(rate_.seconds), static_cast<int>(rate_.frames)};
    codec.framerate = {static_cast<int>(rate_.frames), static_cast<int>(rate_.seconds)};
    codec.gop_size = std::max(1, static_cast<int>(std::lround(options().fps * (options().growing ? 1 : 4))));
    codec.color_range = AVCOL_RANGE_MPEG;
    codec.color_primaries = AVCOL_PRI_BT709;
    codec.color_trc = AVCOL_TRC_BT709;
    codec.colorspace = AVCOL_SPC_BT709;
    // More threads make other files of the same frames, and small pictures gain nothing by them.
    codec.thread_count = static_cast<std::int64_t>(codec.width) * codec.height > 500'000 ? 4 : 1;
    if (is_mp4()) codec.flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    if (take_) codec.gop_size *= 10;  // fragments begin with key frames, which are asked for
  }

  bool try_encoder(const AVCodec* codec, int& code) {
    codec_.reset(avcodec_alloc_context3(codec));
    check(codec_ != nullptr, "clip write: ", name(), ": no memory for an encoder");
    describe(*codec_);
    AvOptions settings;
    set_quality(settings, codec_.get(), options().quality);
    if (options().growing) {  // nothing stays in the encoder
      codec_->max_b_frames = 0;
      if (codec->name == std::string_view("libx264"))
        settings.set("tune", "zerolatency").set("forced-idr", "1");
      if (std::string_view(codec->name).starts_with("libvpx"))
        settings.set("lag-in-frames", "0").set("deadline", "realtime").set("cpu-used", "4");
    }
    code = avcodec_open2(codec_.get(), codec, settings.get());
    return code >= 0;
  }

  void open_encoder() {
    int code = AVERROR_ENCODER_NOT_FOUND;
    for (const AVCodec* codec : encoders_of(container_))
      if (try_encoder(codec, code)) {
        frame_.reset(av_frame_alloc());
        packet_.reset(av_packet_alloc());
        check(frame_ && packet_, "clip write: ", name(), ": no memory for a frame");
        return;
      }
    codec_.reset();
    require(code, is_mp4() ? "open an encoder of H.264" : "open an encoder of VP9 or VP8");
  }

  void open_muxer() {
    require(avformat_alloc_output_context2(&muxer_.context, nullptr, container_.c_str(), nullptr),
            "open the file");
    AVFormatContext& format = *muxer_.context;
    format.opaque = file_.get();
    format.io_open = open_for_shift;
#if LIBAVFORMAT_VERSION_MAJOR >= 59
    format.io_close2 = close_shift;
#endif
    format.flags |= AVFMT_FLAG_BITEXACT;  // no version of FFmpeg in the file
    format.pb = make_io(*file_, false);
    check(format.pb != nullptr, "clip write: ", name(), ": no memory for the file");
    if (file_->sink.growing()) format.pb->seekable = 0;
    stream_ = avformat_new_stream(&format, nullptr);
    check(stream_ != nullptr, "clip write: ", name(), ": no memory for the stream");
    require(avcodec_parameters_from_context(stream_->codecpar, codec_.get()), "describe the stream");
    stream_->time_base = codec_->time_base;
    stream_->avg_frame_rate = codec_->framerate;
    describe_file(format);
    AvOptions settings;
    if (is_mp4())
      settings.set("movflags", take_               ? "frag_custom+empty_moov+default_base_moof+skip_trailer"
                               : options().growing ? "frag_custom+empty_moov+default_base_moof"
                                                   : "faststart");
    else if (options().growing)
      settings.set("live", "1");
    require(avformat_write_header(&format, settings.get()), "write the head");
  }

  // Of the names that FFmpeg gives tags, .mp4 has few: those of its own making take the place of these, and
  // players do not show them.
  void describe_file(AVFormatContext& format) const {
    if (options().text.empty()) return;
    av_dict_set(&format.metadata, shown_tag, options().text.front().text.c_str(), 0);
    av_dict_set(&format.metadata, whole_tag, as_comment(options().text).c_str(), 0);
  }

  void put(const Image& image) override {
    AVFrame& frame = *frame_;
    av_frame_unref(&frame);
    frame.format = AV_PIX_FMT_YUV420P;
    frame.width = codec_->width;
    frame.height = codec_->height;
    frame.color_range = AVCOL_RANGE_MPEG;
    require(av_frame_get_buffer(&frame, 0), "get memory for a frame");
    const YuvPlane planes[3] = {{frame.data[0], frame.linesize[0]},
                                {frame.data[1], frame.linesize[1]},
                                {frame.data[2], frame.linesize[2]}};
    to_yuv420(image, bt709, codec_->width, codec_->height, planes);
    frame.pts = frames();
    const bool key = take_ && !in_fragment_ &&
                     (frames() == 0 || static_cast<double>(frames() - last_key_) >= options().fps);
    frame.pict_type = key ? AV_PICTURE_TYPE_I : AV_PICTURE_TYPE_NONE;
    if (key) last_key_ = frames();
    encode(&frame);
  }

  void encode(const AVFrame* frame) {
    require(avcodec_send_frame(codec_.get(), frame), "encode a frame");
    for (;;) {
      const int code = avcodec_receive_packet(codec_.get(), packet_.get());
      if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return;
      require(code, "encode a frame");
      if (packet_->duration == 0)
        packet_->duration = 1;  // else the last frame has none, and the clip is shorter
      av_packet_rescale_ts(packet_.get(), codec_->time_base, stream_->time_base);
      packet_->stream_index = stream_->index;
      if (!std::exchange(in_fragment_, true)) piece_.key = (packet_->flags & AV_PKT_FLAG_KEY) != 0;
      require(av_write_frame(muxer_.context, packet_.get()), "write a frame");
    }
  }

  void put_out() override {
    require(av_write_frame(muxer_.context, nullptr), "write a fragment");
    avio_flush(muxer_.context->pb);
    require(muxer_.context->pb->error, "write");
    give_piece();
  }

  void give_piece() {
    in_fragment_ = false;
    if (take_ && !piece_.bytes.empty()) take_(std::exchange(piece_, {}));
  }

  void end() override {
    encode(nullptr);
    require(av_write_trailer(muxer_.context), "write the end");
    avio_flush(muxer_.context->pb);
    require(muxer_.context->pb->error, "write");
    give_piece();
    file_->sink.finish();
  }

  std::string container_;
  FrameRate rate_;
  std::unique_ptr<MuxFile> file_;  // outlives the muxer, which writes into it
  Muxer muxer_;
  AvPointer<AVCodecContext> codec_;
  AvPointer<AVFrame> frame_;
  AvPointer<AVPacket> packet_;
  AVStream* stream_ = nullptr;

  // Of one in pieces.
  std::function<void(ClipPiece&&)> take_;
  ClipPiece piece_;
  bool in_fragment_ = false;   // which has a frame
  std::int64_t last_key_ = 0;  // that was asked for
};

}  // namespace

void check_encoder(const std::string& operation, const std::string& container) {
  quieten_av();
  check(!encoders_of(container).empty(), operation, ": this FFmpeg has no encoder for .", container, ": ",
        container == "mp4" ? "install one of H.264 (libx264)" : "install one of VP9 or VP8 (libvpx)",
        ", or write .gif, .y4m or a folder of PNG");
}

std::string encoder_names() {
  quieten_av();
  std::string names;
  for (const char* container : {"mp4", "webm"})
    if (const auto found = encoders_of(container); !found.empty())
      names += (names.empty() ? "" : ", ") + std::string(found.front()->name);
  return names;
}

std::unique_ptr<ClipWriter> open_encoded(const std::filesystem::path& path, const std::string& container,
                                         const ClipOptions& options) {
  return std::make_unique<EncodedWriter>(path, container, options);
}

std::unique_ptr<ClipWriter> open_fragments(const ClipOptions& options,
                                           std::function<void(ClipPiece&&)> take) {
  return std::make_unique<EncodedWriter>(options, std::move(take));
}

}  // namespace pom::io::detail
