// Private to http_server.cpp: how a connection reads requests. See connection.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "pom/net/connection.h"

namespace pom::net {

inline void Connection::read() {
  if (reading_ || input_ended_ || phase_ == Phase::closed) return;
  if (phase_ == Phase::lingering) begin_ = end_ = 0;  // nobody wants it any more
  // Only here, where no read is under way, may bytes move.
  const bool was_filled = end_ == buffer_.size();
  if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  const std::size_t most = std::max(buffer_bytes, static_cast<std::size_t>(options_.head_bytes));
  if (was_filled) buffer_.resize(std::min(most, std::max<std::size_t>(2048, 2 * buffer_.size())));
  if (end_ == buffer_.size()) return;  // a client that sends ahead waits until it is answered
  reading_ = true;
  socket_.async_read_some(
      asio::buffer(buffer_.data() + end_, buffer_.size() - end_),
      [self = shared_from_this()](ErrorCode error, std::size_t bytes) { self->on_read(error, bytes); });
}

inline void Connection::on_read(ErrorCode error, std::size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::closed) return;
  if (error) return on_end_of_input();
  end_ += bytes;
  lingered_ += phase_ == Phase::lingering ? bytes : 0;
  if (lingered_ > linger_bytes) return close();
  feed();
  read();
}

// Whoever has closed one direction may still read a whole answer that is under way, but nobody works for it
// any more: whether it has closed the other direction as well cannot be seen.
inline void Connection::on_end_of_input() {
  input_ended_ = true;
  if (phase_ == Phase::working && finishing_)
    keep_alive_ = false;
  else
    close();
}

// Gives the reader what has come, as far as it takes it.
inline void Connection::feed() {
  bool more = true;
  while (more && phase_ != Phase::closed) {
    if (phase_ == Phase::head)
      more = feed_head();
    else if (phase_ == Phase::body)
      more = feed_body();
    else
      more = false;
  }
}

inline bool Connection::feed_head() {
  begin_ += reader_.take({buffer_.data() + begin_, end_ - begin_});
  if (reader_.begun() && !head_begun_) {
    head_begun_ = true;
    // Of the first request the time runs since the connection is there.
    if (answers_ > 0) expire_at(Clock::now() + options_.head_time);
  }
  if (reader_.state() == RequestReader::State::refused) {
    refuse(reader_.refusal());
    return false;
  }
  if (reader_.state() == RequestReader::State::head) return false;
  on_head();
  return true;
}

inline bool Connection::feed_body() {
  begin_ += reader_.take({buffer_.data() + begin_, end_ - begin_});
  switch (reader_.state()) {
    case RequestReader::State::done:
      hand_over();
      break;
    case RequestReader::State::refused:
      refuse(reader_.refusal());
      break;
    default:
      expect_body();
  }
  return false;
}

// The head is there: everything that can be said without the body is said now.
inline void Connection::on_head() {
  HttpRequest& request = reader_.request();
  const Framing& framing = reader_.framing();
  request.client = client_;
  request.number = ++host_.requests;
  head_end_ = Clock::now();
  http11_ = framing.http11;
  keep_alive_ = framing.keep_alive;
  head_only_ = request.method == "HEAD";
  begin_answer();
  std::optional<HttpResponse> refused;
  std::int64_t most = options_.body_bytes;
  try {
    if (options_.client) request.client = options_.client(request);
    if (options_.refuse) refused = options_.refuse(request);
    if (!refused && options_.body_limit) most = options_.body_limit(request);
  } catch (...) {
    refused = failure(request.number, current_exception_text());
  }
  if (refused) return refuse_with(std::move(*refused));
  if (most < 0) return refuse({413, "body_too_large", "body: expected none"});
  reader_.begin_body(static_cast<std::uint64_t>(most));
  if (reader_.state() == RequestReader::State::refused) return refuse(reader_.refusal());
  if (reader_.state() == RequestReader::State::done) return hand_over();
  phase_ = Phase::body;
  body_begin_ = head_end_;
  expect_body();
  if (framing.expects_continue && begin_ == end_) {
    out_.push_back({"HTTP/1.1 100 Continue\r\n\r\n", {}});
    flush();
  }
}

inline void Connection::hand_over() {
  phase_ = Phase::working;
  deadline_ = Clock::time_point::max();
  request_ = std::make_shared<const HttpRequest>(std::move(reader_.request()));
  line_ = std::make_shared<Line>(host_.loop, weak_from_this(), head_only_,
                                 static_cast<std::size_t>(options_.stream_bytes));
  // Kept here until the handler is through: dropped while its exception flies, it would answer by itself.
  const std::shared_ptr<Exchange> exchange = make_exchange(line_, request_);
  try {
    host_.handler(exchange);
  } catch (...) {
    if (line_->claim()) answer(failure(request_->number, current_exception_text()));
  }
}

// Answers a request that nobody is to work for.
inline void Connection::refuse(const Refusal& refusal) {
  if (reader_.request().number == 0) {
    reader_.request() = {};
    reader_.request().client = client_;
    reader_.request().number = ++host_.requests;
    head_end_ = Clock::now();
    head_only_ = false;
    begin_answer();
  }
  keep_alive_ = false;
  refuse_with(host_.own_answer(refusal.status, refusal.code, refusal.message));
}

inline void Connection::refuse_with(HttpResponse response) {
  const Framing& framing = reader_.framing();
  keep_alive_ = keep_alive_ && !framing.has_body();  // a body that is not read would be the next request
  phase_ = Phase::working;
  deadline_ = Clock::time_point::max();
  request_ = std::make_shared<const HttpRequest>(std::move(reader_.request()));
  answer(std::move(response));
}

inline void Connection::next_request() {
  phase_ = Phase::head;
  reader_ = RequestReader(static_cast<std::size_t>(options_.head_bytes));
  head_begun_ = false;
  waiting_since_ = Clock::now();
  expire_at(waiting_since_ + options_.idle_time);
  feed();
  if (host_.draining) drain();
  read();
}

}  // namespace pom::net
