// Writing safetensors: the layout and the header are settled first, then the bytes go to a file or to memory.
#include <algorithm>
#include <tuple>

#include "pom/io/atomic_file.h"
#include "pom/io/json_header.h"
#include "pom/io/safetensors_header.h"

namespace pom::io::safetensors {
namespace {

using Kind = SafetensorsError::Kind;

struct Layout {
  std::string head;                        // everything before the data
  std::vector<const TensorView*> tensors;  // in the order of the data
  std::uint64_t data_bytes = 0;
};

void check_tensor(const TensorView& tensor, const detail::Site& site) {
  if (tensor.name == metadata_key)
    site.fail(Kind::ReservedName, "expected any name but that of the metadata, got ", metadata_key);
  if (detail::find_invalid_utf8(tensor.name) != tensor.name.size())
    site.fail(Kind::InvalidUtf8, "expected a name in UTF-8, got other bytes");
  if (std::any_of(tensor.shape.begin(), tensor.shape.end(), [](std::int64_t size) { return size < 0; }))
    site.fail(Kind::NegativeDimension, "expected dimensions of at least 0, got ", shape_text(tensor.shape));
  const std::uint64_t expected = byte_count(tensor.dtype, tensor.shape, site);
  if (tensor.data.size() != expected)
    site.fail(Kind::SizeMismatch, "expected ", expected, " bytes for ", name(tensor.dtype), " ",
              shape_text(tensor.shape), ", got ", tensor.data.size());
}

void check_metadata(const Metadata& metadata, const detail::Site& site) {
  std::vector<std::string_view> keys;
  for (const auto& [key, text] : metadata) {
    if (detail::find_invalid_utf8(key) != key.size() || detail::find_invalid_utf8(text) != text.size())
      site.fail(Kind::InvalidUtf8, "expected metadata in UTF-8, got other bytes under ", detail::quote(key));
    keys.push_back(key);
  }
  if (const auto key = find_duplicate(std::move(keys)))
    site.fail(Kind::DuplicateMetadataKey, "expected keys of the metadata once, got ", detail::quote(*key),
              " twice");
}

void check_input(std::span<const TensorView> tensors, const std::optional<Metadata>& metadata,
                 detail::Site site) {
  if (metadata) check_metadata(*metadata, site);
  std::vector<std::string_view> names;
  for (const TensorView& tensor : tensors) names.push_back(tensor.name);
  if (const auto name = find_duplicate(std::move(names)))
    site.fail(Kind::DuplicateTensor, "expected names of tensors once, got ", detail::quote(*name), " twice");
  site.in_tensor = true;
  for (const TensorView& tensor : tensors) {
    site.tensor = tensor.name;
    check_tensor(tensor, site);
  }
}

void append_metadata(std::string& json, const Metadata& metadata) {
  detail::append_json_string(json, metadata_key);
  json += ":{";
  for (const auto& [key, text] : metadata) {
    if (json.back() != '{') json += ',';
    detail::append_json_string(json, key);
    json += ':';
    detail::append_json_string(json, text);
  }
  json += '}';
}

void append_tensor(std::string& json, const TensorView& tensor, std::uint64_t begin) {
  detail::append_json_string(json, tensor.name);
  json.append(":{\"dtype\":\"").append(name(tensor.dtype)).append("\",\"shape\":[");
  for (const std::int64_t size : tensor.shape) {
    if (json.back() != '[') json += ',';
    json += std::to_string(size);
  }
  json += "],\"data_offsets\":[" + std::to_string(begin) + ',' + std::to_string(begin + tensor.data.size()) +
          "]}";
}

std::string little_endian(std::uint64_t value) {
  std::string bytes(length_bytes, '\0');
  for (std::size_t i = 0; i < length_bytes; ++i) bytes[i] = static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

Layout lay_out(std::span<const TensorView> tensors, const std::optional<Metadata>& metadata,
               std::string file) {
  const detail::Site site{"safetensors write", std::move(file)};
  check_input(tensors, metadata, site);
  Layout layout;
  for (const TensorView& tensor : tensors) layout.tensors.push_back(&tensor);
  std::sort(layout.tensors.begin(), layout.tensors.end(), [](const TensorView* a, const TensorView* b) {
    return std::tie(b->dtype, a->name) < std::tie(a->dtype, b->name);
  });
  std::string json = "{";
  if (metadata) append_metadata(json, *metadata);
  for (const TensorView* tensor : layout.tensors) {
    if (json.size() > 1) json += ',';
    append_tensor(json, *tensor, layout.data_bytes);
    layout.data_bytes += tensor->data.size();
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');  // so that the data is aligned in the file
  if (json.size() > max_header_bytes)
    site.fail(Kind::HeaderTooLarge, "expected names and metadata that make a header of at most ",
              max_header_bytes, " bytes, got ", json.size());
  layout.head = little_endian(json.size()) + json;
  return layout;
}

}  // namespace

void write(const std::filesystem::path& path, std::span<const TensorView> tensors,
           const std::optional<Metadata>& metadata) {
  const Layout layout = lay_out(tensors, metadata, path.string());
  AtomicFile file(path);
  file.write(layout.head);
  for (const TensorView* tensor : layout.tensors) file.write(tensor->data);
  file.commit();
}

std::vector<std::byte> serialize(std::span<const TensorView> tensors,
                                 const std::optional<Metadata>& metadata) {
  const Layout layout = lay_out(tensors, metadata, "<memory>");
  const auto head = std::as_bytes(std::span(layout.head));
  std::vector<std::byte> bytes;
  bytes.reserve(head.size() + layout.data_bytes);
  bytes.insert(bytes.end(), head.begin(), head.end());
  for (const TensorView* tensor : layout.tensors)
    bytes.insert(bytes.end(), tensor->data.begin(), tensor->data.end());
  return bytes;
}

}  // namespace pom::io::safetensors
