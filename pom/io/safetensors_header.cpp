// Parsing and validation of the header: the JSON of each tensor, then all of them against the data.
#include "pom/io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <tuple>

#include "pom/io/json_header.h"

namespace pom::io::safetensors {

using Kind = SafetensorsError::Kind;

// Parses one header. Each method leaves the cursor after what it is named for.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::uint64_t data_bytes, const detail::Site& site)
      : site_(site), cursor_(text, site_), text_bytes_(text.size()), data_bytes_(data_bytes) {}

  Header header();

 private:
  using Offsets = std::pair<std::uint64_t, std::uint64_t>;

  void read_metadata();
  void read_tensor(const std::string& name);
  Dtype read_dtype();
  std::vector<std::int64_t> read_shape();
  Offsets read_offsets();
  void index_names();
  void check_sizes();
  void check_size(const TensorInfo& tensor) const;
  void check_coverage();

  detail::Site site_;
  detail::JsonCursor cursor_;
  std::uint64_t text_bytes_;
  std::uint64_t data_bytes_;
  Header header_;
};

Header HeaderParser::header() {
  cursor_.open('{', Kind::HeaderStart, "an object");
  for (bool first = true; cursor_.more(first, '}');) {
    const std::string key = cursor_.key();
    if (key == metadata_key)
      read_metadata();
    else
      read_tensor(key);
  }
  cursor_.finish();
  index_names();
  check_sizes();
  check_coverage();
  header_.file_ = site_.file;
  header_.data_bytes_ = data_bytes_;
  header_.data_start_ = length_bytes + text_bytes_;
  return std::move(header_);
}

void HeaderParser::read_metadata() {
  if (header_.metadata_) site_.fail(Kind::DuplicateMetadata, "expected __metadata__ once, got it twice");
  cursor_.open('{', Kind::MetadataNotObject, "__metadata__ to be an object of strings");
  Metadata metadata;
  for (bool first = true; cursor_.more(first, '}');) {
    std::string key = cursor_.key();
    std::string text =
        cursor_.string(Kind::MetadataValueNotString, "every value in __metadata__ to be a string");
    metadata.emplace_back(std::move(key), std::move(text));
  }
  std::vector<std::string_view> keys;
  for (const auto& [key, text] : metadata) keys.push_back(key);
  if (const auto key = find_duplicate(std::move(keys)))
    site_.fail(Kind::DuplicateMetadataKey, "expected keys of __metadata__ once, got ", detail::quote(*key),
               " twice");
  header_.metadata_ = std::move(metadata);
}

void HeaderParser::read_tensor(const std::string& name) {
  site_.in_tensor = true;
  site_.tensor = name;
  std::optional<Dtype> dtype;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<Offsets> offsets;
  const auto once = [&](const auto& field, std::string_view key) {
    if (field) site_.fail(Kind::DuplicateField, "expected ", key, " once, got it twice");
  };
  cursor_.open('{', Kind::TensorNotObject, "an object with dtype, shape and data_offsets");
  for (bool first = true; cursor_.more(first, '}');) {
    const std::string key = cursor_.key();
    if (key == "dtype") {
      once(dtype, key);
      dtype = read_dtype();
    } else if (key == "shape") {
      once(shape, key);
      shape = read_shape();
    } else if (key == "data_offsets") {
      once(offsets, key);
      offsets = read_offsets();
    } else {
      site_.fail(Kind::UnknownField, "expected dtype, shape and data_offsets alone, got ",
                 detail::quote(key));
    }
  }
  if (!dtype || !shape || !offsets)
    site_.fail(Kind::MissingField, "expected dtype, shape and data_offsets, got no ",
               !dtype   ? "dtype"
               : !shape ? "shape"
                        : "data_offsets");
  header_.tensors_.push_back({name, *dtype, std::move(*shape), offsets->first, offsets->second});
  site_.in_tensor = false;
}

Dtype HeaderParser::read_dtype() {
  const std::string text = cursor_.string(Kind::DtypeNotString, "dtype to be a string");
  const std::optional<Dtype> dtype = dtype_named(text);
  if (!dtype)
    site_.fail(Kind::UnknownDtype, "expected a dtype of the format such as \"F32\", got ",
               detail::quote(text));
  return *dtype;
}

std::vector<std::int64_t> HeaderParser::read_shape() {
  cursor_.open('[', Kind::ShapeNotArray, "shape to be an array of integers");
  std::vector<std::int64_t> shape;
  for (bool first = true; cursor_.more(first, ']');) {
    const std::uint64_t size = cursor_.integer("a dimension of shape to be a non-negative integer");
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      site_.fail(Kind::ShapeOverflow, "expected dimensions below 2^63, got ", size);
    shape.push_back(static_cast<std::int64_t>(size));
  }
  return shape;
}

HeaderParser::Offsets HeaderParser::read_offsets() {
  constexpr std::string_view expected = "data_offsets to be two non-negative integers";
  cursor_.open('[', Kind::OffsetsNotPair, expected);
  std::array<std::uint64_t, 2> offsets = {};
  std::size_t count = 0;
  for (bool first = true; cursor_.more(first, ']'); ++count) {
    if (count == offsets.size()) site_.fail(Kind::OffsetsNotPair, "expected ", expected, ", got more");
    offsets[count] = cursor_.integer(expected);
  }
  if (count < offsets.size()) site_.fail(Kind::OffsetsNotPair, "expected ", expected, ", got ", count);
  return {offsets[0], offsets[1]};
}

