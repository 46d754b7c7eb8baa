// Private to http_server.cpp: how a connection writes answers. See connection.h.
#pragma once

#include <boost/asio/buffer.hpp>
#include <cstdio>
#include <ctime>

#include "pom/net/connection.h"
#include "pom/net/response_head.h"

namespace pom::net {

inline HttpResponse Connection::failure(std::uint64_t number, std::string_view what) {
  const std::string id = host_.run + std::to_string(number);
  host_.failed(id, what);
  return host_.own_answer(500, "internal", "internal error " + id);
}

inline void Connection::answer_dropped() {
  answer(failure(request_->number, "the handler gave no answer"));
}

inline void Connection::answer(HttpResponse response) {
  if (response.delay <= std::chrono::milliseconds(0)) return send_answer(std::move(response));
  delay_.expires_after(response.delay);
  delay_.async_wait([self = shared_from_this(),
                     held = std::make_shared<HttpResponse>(std::move(response))](ErrorCode error) {
    if (!error && self->phase_ == Phase::working) self->send_answer(std::move(*held));
  });
}

inline void Connection::decorate(Headers& headers) {
  if (options_.decorate && request_) guarded([&] { options_.decorate(*request_, headers); });
}

inline void Connection::send_answer(HttpResponse response) {
  status_ = response.status >= 200 && response.status <= 599 ? response.status : 500;
  const Bytes shared = std::move(response.shared);
  const std::size_t size = shared ? shared->size() : response.body.size();
  if (host_.draining || same_name(response.headers.get("Connection"), "close")) keep_alive_ = false;
  ResponseFrame frame{.http11 = http11_, .close = !keep_alive_};
  if (!has_no_body(status_)) frame.length = size;
  decorate(response.headers);
  out_.push_back({response_head(status_, response.headers, frame, std::time(nullptr)), {}});
  if (!head_only_ && !has_no_body(status_) && size > 0) out_.push_back({std::move(response.body), shared});
  finishing_ = true;
  flush();
}

inline void Connection::begin_stream(int status, Headers headers) {
  status_ = status >= 200 && status <= 599 ? status : 500;
  const bool body = !head_only_ && !has_no_body(status_);
  chunked_ = http11_ && body;
  // Without chunks only the end of the connection ends the body.
  if (host_.draining || (body && !chunked_)) keep_alive_ = false;
  ResponseFrame frame{.http11 = http11_, .close = !keep_alive_, .chunked = chunked_};
  decorate(headers);
  out_.push_back({response_head(status_, headers, frame, std::time(nullptr)), {}});
  streaming_ = body;
  finishing_ = !body;
  flush();
}

inline void Connection::pump_stream() {
  if (!streaming_ || finishing_) return;
  if (line_->aborted()) {
    // Where the end of the connection is the end of the body, only a reset tells that it is not whole.
    ErrorCode ignored;
    if (!chunked_) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    return close();
  }
  if (writing_) return;  // when that is through, it looks here again
  Line::Portion portion = line_->take(portion_bytes);
  for (Bytes& piece : portion.pieces) {
    portion_waiting_ += piece->size();
    char size[24];
    std::snprintf(size, sizeof size, "%zx\r\n", piece->size());
    if (chunked_) out_.push_back({size, {}});
    out_.push_back({{}, std::move(piece)});
    if (chunked_) out_.push_back({"\r\n", {}});
  }
  if (portion.ended) {
    if (chunked_) out_.push_back({"0\r\n\r\n", {}});
    finishing_ = true;
  }
  if (!out_.empty() || finishing_) flush();
}

inline void Connection::flush() {
  if (writing_ || phase_ == Phase::closed) return;
  if (out_.empty()) return on_flushed();
  std::vector<asio::const_buffer> buffers;
  for (std::size_t i = 0; i < std::min<std::size_t>(out_.size(), 48); ++i) {
    const std::string_view view = out_[i].view().substr(i == 0 ? out_offset_ : 0);
    buffers.emplace_back(view.data(), view.size());
  }
  writing_ = true;
  if (phase_ == Phase::working) expire_at(Clock::now() + options_.write_time);
  socket_.async_write_some(buffers, [self = shared_from_this()](ErrorCode error, std::size_t bytes) {
    self->on_written(error, bytes);
  });
}

inline void Connection::on_written(ErrorCode error, std::size_t bytes) {
  writing_ = false;
  if (phase_ == Phase::closed) return;
  if (error) return close();
  sent_ += bytes;
  out_offset_ += bytes;
  while (!out_.empty() && out_offset_ >= out_.front().view().size()) {
    out_offset_ -= out_.front().view().size();
    out_.pop_front();
  }
  flush();
}

// Everything is with the socket.
inline void Connection::on_flushed() {
  if (phase_ != Phase::working) return;  // "100 Continue" and nothing more
  deadline_ = Clock::time_point::max();
  if (portion_waiting_ > 0) guarded(line_->sent(std::exchange(portion_waiting_, 0)));
  if (phase_ == Phase::closed) return;
  if (finishing_)
    finish_answer();
  else if (streaming_)
    pump_stream();
}

inline void Connection::finish_answer() {
  if (line_) line_->set_done();
  line_.reset();
  end_answer(status_);
  streaming_ = chunked_ = finishing_ = false;
  if (!keep_alive_) return linger();
  next_request();
}

inline void Connection::begin_answer() {
  busy_ = true;
  host_.busy(+1);
}

// Whole or not: this is the last of it.
inline void Connection::end_answer(int status) {
  if (!std::exchange(busy_, false)) return;
  if (!request_) request_ = std::make_shared<const HttpRequest>(std::move(reader_.request()));
  const double seconds = std::chrono::duration<double>(Clock::now() - head_end_).count();
  if (options_.on_answer) guarded([&] { options_.on_answer(*request_, status, sent_, seconds); });
  request_.reset();
  status_ = 0;
  sent_ = 0;
  ++answers_;
  host_.busy(-1);
}

// What the client still sends is read and dropped for a while: a socket that is closed over unread bytes
// resets, and takes the answer with it.
inline void Connection::linger() {
  ErrorCode error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error || input_ended_) return close();
  phase_ = Phase::lingering;
  waiting_since_ = Clock::now();
  expire_at(waiting_since_ + linger_time);
  read();
}

}  // namespace pom::net
