// The CRC of a member is known when its bytes are: it stands behind them (a data descriptor) and in the
// directory at the end. Numbers are little-endian.
#include "pom/io/npz_stream.h"

#include "pom/base/error.h"
#include "pom/io/crc32.h"

namespace pom::io {
namespace {

constexpr std::uint64_t elsewhere32 = 0xffffffff, needs_zip64 = 45, crc_follows = 1 << 3, first_day = 0x21;

class ZipText {
 public:
  ZipText& put(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  ZipText& put(const std::string& text) {
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// What a member's header and its line in the directory have in common; sizes are in the extra field.
void put_common(ZipText& text, const std::string& name, std::uint32_t crc, std::uint64_t extra) {
  text.put(needs_zip64, 2).put(crc_follows, 2).put(0, 2).put(0, 2).put(first_day, 2).put(crc, 4);
  text.put(elsewhere32, 4).put(elsewhere32, 4).put(name.size(), 2).put(extra, 2);
}

}  // namespace

void NpzStream::put(std::string_view bytes) {
  file_.write(bytes);
  written_ += bytes.size();
}

void NpzStream::begin(const std::string& name, NpyType type, std::span<const std::int64_t> shape) {
  end_member();
  const std::string head = npy_head(type, shape);
  Member member{.name = name + ".npy", .header = written_};
  missing_ = npy_element(type);
  for (const std::int64_t side : shape) missing_ *= static_cast<std::uint64_t>(side);
  member.size = head.size() + missing_;
  member.crc = crc32(head);
  ZipText text;
  text.put(0x04034b50, 4);
  put_common(text, member.name, 0, 20);
  text.put(member.name).put(1, 2).put(16, 2).put(member.size, 8).put(member.size, 8);
  put(text.text());
  put(head);
  members_.push_back(std::move(member));
}

void NpzStream::add(std::span<const std::byte> elements) {
  check(!members_.empty() && elements.size() <= missing_, "npz write: expected at most ", missing_,
        " bytes more, got ", elements.size());
  members_.back().crc = crc32(elements, members_.back().crc);
  file_.write(elements);
  written_ += elements.size();
  missing_ -= elements.size();
}

void NpzStream::end_member() {
  if (members_.empty()) return;
  const Member& member = members_.back();
  check(missing_ == 0, "npz write: ", member.name, ": expected ", missing_, " bytes more, got none");
  put(ZipText().put(0x08074b50, 4).put(member.crc, 4).put(member.size, 8).put(member.size, 8).text());
}

void NpzStream::commit() {
  end_member();
  const std::uint64_t begin = written_, count = members_.size();
  for (const Member& member : members_) {
    ZipText text;
    text.put(0x02014b50, 4).put(needs_zip64, 2);
    put_common(text, member.name, member.crc, 28);
    text.put(0, 2).put(0, 2).put(0, 2).put(0, 4).put(elsewhere32, 4).put(member.name);
    text.put(1, 2).put(24, 2).put(member.size, 8).put(member.size, 8).put(member.header, 8);
    put(text.text());
  }
  const std::uint64_t end = written_;
  ZipText text;
  text.put(0x06064b50, 4).put(44, 8).put(needs_zip64, 2).put(needs_zip64, 2).put(0, 4).put(0, 4);
  text.put(count, 8).put(count, 8).put(end - begin, 8).put(begin, 8);
  text.put(0x07064b50, 4).put(0, 4).put(end, 8).put(1, 4);
  text.put(0x06054b50, 4).put(0, 4).put(0xffff, 2).put(0xffff, 2);
  text.put(elsewhere32, 4).put(elsewhere32, 4).put(0, 2);
  put(text.text());
  file_.commit();
}

}  // namespace pom::io
