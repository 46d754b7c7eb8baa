// A record is its length (8 bytes), the masked sum of those, the message, and the masked sum of that (4 bytes
// each), all little-endian. Messages are written field by field; the numbers are those of event.proto,
// summary.proto, tensor.proto and tensor_shape.proto.
#include "pom/io/events.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fcntl.h>

#include "pom/base/error.h"
#include "pom/io/json_header.h"

namespace pom::io {
namespace {

// ---- protobuf ----

template <class Number>
void append_little_endian(std::string& out, Number value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

class Message {
 public:
  Message& integer(int field, std::int64_t value) {
    varint(static_cast<std::uint64_t>(field) << 3);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& number(int field, double value) {
    varint(static_cast<std::uint64_t>(field) << 3 | 1);
    append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& number(int field, float value) {
    varint(static_cast<std::uint64_t>(field) << 3 | 5);
    append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  Message& bytes(int field, std::string_view text) {
    varint(static_cast<std::uint64_t>(field) << 3 | 2);
    varint(text.size());
    bytes_ += text;
    return *this;
  }
  Message& message(int field, const Message& inner) { return bytes(field, inner.bytes_); }

  const std::string& text() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

Message event(double seconds, std::int64_t step) {
  return Message().number(1, seconds).integer(2, step);
}

// An event with a summary of one value.
std::string summary(const Message& value, std::int64_t step, double seconds) {
  return event(seconds, step).message(5, Message().message(1, value)).text();
}

void check_utf8(std::string_view text, std::string_view what) {
  check(detail::find_invalid_utf8(text) == text.size(), "events: ", what,
        ": expected a text in UTF-8, got other bytes");
}

// ---- files ----

detail::FileDescriptor create(const std::filesystem::path& path) {
  return detail::FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
}

// Returns 0 or the errno of what went wrong.
int write_at(int file, std::string_view bytes, off_t place) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), place);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return EIO;
    bytes.remove_prefix(static_cast<std::size_t>(written));
    place += written;
  }
  return 0;
}

std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table;
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t sum = i;
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78u : 0);
    table[i] = sum;
  }
  return table;
}

std::uint32_t masked_sum(std::string_view bytes) {
  return masked_crc32c(std::as_bytes(std::span(bytes)));
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  static const std::array<std::uint32_t, 256> table = make_table();
  std::uint32_t sum = ~0u;
  for (const std::byte b : bytes) sum = sum >> 8 ^ table[(sum ^ static_cast<std::uint32_t>(b)) & 0xff];
  return ~sum;
}

std::uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

EventWriter::EventWriter(const std::filesystem::path& folder, double seconds, std::string_view suffix) {
  char name[64];
  std::snprintf(name, sizeof name, "events.out.tfevents.%010lld", std::llround(std::floor(seconds)));
  const std::string stem = pom::detail::concat(name, ".", suffix);
  path_ = folder / stem;
  file_ = create(path_);
  // Runs that begin within a second, one after the other, sort as they began.
  for (int i = 1; !file_.is_open() && errno == EEXIST && i < 1000; ++i) {
    std::snprintf(name, sizeof name, ".%03d", i);
    path_ = folder / (stem + name);
    file_ = create(path_);
  }
  if (!file_.is_open()) fail("events: ", path_.string(), ": cannot create it: ", detail::errno_text(errno));
  record(Message().number(1, seconds).bytes(3, "brain.Event:2").text());
}

void EventWriter::restart(std::int64_t step, double seconds) {
  constexpr int start = 1;  // SessionLog.status
  record(event(seconds, step).message(7, Message().integer(1, start)).text());
}

void EventWriter::scalar(std::string_view tag, double value, std::int64_t step, double seconds) {
  check_utf8(tag, "tag");
  record(summary(Message().bytes(1, tag).number(2, static_cast<float>(value)), step, seconds));
}

void EventWriter::text(std::string_view tag, std::string_view text, std::int64_t step, double seconds) {
  check_utf8(tag, "tag");
  check_utf8(text, tag);
  constexpr int string_type = 7, tensor_class = 2;
  const Message shape = Message().message(2, Message().integer(1, 1));  // one dimension, of size 1
  const Message tensor = Message().integer(1, string_type).message(2, shape).bytes(8, text);
  const Message plugin = Message().bytes(1, "text");
  const Message metadata = Message().message(1, plugin).integer(4, tensor_class);
  record(summary(Message().bytes(1, tag).message(8, tensor).message(9, metadata), step, seconds));
}

void EventWriter::image(std::string_view tag, std::span<const std::byte> png, int width, int height,
                        std::int64_t step, double seconds) {
  check_utf8(tag, "tag");
  constexpr int rgb = 3;
  const std::string_view bytes(reinterpret_cast<const char*>(png.data()), png.size());
  const Message image = Message().integer(1, height).integer(2, width).integer(3, rgb).bytes(4, bytes);
  record(summary(Message().bytes(1, tag).message(4, image), step, seconds));
}

// After a failure the file ends where the last whole record does: readers stop at a torn one for good.
void EventWriter::record(std::string_view event) {
  std::string bytes;
  append_little_endian(bytes, static_cast<std::uint64_t>(event.size()));
  append_little_endian(bytes, masked_sum(bytes));
  bytes += event;
  append_little_endian(bytes, masked_sum(event));
  if (const int error = write_at(file_.get(), bytes, static_cast<off_t>(size_))) {
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), static_cast<off_t>(size_));
    fail("events: ", path_.string(), ": cannot write: ", detail::errno_text(error));
  }
  size_ += bytes.size();
}

}  // namespace pom::io
