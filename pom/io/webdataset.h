// WebDataset: samples in tars. A sample is the members of one key that follow each other; "a/b/01.mean.npy"
// has the key "a/b/01" and is the field "mean.npy". Members without a dot in their name, those that are no
// files and those named "__…__" belong to no sample. A key that comes again later is another sample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pom/io/tar.h"

namespace pom::io {

// Key and field of a member's name; the field in lower case.
std::optional<std::pair<std::string, std::string>> split_webdataset_name(std::string_view name);

// "data-{000000..000123}.tar", "{a,b}", lists joined by "::", as the package braceexpand expands them; a
// backslash takes the meaning from the character after it. More than 10^6 names are an error.
std::vector<std::string> expand_webdataset(std::string_view pattern);

struct WebField {
  std::string name;  // "mean.npy"
  TarMember member;
};

struct WebSample {
  std::string key;
  std::uint64_t begin = 0, end = 0;  // bytes of the tar in which its members lie
  std::vector<WebField> fields;

  const WebField* find(std::string_view field) const;
};

// Puts members together, one after the other.
class WebGrouping {
 public:
  explicit WebGrouping(std::string site) : site_(std::move(site)) {}

  // True where `member` begins another sample: then `done` is the one before. A field that comes twice in a
  // sample is an error.
  bool add(TarMember member, WebSample& done);
  // The sample that was begun last; false where there is none.
  bool finish(WebSample& done);

 private:
  std::string site_;
  std::optional<WebSample> open_;
};

// A shard in a file. next() reads headers alone.
class WebShard {
 public:
  explicit WebShard(const std::filesystem::path& path);

  const std::string& site() const { return tar_.site(); }
  bool next(WebSample& sample);
  // The bytes of a field; const, from many threads. Pickles are programs: pth, pyd, pickle and pkl are
  // refused.
  std::string read(const WebField& field, std::uint64_t most) const;
  const TarReader& tar() const { return tar_; }

 private:
  TarReader tar_;
  WebGrouping grouping_;
};

// The one sample in bytes of a shard that were read together and begin at `begin`.
WebSample web_sample_in(std::string_view bytes, std::uint64_t begin, std::string_view site);

}  // namespace pom::io
