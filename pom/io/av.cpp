#include "pom/io/av.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>

extern "C" {
#include <libswscale/swscale.h>
}

#include "pom/base/error.h"
#include "pom/io/clip.h"
#include "pom/io/clip_writers.h"

namespace pom::io {
namespace detail {
namespace {

thread_local std::string last_complaint;

void keep_complaint(void*, int level, const char* format, va_list arguments) {
  if (level > AV_LOG_ERROR) return;
  char line[256];
  std::vsnprintf(line, sizeof line, format, arguments);
  last_complaint = line;
  while (!last_complaint.empty() && (last_complaint.back() == '\n' || last_complaint.back() == '.'))
    last_complaint.pop_back();
}

}  // namespace

void quieten_av() {
  static std::once_flag once;
  std::call_once(once, [] { av_log_set_callback(keep_complaint); });
  last_complaint.clear();
}

std::string av_error(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof text);
  std::string words = text;
  if (!last_complaint.empty()) words += " (" + last_complaint + ")";
  last_complaint.clear();
  return words;
}

}  // namespace detail

std::string clip_libraries() {
  const auto version = [](const char* name, unsigned v) {
    return ::pom::detail::concat(name, " ", AV_VERSION_MAJOR(v), ".", AV_VERSION_MINOR(v), ".",
                                 AV_VERSION_MICRO(v));
  };
  std::string text = version("libavformat", avformat_version()) + ", " +
                     version("libavcodec", avcodec_version()) + ", " +
                     version("libswscale", swscale_version());
  const std::string encoders = detail::encoder_names();
  return encoders.empty() ? text : text + "; " + encoders;
}

}  // namespace pom::io
