// One sample of our shards: its members as they are written, and read with every CRC checked.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/data/shard_format.h"
#include "pom/io/crc32.h"
#include "pom/io/json_fields.h"
#include "pom/io/json_header.h"
#include "pom/io/webdataset.h"

namespace pom::data {
namespace {

using io::NpyType;

constexpr std::string_view json_field = "json";

std::string latent_field(const ShardSetInfo& info) {
  return info.stored + ".npy";
}

// "(8, h, w)" of what dataset.json says.
std::string expected_latent(const ShardSetInfo& info) {
  return pom::detail::concat("(", info.moments() ? 2 * info.channels : info.channels,
                             info.clips() ? ", t" : "", ", h, w)");
}

void check_latent_shape(std::span<const std::int64_t> shape, const ShardSetInfo& info,
                        std::string_view site) {
  const std::int64_t channels = info.moments() ? 2 * info.channels : info.channels;
  const std::size_t dimensions = info.clips() ? 4 : 3;
  const bool whole =
      shape.size() == dimensions && std::ranges::all_of(shape, [](auto side) { return side > 0; });
  // The mistakes that are made: one taken for the other.
  const bool other = whole && shape[0] == (info.moments() ? info.channels : 2 * info.channels);
  check(whole && shape[0] == channels, site, ": expected ", info.moments() ? "moments " : "a latent ",
        expected_latent(info), ", got ", io::npy_shape_text(shape),
        !other           ? ""
        : info.moments() ? ": a latent and no moments"
                         : ": moments (mean and log-variance) and no latent");
}

// ---- writing ----

class SampleWriter {
 public:
  SampleWriter(const ShardSample& sample, const ShardSetInfo& info)
      : sample_(sample), info_(info), site_("shards: sample \"" + shown(sample.key) + "\"") {}

  std::string bytes() {
    check_key();
    add_latent();
    check(!(sample_.label && sample_.caption), site_, ": expected a class or a caption, got both");
    if (sample_.label) add_label(*sample_.label);
    if (sample_.caption) add_caption(*sample_.caption);
    if (sample_.text) add_text(*sample_.text);
    if (sample_.mask) add_mask(*sample_.mask);
    add_member(json_field, pom::detail::concat("{\"source\": ", io::json_quoted(sample_.source),
                                               ", \"mirrored\": ", sample_.mirrored ? "true" : "false",
                                               ", \"crc32\": {", sums_, "}}"));
    return std::move(bytes_);
  }

 private:
  void check_key() const {
    const auto split = io::split_webdataset_name(sample_.key + ".x");
    check(split && split->first == sample_.key && !sample_.key.starts_with("__"), site_,
          ": key: expected a name without dots that WebDataset takes for a key");
  }

  void add_member(std::string_view field, std::string_view data) {
    bytes_ += io::tar_member(sample_.key + "." + std::string(field), std::as_bytes(std::span(data)));
  }

  void add_checked(std::string_view field, std::string_view data) {
    sums_ += pom::detail::concat(sums_.empty() ? "" : ", ", "\"", field, "\": \"",
                                 io::crc32_hex(io::crc32(data)), "\"");
    add_member(field, data);
  }

  void add_array(std::string_view field, const ShardArray& array) {
    add_checked(field, io::write_npy(array.type, array.shape, array.elements));
  }

  std::string of(std::string_view field) const { return pom::detail::concat(site_, ": ", field); }

  // What is not finite would end a training long after; an encoder in fp16 makes such numbers.
  void check_finite(const ShardArray& array, std::string_view field) const {
    check(array.type == NpyType::half || array.type == NpyType::single, of(field),
          ": expected fp16 or fp32, got ", io::npy_descr(array.type));
    io::NpyArray copy;
    copy.header.type = array.type;
    copy.header.element = io::npy_element(array.type);
    copy.header.count = array.elements.size() / copy.header.element;
    copy.elements.assign(reinterpret_cast<const char*>(array.elements.data()), array.elements.size());
    for (const float value : floats_of(copy, site_))
      check(std::isfinite(value), of(field), ": expected finite numbers, got ", value);
  }

  void add_latent() {
    check_latent_shape(sample_.latent.shape, info_, site_);
    check_finite(sample_.latent, info_.stored);
    add_array(latent_field(info_), sample_.latent);
  }

  void add_label(std::int64_t label) {
    check(label >= 0 && label < std::ssize(info_.classes), of("class"), ": expected below ",
          info_.classes.size(), ", got ", label);
    add_checked("cls", std::to_string(label));
  }

  void add_caption(const std::string& caption) {
    check(io::detail::find_invalid_utf8(caption) == caption.size(), of("caption"), ": expected UTF-8");
    add_checked("txt", caption);
  }

  void add_text(const ShardArray& text) {
    const bool fits = text.shape.size() == 2 && text.shape[0] >= 0 && text.shape[0] <= info_.text_tokens &&
                      text.shape[1] == info_.text_width;
    check(fits, of("text"), ": expected states (at most ", info_.text_tokens, ", ", info_.text_width,
          "), got ", io::npy_shape_text(text.shape));
    check(text.type == NpyType::half, of("text"), ": expected fp16, got ", io::npy_descr(text.type));
    check_finite(text, "text");
    add_array("text.npy", text);
  }

  void add_mask(const ShardArray& mask) {
    check(sample_.text && mask.shape.size() == 1 && mask.shape[0] == sample_.text->shape[0] &&
              mask.type == NpyType::boolean,
          of("mask"), ": expected a bool for each token of the text, got ", io::npy_shape_text(mask.shape));
    add_array("mask.npy", mask);
  }

