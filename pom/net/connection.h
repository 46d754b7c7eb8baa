// Private to http_server.cpp, the one source that compiles Boost: a connection and its requests, one after
// the other. Everything here runs on the server's thread.
//
//   head ──→ body ──→ working ──→ head ...        a request, its handler, its answer
//     └────────┴────────→ working ──→ lingering   an answer after which the connection closes
//
// There is always one read under way while there is room for bytes: in `working` it sees the client leave.
// There is at most one write under way. One timer watches what the phase waits for.
#pragma once

#include <utility>  // Asio of Boost 1.74 forgets it
//
#include <algorithm>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/net/exchange.h"
#include "pom/net/http_server.h"
#include "pom/net/request_reader.h"

namespace pom::net {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;

class Connection;

// Within a catch block.
inline std::string current_exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of another kind";
  }
}

// What a connection knows of its server.
class ConnectionHost {
 public:
  ConnectionHost(ServerOptions options, Handler handler)
      : options(std::move(options)), handler(std::move(handler)) {}
  virtual ~ConnectionHost() = default;
  virtual void left(Connection& connection) = 0;  // it is closed: the last that is heard of it
  virtual void busy(int change) = 0;              // answers under way
  virtual void failed(std::string_view id, std::string_view what) = 0;
  virtual HttpResponse own_answer(int status, std::string_view code, std::string_view message) = 0;

  const ServerOptions options;
  const Handler handler;
  std::shared_ptr<Loop> loop;
  std::string run;  // begins the ids of failures
  std::uint64_t requests = 0;
  bool draining = false;
};

class Connection final : public LineEnd, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = asio::generic::stream_protocol::socket;

  Connection(ConnectionHost& host, Socket socket, std::string client, std::string address);
  void start();
  void close();  // at once; whoever works for it is told
  void drain();  // closes where no request has begun; else the present one is the last

  // Since when it waits for a head, or for the client to close; nothing while a request is under way.
  std::optional<Clock::time_point> waiting_since() const;
  const std::string& address() const { return address_; }  // empty where addresses are not counted

  // ---- LineEnd ----
  bool serves(const Line& line) const override { return phase_ == Phase::working && line_.get() == &line; }
  void answer(HttpResponse response) override;
  void answer_dropped() override;
  void begin_stream(int status, Headers headers) override;
  void pump_stream() override;

 private:
  enum class Phase { head, body, working, lingering, closed };

  // ---- connection_read.h ----
  void read();
  void on_read(ErrorCode error, std::size_t bytes);
  void on_end_of_input();
  void feed();
  bool feed_head();
  bool feed_body();
  void on_head();
  void hand_over();
  void next_request();
  void refuse(const Refusal& refusal);
  void refuse_with(HttpResponse response);

  // ---- connection_write.h ----
  struct Piece {
    std::string own;
    Bytes shared;
    std::string_view view() const { return shared ? std::string_view(*shared) : std::string_view(own); }
  };
  HttpResponse failure(std::uint64_t number, std::string_view what);
  void decorate(Headers& headers);
  void send_answer(HttpResponse response);
  void flush();
  void on_written(ErrorCode error, std::size_t bytes);
  void on_flushed();
  void begin_answer();
  void finish_answer();
  void end_answer(int status);
  void linger();

  // ---- the timer ----
  void expire_at(Clock::time_point time);
  void on_deadline();
  void expect_body();
  void guarded(const std::function<void()>& call);

  static constexpr std::size_t buffer_bytes = 16 << 10;
  static constexpr std::size_t portion_bytes = 256 << 10;  // of a stream, in one write
  static constexpr std::size_t linger_bytes = 64 << 20;
  static constexpr std::chrono::milliseconds linger_time{1000};

  ConnectionHost& host_;
  const ServerOptions& options_;
  Socket socket_;
  asio::steady_timer timer_, delay_;
  const std::string client_, address_;
  Phase phase_ = Phase::head;

  // Reading.
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what has come and is not taken yet
  bool reading_ = false, input_ended_ = false;
  RequestReader reader_;
  Clock::time_point waiting_since_, body_begin_;
  bool head_begun_ = false;

  // The request under way, and its answer.
  std::shared_ptr<const HttpRequest> request_;
  std::shared_ptr<Line> line_;
  Clock::time_point head_end_;
  bool busy_ = false, http11_ = true, keep_alive_ = true, head_only_ = false;
  int status_ = 0;             // of the answer that has begun
  std::uint64_t answers_ = 0;  // before this one
  bool streaming_ = false, chunked_ = false, finishing_ = false;

  // Writing.
  std::deque<Piece> out_;
  std::size_t out_offset_ = 0;       // of the first piece
  std::size_t portion_waiting_ = 0;  // bytes of a stream that are in out_
  std::uint64_t sent_ = 0;
  bool writing_ = false;
  std::size_t lingered_ = 0;

  Clock::time_point deadline_ = Clock::time_point::max(), armed_ = Clock::time_point::max();
};