// Sorts by position in the data, then makes the index that find() searches.
void HeaderParser::index_names() {
  auto& tensors = header_.tensors_;
  // Stable, so that empty tensors, which share a position, keep the header's order.
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  auto& order = header_.by_name_;
  order.resize(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return tensors[a].name < tensors[b].name; });
  const auto same = [&](auto a, auto b) { return tensors[a].name == tensors[b].name; };
  if (const auto twice = std::adjacent_find(order.begin(), order.end(), same); twice != order.end())
    site_.fail(Kind::DuplicateTensor, "expected names of tensors once, got ",
               detail::quote(tensors[*twice].name), " twice");
}

void HeaderParser::check_sizes() {
  site_.in_tensor = true;
  for (const TensorInfo& tensor : header_.tensors_) {
    site_.tensor = tensor.name;
    check_size(tensor);
  }
  site_.in_tensor = false;
}

void HeaderParser::check_size(const TensorInfo& tensor) const {
  const auto offsets = [&] {
    return ::pom::detail::concat("data_offsets [", tensor.begin, ", ", tensor.end, "]");
  };
  if (tensor.begin > tensor.end)
    site_.fail(Kind::OffsetsReversed, "expected data_offsets to begin before they end, got ", offsets());
  if (tensor.end > data_bytes_)
    site_.fail(Kind::OffsetsOutOfRange, "expected data_offsets within the ", data_bytes_,
               " bytes of data in the file (is it truncated?), got ", offsets());
  const std::uint64_t expected = byte_count(tensor.dtype, tensor.shape, site_);
  if (tensor.bytes() != expected)
    site_.fail(Kind::SizeMismatch, "expected ", expected, " bytes for ", name(tensor.dtype), " ",
               shape_text(tensor.shape), ", got ", tensor.bytes(), " from ", offsets());
}

// Each byte belongs to one tensor: no stowaways between them, and no small file with huge content.
void HeaderParser::check_coverage() {
  std::uint64_t covered = 0;
  for (const TensorInfo& tensor : header_.tensors_) {
    site_.tensor = tensor.name;
    site_.in_tensor = true;
    if (tensor.begin != covered)
      site_.fail(tensor.begin < covered ? Kind::Overlap : Kind::Hole, "expected data_offsets to begin at ",
                 covered, ", where the tensor before it ends, got ", tensor.begin);
    covered = tensor.end;
  }
  site_.in_tensor = false;
  if (covered != data_bytes_)
    site_.fail(Kind::TrailingBytes, "expected the file to end with the last tensor, at ", covered,
               " bytes of data, got ", data_bytes_);
}

std::uint64_t header_length(std::span<const std::byte> start, std::uint64_t file_bytes,
                            const detail::Site& site) {
  if (file_bytes < length_bytes)
    site.fail(Kind::FileTooSmall, "expected at least the 8 bytes of the header's length, got ", file_bytes);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i)
    length |= std::to_integer<std::uint64_t>(start[i]) << (8 * i);
  if (length > max_header_bytes)
    site.fail(Kind::HeaderTooLarge, "expected a header of at most ", max_header_bytes, " bytes, got ",
              length);
  if (length > file_bytes - length_bytes)
    site.fail(Kind::HeaderBeyondFile, "expected a header of ", length, " bytes, got a file with ",
              file_bytes - length_bytes, " after its length");
  return length;
}

Header parse_header(std::string_view text, std::uint64_t data_bytes, const detail::Site& site) {
  if (text.empty() || text.front() != '{')
    site.fail(Kind::HeaderStart, "expected a header that begins with '{', got ",
              text.empty() ? "an empty one" : detail::quote(text.substr(0, 16)));
  if (const std::size_t bad = detail::find_invalid_utf8(text); bad != text.size())
    site.fail(Kind::InvalidUtf8, "expected a header in UTF-8, got byte ",
              static_cast<unsigned char>(text[bad]) + 0, " at ", bad);
  return HeaderParser(text, data_bytes, site).header();
}

std::uint64_t byte_count(Dtype dtype, std::span<const std::int64_t> shape, const detail::Site& site) {
  const std::optional<std::uint64_t> bits = bit_count(dtype, shape);
  if (!bits)
    site.fail(Kind::ShapeOverflow, "expected a size below 2^64 bits, got ", name(dtype), " ",
              shape_text(shape));
  if (*bits % 8 != 0)
    site.fail(Kind::PartialByte, "expected a whole number of bytes, got ", *bits, " bits for ", name(dtype),
              " ", shape_text(shape));
  return *bits / 8;
}

std::optional<std::string_view> find_duplicate(std::vector<std::string_view> names) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  return twice == names.end() ? std::nullopt : std::optional(*twice);
}

std::string shape_text(std::span<const std::int64_t> shape) {
  constexpr std::size_t most = 16;
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(shape.size(), most); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() > most ? ", ...]" : "]");
}

}  // namespace pom::io::safetensors
