#include "pom/net/request_reader.h"

#include <algorithm>

#include "pom/base/error.h"

namespace pom::net {
namespace {

using Outcome = std::optional<Refusal>;

Refusal bad_chunk(std::string_view what) {
  return {400, "bad_request", pom::detail::concat("chunked body: ", what)};
}

Refusal too_large(std::uint64_t most) {
  return {413, "body_too_large", pom::detail::concat("body: expected at most ", most, " bytes")};
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_control(char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
}

}  // namespace

Outcome ChunkReader::take_size(char c, std::uint64_t room) {
  const int value = hex_value(c);
  if (value >= 0) {
    if (++digits_ > 15) return bad_chunk("a size of more than 15 digits");  // no overflow that way
    size_ = size_ << 4 | static_cast<std::uint64_t>(value);
    return {};
  }
  if (digits_ == 0) return bad_chunk("expected the size of a chunk");
  if (size_ > room) return Refusal{413, "", ""};  // the caller knows the limit's number
  if (c == ';')
    state_ = State::extension;
  else if (c == '\r')
    state_ = State::size_end;
  else
    return bad_chunk("expected the end of a size");
  return {};
}

Outcome ChunkReader::take_extra(char c) {
  if (++extra_ > max_extra) return bad_chunk("too much in extensions and trailers");
  if (c != '\r' && is_control(c)) return bad_chunk("a control character");
  return {};
}

// A quoted string ends where its line does: readers that let it go on would find other chunks than these.
Outcome ChunkReader::take_extension(char c) {
  if (c == '\r') {
    if (quoted_) return bad_chunk("a quoted string that does not end");
    state_ = State::size_end;
  } else if (escaped_) {
    escaped_ = false;
  } else if (c == '"') {
    quoted_ = !quoted_;
  } else if (c == '\\') {
    escaped_ = quoted_;
  }
  return take_extra(c);
}

// One byte that is not content.
Outcome ChunkReader::take_mark(char c, std::uint64_t room) {
  switch (state_) {
    case State::size:
      return take_size(c, room);
    case State::extension:
      return take_extension(c);
    case State::size_end:
      if (c != '\n') return bad_chunk("a carriage return without its line feed");
      state_ = size_ > 0 ? State::data : State::trailer;
      line_is_empty_ = true;
      return {};
    case State::data_return:
      if (c != '\r') return bad_chunk("expected the end of a chunk");
      state_ = State::data_feed;
      return {};
    case State::data_feed:
      if (c != '\n') return bad_chunk("expected the end of a chunk");
      state_ = State::size;
      size_ = 0, digits_ = 0;
      return {};
    case State::trailer:
      if (c == '\r')
        state_ = State::trailer_end;
      else
        line_is_empty_ = false;
      return take_extra(c);
    case State::trailer_end:
      if (c != '\n') return bad_chunk("a carriage return without its line feed");
      state_ = line_is_empty_ ? State::done : State::trailer;
      line_is_empty_ = true;
      return {};
    case State::data:
    case State::done:
      break;
  }
  return {};
}

Outcome ChunkReader::take(std::string_view& bytes, std::string& body, std::uint64_t most) {
  while (!bytes.empty() && !done()) {
    if (state_ == State::data) {
      const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(size_, bytes.size()));
      body.append(bytes.substr(0, count));
      bytes.remove_prefix(count);
      size_ -= count;
      if (size_ == 0) state_ = State::data_return;
    } else {
      Outcome refused = take_mark(bytes.front(), most - body.size());
      bytes.remove_prefix(1);
      if (refused) return refused->status == 413 ? too_large(most) : std::move(refused);
    }
  }
  return {};
}

void RequestReader::refuse(Refusal refusal) {
  refusal_ = std::move(refusal);
  state_ = State::refused;
}

std::size_t RequestReader::take_head(std::string_view bytes) {
  if (Outcome refused = scan_.look(bytes, most_head_)) {
    refuse(std::move(*refused));
    return 0;
  }
  if (!scan_.complete()) return 0;
  state_ = State::head_done;
  if (Outcome refused = parse_head(scan_.head(bytes), request_, framing_)) refuse(std::move(*refused));
  return scan_.size();
}

void RequestReader::begin_body(std::uint64_t most) {
  most_body_ = most;
  if (framing_.length > most) return refuse(too_large(most));
  state_ = framing_.has_body() ? State::body : State::done;
  request_.body.reserve(static_cast<std::size_t>(std::min<std::uint64_t>(framing_.length, 1 << 20)));
}

std::size_t RequestReader::take_body(std::string_view bytes) {
  std::string& body = request_.body;
  if (!framing_.chunked) {
    const std::size_t left = static_cast<std::size_t>(framing_.length) - body.size();
    const std::string_view own = bytes.substr(0, left);
    body.append(own);
    if (body.size() == framing_.length) state_ = State::done;
    return own.size();
  }
  std::string_view rest = bytes;
  Outcome refused = chunks_.take(rest, body, most_body_);
  if (refused)
    refuse(std::move(*refused));
  else if (chunks_.done())
    state_ = State::done;
  return bytes.size() - rest.size();
}

std::size_t RequestReader::take(std::string_view bytes) {
  if (state_ == State::head) return take_head(bytes);
  return state_ == State::body ? take_body(bytes) : 0;
}

}  // namespace pom::net