inline Connection::Connection(ConnectionHost& host, Socket socket, std::string client, std::string address)
    : host_(host),
      options_(host.options),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      delay_(socket_.get_executor()),
      client_(std::move(client)),
      address_(std::move(address)),
      reader_(static_cast<std::size_t>(options_.head_bytes)) {}

inline void Connection::start() {
  waiting_since_ = Clock::now();
  expire_at(waiting_since_ + options_.head_time);
  read();
}

inline void Connection::close() {
  if (phase_ == Phase::closed) return;
  const std::shared_ptr<Connection> self = shared_from_this();
  phase_ = Phase::closed;
  timer_.cancel();
  delay_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
  if (line_)
    for (const auto& call : line_->set_gone()) guarded(call);
  end_answer(status_ == 0 ? 499 : status_);
  host_.left(*this);
}

inline void Connection::drain() {
  if (phase_ == Phase::head && !reader_.begun()) close();
}

inline std::optional<Clock::time_point> Connection::waiting_since() const {
  if (phase_ != Phase::head && phase_ != Phase::lingering) return std::nullopt;
  return waiting_since_;
}

inline void Connection::guarded(const std::function<void()>& call) {
  try {
    if (call) call();
  } catch (...) {
    host_.failed({}, current_exception_text());
  }
}

// The timer is set anew only where it would ring too late: bytes that come move the deadline, not the timer.
inline void Connection::expire_at(Clock::time_point time) {
  deadline_ = time;
  if (time >= armed_ || phase_ == Phase::closed) return;
  armed_ = time;
  timer_.expires_at(time);
  timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (error || self->phase_ == Phase::closed) return;
    self->armed_ = Clock::time_point::max();
    if (Clock::now() >= self->deadline_)
      self->on_deadline();
    else
      self->expire_at(self->deadline_);
  });
}

inline void Connection::on_deadline() {
  deadline_ = Clock::time_point::max();
  if (phase_ == Phase::head && head_begun_)
    refuse({408, "too_slow", "the head of the request did not come in time"});
  else if (phase_ == Phase::body)
    refuse({408, "too_slow", "the body of the request did not come in time"});
  else
    close();  // idle, a reader that reads nothing, or one that does not close
}

// The time by which the body must be there, or at least more of it: with so many bytes the rate is kept for
// so long.
inline void Connection::expect_body() {
  const auto kept = static_cast<double>(reader_.request().body.size()) /
                    static_cast<double>(std::max<std::int64_t>(options_.body_rate, 1));
  const auto by_rate = std::chrono::seconds(1) + std::chrono::duration_cast<Clock::duration>(
                                                     std::chrono::duration<double>(std::min(kept, 1e6)));
  const Clock::duration all = options_.body_time;
  expire_at(body_begin_ + (options_.body_rate > 0 ? std::min<Clock::duration>(all, by_rate) : all));
}

}  // namespace pom::net

#include "pom/net/connection_read.h"   // IWYU pragma: keep
#include "pom/net/connection_write.h"  // IWYU pragma: keep
