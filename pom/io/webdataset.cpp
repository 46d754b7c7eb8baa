#include "pom/io/webdataset.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "pom/base/error.h"
#include "pom/base/shown.h"

namespace pom::io {
namespace {

constexpr std::array<std::string_view, 4> pickle_endings = {"pth", "pyd", "pickle", "pkl"};

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// "__…__", as a file or as the first folder.
bool is_web_metadata(std::string_view name) {
  const std::string_view first = name.substr(0, std::min(name.find('/'), name.size()));
  return first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
}

void refuse_pickle(const WebField& field, std::string_view site) {
  const std::string_view ending = std::string_view(field.name).substr(field.name.rfind('.') + 1);
  check(std::ranges::find(pickle_endings, ending) == pickle_endings.end(), site, ": member \"",
        shown(field.member.name), "\" at byte ", field.member.header,
        ": expected data, got a pickle, which is a program and is not read");
}

}  // namespace

std::optional<std::pair<std::string, std::string>> split_webdataset_name(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  const std::size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const std::size_t dot = name.find('.', base);
  if (dot == std::string_view::npos) return std::nullopt;
  if (dot == base) {
    // "a/.b": the package's own rule gives the key "a/", unless there is a dot in "a" too.
    if (base == 0) return std::nullopt;
    const std::size_t before = slash == 0 ? std::string_view::npos : name.rfind('/', slash - 1);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    if (name.substr(begin, slash - begin).find('.') != std::string_view::npos) return std::nullopt;
  }
  return std::pair(std::string(name.substr(0, dot)), in_lower_case(name.substr(dot + 1)));
}

const WebField* WebSample::find(std::string_view field) const {
  const auto found = std::ranges::find(fields, field, &WebField::name);
  return found == fields.end() ? nullptr : &*found;
}

bool WebGrouping::add(TarMember member, WebSample& done) {
  if (!member.is_file() || is_web_metadata(member.name)) return false;
  auto named = split_webdataset_name(member.name);
  if (!named) return false;
  auto& [key, field] = *named;
  const bool another = open_ && open_->key != key;
  if (another) done = std::move(*open_);
  if (another || !open_) open_ = WebSample{std::move(key), member.header, 0, {}};
  check(open_->find(field) == nullptr, site_, ": member \"", shown(member.name), "\" at byte ", member.header,
        ": the sample has the field ", shown(field, 40), " already");
  open_->end = member.next;
  open_->fields.push_back({std::move(field), std::move(member)});
  return another;
}

bool WebGrouping::finish(WebSample& done) {
  if (!open_) return false;
  done = std::move(*open_);
  open_.reset();
  return true;
}

WebShard::WebShard(const std::filesystem::path& path) : tar_(path), grouping_(tar_.site()) {}

bool WebShard::next(WebSample& sample) {
  for (TarMember member; tar_.next(member);)
    if (grouping_.add(std::move(member), sample)) return true;
  return grouping_.finish(sample);
}

std::string WebShard::read(const WebField& field, std::uint64_t most) const {
  refuse_pickle(field, site());
  return tar_.read(field.member, most);
}

WebSample web_sample_in(std::string_view bytes, std::uint64_t begin, std::string_view site) {
  WebGrouping grouping{std::string(site)};
  WebSample sample;
  for (TarMember& member : list_tar_range(bytes, begin, site))
    check(!grouping.add(std::move(member), sample), site, ": at byte ", begin,
          ": expected one sample, got another after it: the shard has changed");
  check(grouping.finish(sample), site, ": at byte ", begin,
        ": expected a sample, got none: the shard has changed");
  for (const WebField& field : sample.fields) refuse_pickle(field, site);
  return sample;
}

}  // namespace pom::io