  const ShardSample& sample_;
  const ShardSetInfo& info_;
  std::string site_, bytes_, sums_;
};

// ---- reading ----

class SampleReader {
 public:
  SampleReader(std::string_view bytes, std::uint64_t begin, const ShardSetInfo& info, std::string_view site)
      : bytes_(bytes),
        begin_(begin),
        info_(info),
        sample_(io::web_sample_in(bytes, begin, site)),
        site_(pom::detail::concat(site, ": sample \"", shown(sample_.key), "\"")) {
    const io::WebField* json = sample_.find(json_field);
    check(json != nullptr, site_, ": expected a member json with the CRC of the others, got none");
    for (auto& [field, sum] : io::read_json_texts(data_of(*json), "crc32", site_)) sums_.emplace(field, sum);
    for (const io::WebField& field : sample_.fields)
      if (field.name != json_field) check_sum(field);
  }

  LatentSample read() const {
    LatentSample latent = read_latent();
    if (const auto* label = sample_.find("cls")) latent.label = read_label(data_of(*label));
    check(info_.classes.empty() || info_.clips() || sample_.find("cls") != nullptr, site_,
          ": expected a member cls with its class, got none");
    if (const auto* caption = sample_.find("txt")) latent.caption = read_caption(data_of(*caption));
    if (!info_.text_hash.empty()) read_text(latent);
    return latent;
  }

 private:
  std::string_view data_of(const io::WebField& field) const {
    return bytes_.substr(static_cast<std::size_t>(field.member.data - begin_),
                         static_cast<std::size_t>(field.member.size));
  }

  std::string of(std::string_view field) const { return pom::detail::concat(site_, ": ", shown(field, 40)); }

  void check_sum(const io::WebField& field) const {
    const auto told = sums_.find(field.name);
    check(told != sums_.end(), of(field.name), ": expected its CRC in the sample's json, got none");
    const std::string sum = io::crc32_hex(io::crc32(data_of(field)));
    check(told->second == sum, of(field.name), ": damaged: expected the CRC ", shown(told->second, 20),
          ", got ", sum);
  }

  LatentSample read_latent() const {
    const std::string name = latent_field(info_);
    const io::WebField* field = sample_.find(name);
    const char* other = info_.moments() ? "latent.npy" : "moments.npy";
    check(field != nullptr, site_, ": expected a member ", name, ", as dataset.json says it is stored, got ",
          sample_.find(other) != nullptr ? other : "none");
    const io::NpyArray array = io::read_npy(data_of(*field), of(name));
    check_latent_shape(array.header.shape, info_, of(name));
    check(array.header.type == NpyType::half || array.header.type == NpyType::single, of(name),
          ": expected <f2 or <f4, got ",
          array.header.element == 1 ? "another type" : io::npy_descr(array.header.type));
    if (!info_.moments()) {
      LatentSample latent;
      latent.shape = array.header.shape;
      latent.mean = floats_of(array, of(name));
      return latent;
    }
    LatentSample latent = split_moments(array, of(name));
    deviations_of(latent.spread);
    return latent;
  }

  std::int64_t read_label(std::string_view text) const {
    std::int64_t label = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    check(whole && label >= 0 && label < std::ssize(info_.classes), of("cls"), ": expected a class below ",
          info_.classes.size(), ", got \"", shown(text, 20), "\"");
    return label;
  }

  std::string read_caption(std::string_view text) const {
    check(io::detail::find_invalid_utf8(text) == text.size(), of("txt"), ": expected UTF-8");
    return std::string(text);
  }

  // Texts that are shorter than the longest are filled up with zeros that the mask leaves out.
  void read_text(LatentSample& latent) const {
    const io::WebField* field = sample_.find("text.npy");
    check(field != nullptr, site_, ": expected a member text.npy, as dataset.json has a text_hash, got none");
    const io::NpyArray array = io::read_npy(data_of(*field), of(field->name));
    const std::vector<std::int64_t>& shape = array.header.shape;
    check(shape.size() == 2 && shape[0] <= info_.text_tokens && shape[1] == info_.text_width, of(field->name),
          ": expected states (at most ", info_.text_tokens, ", ", info_.text_width, "), got ",
          io::npy_shape_text(shape));
    latent.text_shape = {info_.text_tokens, info_.text_width};
    latent.text = halves_of(array, of(field->name));
    latent.text.resize(static_cast<std::size_t>(info_.text_tokens * info_.text_width));
    latent.mask.assign(static_cast<std::size_t>(shape[0]), 1);
    if (const io::WebField* mask = sample_.find("mask.npy")) {
      latent.mask = flags_of(io::read_npy(data_of(*mask), of(mask->name)), of(mask->name));
      check(std::ssize(latent.mask) == shape[0], of(mask->name), ": expected ", shape[0], " flags, got ",
            latent.mask.size());
    }
    latent.mask.resize(static_cast<std::size_t>(info_.text_tokens));
  }

  std::string_view bytes_;
  std::uint64_t begin_;
  const ShardSetInfo& info_;
  io::WebSample sample_;
  std::string site_;
  std::map<std::string, std::string> sums_;
};

}  // namespace

std::string shard_sample_bytes(const ShardSample& sample, const ShardSetInfo& info) {
  return SampleWriter(sample, info).bytes();
}

LatentSample parse_shard_sample(std::string_view bytes, std::uint64_t begin, const ShardSetInfo& info,
                                std::string_view site) {
  return SampleReader(bytes, begin, info, site).read();
}

}  // namespace pom::data
