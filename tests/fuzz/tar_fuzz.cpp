// Fuzzes the reader of tars and the grouping of their members into samples. What is accepted lies within the
// file, in order, and comes back equal when its files are written and read again. Checksums are made right
// first, so that changes of headers get past them.
#include "tests/fuzz/fuzz.h"
#include <cstdint>
#include <cstdio>

#include "pom/io/webdataset.h"

namespace {

using namespace pom::io;

using Samples = std::vector<WebSample>;

Samples samples_of(const std::vector<TarMember>& members) {
  Samples samples;
  WebGrouping grouping("fuzz");
  WebSample done;
  for (const TarMember& member : members)
    if (grouping.add(member, done)) samples.push_back(done);
  if (grouping.finish(done)) samples.push_back(done);
  return samples;
}

void check_places(const std::vector<TarMember>& members, std::size_t size) {
  std::uint64_t place = 0;
  for (const TarMember& member : members) {
    fuzz::require(member.header == place && member.data > place, "members follow each other");
    fuzz::require(member.data + member.size <= member.next && member.next <= size, "data lies in the file");
    fuzz::require(!member.name.empty() && member.name.size() <= max_tar_name, "a name");
    place = member.next;
  }
}

void check_samples(std::string_view text, const std::vector<TarMember>& members) {
  Samples samples;
  if (!fuzz::accepted([&] { samples = samples_of(members); })) return;
  for (const WebSample& sample : samples) {
    const std::string_view bytes = text.substr(sample.begin, sample.end - sample.begin);
    fuzz::accepted([&] {
      const WebSample again = web_sample_in(bytes, sample.begin, "range");
      fuzz::require(again.key == sample.key && again.fields.size() == sample.fields.size(),
                    "the same sample");
    });
  }
}

void check_again(std::string_view text, const std::vector<TarMember>& members) {
  std::string again;
  std::size_t files = 0;
  for (const TarMember& member : members) {
    if (!member.is_file() || member.name.ends_with('/')) continue;
    const std::string_view data = text.substr(member.data, member.size);
    again += tar_member(member.name, std::as_bytes(std::span(data)));
    ++files;
  }
  const auto listed = list_tar(again + std::string(1024, '\0'), "again");
  fuzz::require(listed.size() == files, "as many files");
}

void parse(std::string_view text) {
  std::vector<TarMember> members;
  if (!fuzz::accepted([&] { members = list_tar(text, "fuzz"); })) return;
  check_places(members, text.size());
  check_samples(text, members);
  check_again(text, members);
}

// Every block as a header with its sum.
std::string with_sums(std::string_view text) {
  std::string bytes(text);
  for (std::size_t at = 0; at + 512 <= bytes.size(); at += 512) {
    if (std::string_view(bytes).substr(at + 257, 5) != "ustar") continue;
    bytes.replace(at + 148, 8, "        ");
    unsigned sum = 0;
    for (std::size_t i = at; i < at + 512; ++i) sum += static_cast<unsigned char>(bytes[i]);
    char digits[8];
    std::snprintf(digits, sizeof digits, "%06o", sum);
    bytes.replace(at + 148, 7, digits, 7);
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  parse(text);
  parse(with_sums(text));
  fuzz::accepted([&] { expand_webdataset(text.substr(0, std::min<std::size_t>(size, 24))); });
  return 0;
}
