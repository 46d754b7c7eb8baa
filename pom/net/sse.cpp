#include "pom/net/sse.h"

#include <charconv>
#include <iterator>
#include <utility>

#include "pom/base/error.h"

namespace pom::net {
namespace {

void check_line(std::string_view what, std::string_view text) {
  constexpr std::string_view ends("\r\n\0", 3);
  check(text.find_first_of(ends) == std::string_view::npos, "server-sent event: ", what,
        ": expected one line of text, got several");
}

}  // namespace

Headers sse_headers() {
  // The last is for nginx, which would collect them.
  return {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}};
}

std::string sse_record(std::optional<std::uint64_t> id, std::string_view event, std::string_view data) {
  check_line("event", event);
  check_line("data", data);
  std::string text;
  if (id) text += "id: " + std::to_string(*id) + "\n";
  if (!event.empty()) text.append("event: ").append(event).append("\n");
  return text.append("data: ").append(data).append("\n\n");
}

std::string sse_comment(std::string_view text) {
  check_line("comment", text);
  return std::string(text.empty() ? ":" : ": ").append(text).append("\n\n");
}

std::optional<std::uint64_t> last_event_id(const HttpRequest& request) {
  const std::string_view text = request.headers.get("Last-Event-ID");
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return id;
}

Bytes EventRing::add(std::string_view event, std::string_view data) {
  const Bytes record = std::make_shared<const std::string>(sse_record(next_, event, data));
  ++next_;
  records_.push_back(record);
  if (records_.size() > capacity_) records_.pop_front();
  return record;
}

std::optional<std::vector<Bytes>> EventRing::after(std::uint64_t id) const {
  if (id >= next_ || next_ - 1 - id > records_.size()) return std::nullopt;
  const auto missed = static_cast<std::ptrdiff_t>(next_ - 1 - id);
  return std::vector<Bytes>(std::prev(records_.end(), missed), records_.end());
}

void EventChannel::send(const Bytes& bytes) {
  std::erase_if(readers_, [&](const std::shared_ptr<BodyStream>& each) { return !each->write(bytes); });
}

void EventChannel::publish(std::string_view event, std::string_view data) {
  const std::lock_guard guard(mutex_);
  if (!ended_) send(ring_.add(event, data));
}

void EventChannel::join(std::shared_ptr<BodyStream> reader, std::optional<std::uint64_t> last,
                        const std::function<std::string()>& state) {
  const std::lock_guard guard(mutex_);
  std::optional<std::vector<Bytes>> missed;
  if (last) missed = ring_.after(*last);
  bool there = true;
  if (missed) {
    for (const Bytes& each : *missed) there = there && reader->write(each);
  } else {
    there = reader->write(std::make_shared<const std::string>(sse_record(ring_.last_id(), hello_, state())));
  }
  if (ended_)
    reader->end();
  else if (there)
    readers_.push_back(std::move(reader));
}

void EventChannel::ping() {
  const std::lock_guard guard(mutex_);
  send(std::make_shared<const std::string>(sse_comment()));
}

void EventChannel::end() {
  const std::lock_guard guard(mutex_);
  ended_ = true;
  for (const std::shared_ptr<BodyStream>& each : readers_) each->end();
  readers_.clear();
}

std::size_t EventChannel::readers() const {
  const std::lock_guard guard(mutex_);
  return readers_.size();
}

}  // namespace pom::net
