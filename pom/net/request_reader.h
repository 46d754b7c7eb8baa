// Private to the room: requests out of the bytes of a connection, one after the other. Knows no socket; holds
// no more than the limits say, however the bytes are cut. The reader of Boost.Beast is its referee in
// tests/fuzz.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "pom/net/http_message.h"
#include "pom/net/request_head.h"

namespace pom::net {

// The body of a request in chunks (RFC 9112, 7.1). Extensions and trailers are passed over.
class ChunkReader {
 public:
  // In one body, of all that is not content: more is an attack and no client.
  static constexpr std::size_t max_extra = 16 << 10;

  // Takes bytes from the front of `bytes`, which it shortens, and appends content to `body`.
  std::optional<Refusal> take(std::string_view& bytes, std::string& body, std::uint64_t most);
  bool done() const { return state_ == State::done; }

 private:
  enum class State { size, extension, size_end, data, data_return, data_feed, trailer, trailer_end, done };
  std::optional<Refusal> take_mark(char c, std::uint64_t room);
  std::optional<Refusal> take_size(char c, std::uint64_t room);
  std::optional<Refusal> take_extra(char c);
  std::optional<Refusal> take_extension(char c);

  State state_ = State::size;
  std::uint64_t size_ = 0;  // of this chunk, or what is left of it
  int digits_ = 0;
  std::size_t extra_ = 0;
  bool quoted_ = false, escaped_ = false;  // in an extension
  bool line_is_empty_ = true;              // in the trailer
};

class RequestReader {
 public:
  enum class State { head, head_done, body, done, refused };

  explicit RequestReader(std::size_t most_head) : most_head_(most_head) {}

  // Looks at all bytes that have come and are not taken yet, and says how many it takes. It stops at the end
  // of the head, where begin_body() lets it go on, and at the end of the request.
  std::size_t take(std::string_view bytes);
  void begin_body(std::uint64_t most);

  State state() const { return state_; }
  bool begun() const { return scan_.begun(); }
  HttpRequest& request() { return request_; }
  const Framing& framing() const { return framing_; }
  const Refusal& refusal() const { return refusal_; }

 private:
  std::size_t take_head(std::string_view bytes);
  std::size_t take_body(std::string_view bytes);
  void refuse(Refusal refusal);

  std::size_t most_head_;
  std::uint64_t most_body_ = 0;
  State state_ = State::head;
  HeadScan scan_;
  ChunkReader chunks_;
  HttpRequest request_;
  Framing framing_;
  Refusal refusal_;
};

}  // namespace pom::net
