// Server-sent events: records of a few lines that a browser or a client reads as they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/net/http_message.h"
#include "pom/net/http_server.h"

namespace pom::net {

Headers sse_headers();  // of the answer

// "id: 7", "event: progress", "data: {...}" and an empty line. Data is one line (JSON has no need of more),
// and the event's name too; anything else is a pom::Error. Without an id a client that comes back is not told
// to mention it; without an event it is a "message".
std::string sse_record(std::optional<std::uint64_t> id, std::string_view event, std::string_view data);
std::string sse_comment(std::string_view text = "");  // what clients pass over: keeps a connection open

// The id that a client read last, of "Last-Event-ID"; nothing where there is none, or no number.
std::optional<std::uint64_t> last_event_id(const HttpRequest& request);

// The last records that were made, with ids that count up. Not for two threads at once.
class EventRing {
 public:
  // `first` is the first id. Where clients may come back after a restart, one that grows from run to run (a
  // time in microseconds): else they would seem to have read what was never sent to them.
  explicit EventRing(std::size_t capacity = 64, std::uint64_t first = 1)
      : capacity_(capacity), next_(first) {}

  Bytes add(std::string_view event, std::string_view data);
  std::uint64_t last_id() const {
    return next_ - 1;
  }  // of the newest record; before the first, one less than it
  // What came after this id; nothing where some of that is gone, or the id is none of ours.
  std::optional<std::vector<Bytes>> after(std::uint64_t id) const;

 private:
  std::size_t capacity_;
  std::uint64_t next_;
  std::deque<Bytes> records_;  // the last one has the id next_ - 1
};

// A source of events and those who read it. From any thread; nobody waits for a reader.
class EventChannel {
 public:
  // `hello` is the name of the record with the whole state.
  explicit EventChannel(std::size_t capacity = 64, std::uint64_t first = 1, std::string hello = "state")
      : ring_(capacity, first), hello_(std::move(hello)) {}

  void publish(std::string_view event, std::string_view data);

  // One more reader. First comes what it missed since `last`, where the ring still has all of that; else a
  // record "state" whose data is all that is to be known now. So no reader needs what it has not seen.
  // `state` is called under the channel's lock: it must not publish.
  void join(std::shared_ptr<BodyStream> reader, std::optional<std::uint64_t> last,
            const std::function<std::string()>& state);

  void ping();  // a comment to all, every 15 seconds: proxies cut silent connections
  void end();   // no more events: all readers see their end, and those who join later
  std::size_t readers() const;

 private:
  void send(const Bytes& bytes);

  mutable std::mutex mutex_;
  EventRing ring_;
  std::string hello_;
  std::vector<std::shared_ptr<BodyStream>> readers_;
  bool ended_ = false;
};

}  // namespace pom::net
