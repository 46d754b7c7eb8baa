// Private to the room: the way between a handler, on any thread, and the connection, on the server's.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "pom/net/http_server.h"

namespace pom::net {

// Runs calls on the server's thread, in order; drops them once the server has stopped.
class Loop {
 public:
  virtual ~Loop() = default;
  virtual void post(std::function<void()> call) = 0;
};

class Line;

// The connection's end, of the server's thread alone.
class LineEnd {
 public:
  virtual ~LineEnd() = default;
  virtual bool serves(const Line& line) const = 0;  // not any more, where the client is gone
  virtual void answer(HttpResponse response) = 0;
  virtual void answer_dropped() = 0;
  virtual void begin_stream(int status, Headers headers) = 0;
  virtual void pump_stream() = 0;  // there may be bytes, an end or an abort
};

// What the two ends share: whether there is an answer, who wants to know when the client goes, and what of a
// stream is not sent yet. Callbacks are never called, nor destroyed, under the lock.
class Line : public std::enable_shared_from_this<Line> {
 public:
  Line(std::shared_ptr<Loop> loop, std::weak_ptr<LineEnd> end, bool head_only, std::size_t most_waiting)
      : loop_(std::move(loop)), end_(std::move(end)), head_only_(head_only), most_waiting_(most_waiting) {}

  // ---- the handler's end ----
  bool claim();  // true the first time: the caller gives the answer
  void tell(std::function<void(LineEnd&)> call);
  void on_gone(std::function<void()> call);
  bool gone() const;
  bool write(Bytes bytes);
  void finish(bool whole);
  std::size_t waiting_bytes() const;
  void on_drained(std::function<void()> call);

  // ---- the connection's end ----
  struct Portion {
    std::vector<Bytes> pieces;
    bool ended = false;  // nothing comes after these
  };
  bool aborted() const;
  Portion take(std::size_t most);  // whole pieces: of one at least, as far as there is any
  // They are with the socket. What is returned is to be called, if it is something.
  std::function<void()> sent(std::size_t bytes);
  std::vector<std::function<void()>> set_gone();  // to be called
  void set_done();

 private:
  void schedule();

  const std::shared_ptr<Loop> loop_;
  const std::weak_ptr<LineEnd> end_;
  const bool head_only_;
  const std::size_t most_waiting_;

  mutable std::mutex mutex_;
  bool answered_ = false, gone_ = false, done_ = false;
  std::vector<std::function<void()>> gone_calls_;
  std::deque<Bytes> queue_;
  std::size_t waiting_ = 0;
  bool ended_ = false, aborted_ = false;
  bool scheduled_ = false;  // the connection will look at the queue again
  std::function<void()> drained_;
};

std::shared_ptr<Exchange> make_exchange(std::shared_ptr<Line> line,
                                        std::shared_ptr<const HttpRequest> request);

}  // namespace pom::net
