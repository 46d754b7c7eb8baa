// Private to the room: FFmpeg's objects that free themselves, and its errors in words.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avutil.h>
#include <libavutil/dict.h>
#include <libavutil/opt.h>
}

#include <memory>
#include <string>

namespace pom::io::detail {

struct AvFree {
  void operator()(AVCodecContext* p) const { avcodec_free_context(&p); }
  void operator()(AVFrame* p) const { av_frame_free(&p); }
  void operator()(AVPacket* p) const { av_packet_free(&p); }
  void operator()(AVIOContext* p) const {
    av_freep(&p->buffer);
    avio_context_free(&p);
  }
};
template <class Object>
using AvPointer = std::unique_ptr<Object, AvFree>;

// Options for FFmpeg; it takes out those it knows.
class AvOptions {
 public:
  AvOptions() = default;
  AvOptions(const AvOptions&) = delete;
  AvOptions& operator=(const AvOptions&) = delete;
  ~AvOptions() { av_dict_free(&dictionary_); }
  AvOptions& set(const char* key, const std::string& value) {
    av_dict_set(&dictionary_, key, value.c_str(), 0);
    return *this;
  }
  AVDictionary** get() { return &dictionary_; }

 private:
  AVDictionary* dictionary_ = nullptr;
};

// FFmpeg prints; a library must not. From now on it tells this process's threads nothing, and keeps the last
// complaint of each for av_error. Called by whatever opens something.
void quieten_av();

// "Invalid data found when processing input (moov atom not found)".
std::string av_error(int code);

}  // namespace pom::io::detail
