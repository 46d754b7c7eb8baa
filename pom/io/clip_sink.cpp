#include "pom/io/clip_sink.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "pom/base/error.h"
#include "pom/io/clip.h"

namespace pom::io::detail {
namespace {

// Keeps SIGPIPE from this thread; one that comes meanwhile is taken away, one that waited before stays.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t waiting;
    ::sigpending(&waiting);
    was_waiting_ = ::sigismember(&waiting, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec at_once = {};
    if (!was_waiting_)
      while (::sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
      }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_waiting_ = false;
};

void wait_for_room(int descriptor) {
  pollfd wanted = {.fd = descriptor, .events = POLLOUT, .revents = 0};
  ::poll(&wanted, 1, -1);
}

}  // namespace

void write_to(int descriptor, std::span<const std::byte> bytes, const std::string& name) {
  const NoPipeSignal guard;
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      continue;
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) wait_for_room(descriptor);
    if (error == EPIPE) throw ClosedPipe("clip write: " + name + ": nobody reads any more");
    check(error == EINTR || error == EAGAIN || error == EWOULDBLOCK, "clip write: ", name,
          ": cannot write: ", errno_text(error));
  }
}

bool ClipSink::must_grow(const std::filesystem::path& path) {
  struct stat present;
  return ::stat(path.c_str(), &present) == 0 && !S_ISREG(present.st_mode) && !S_ISDIR(present.st_mode);
}

ClipSink::ClipSink(const std::filesystem::path& path, bool growing) : name_(path.string()) {
  if (!growing && !must_grow(path)) {
    file_.emplace(path);
    return;
  }
  own_ = FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  check(own_.is_open(), "clip write: ", name_, ": cannot open: ", errno_text(errno));
  descriptor_ = own_.get();
}

ClipSink::ClipSink(int descriptor, std::string name) : name_(std::move(name)), descriptor_(descriptor) {}

void ClipSink::write(std::span<const std::byte> bytes) {
  if (growing()) {
    if (take_)
      take_(bytes);
    else
      write_to(descriptor_, bytes, name_);
    place_ += bytes.size();
    return;
  }
  if (place_ + bytes.size() > bytes_.size()) bytes_.resize(place_ + bytes.size());
  if (!bytes.empty()) std::memcpy(bytes_.data() + place_, bytes.data(), bytes.size());
  place_ += bytes.size();
}

void ClipSink::seek(std::size_t place) {
  check(!growing(), "clip write: ", name_, ": went back in a stream");
  place_ = place;
}

void ClipSink::finish() {
  if (file_) {
    file_->write(bytes_);
    file_->commit();
  } else if (own_.is_open()) {
    check(own_.close(), "clip write: ", name_, ": cannot close: ", errno_text(errno));
  }
}

}  // namespace pom::io::detail
