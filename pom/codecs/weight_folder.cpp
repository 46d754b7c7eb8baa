#include "pom/codecs/weight_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"
#include "pom/io/json_fields.h"
#include "pom/io/sha256.h"

namespace pom::codecs {
namespace {

namespace st = io::safetensors;

std::string shape_text(std::span<const std::int64_t> shape) {
  constexpr std::size_t most = 8;
  std::string text = "(";
  for (std::size_t i = 0; i < std::min(shape.size(), most); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() > most ? ", …)" : ")");
}

std::optional<at::ScalarType> floating(st::Dtype dtype) {
  switch (dtype) {
    case st::Dtype::F32:
      return at::kFloat;
    case st::Dtype::F16:
      return at::kHalf;
    case st::Dtype::BF16:
      return at::kBFloat16;
    case st::Dtype::F64:
      return at::kDouble;
    default:
      return std::nullopt;
  }
}

bool same_shape(std::span<const std::int64_t> stored, std::span<const std::int64_t> expected, bool squeeze) {
  const std::size_t shorter = std::min(stored.size(), expected.size());
  if (!squeeze && stored.size() != expected.size()) return false;
  const auto one = [](std::int64_t side) { return side == 1; };
  return std::equal(stored.begin(), stored.begin() + shorter, expected.begin()) &&
         std::all_of(stored.begin() + shorter, stored.end(), one) &&
         std::all_of(expected.begin() + shorter, expected.end(), one);
}

// The first few of many, for a message.
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i)
    text += (i ? ", " : "") + pom::shown(names[i], 120);
  if (names.size() > most) text += pom::detail::concat(" and ", names.size() - most, " more");
  return text;
}

// A file beside the index, whatever the index says.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

constexpr std::size_t most_files = 1000;  // of one network

}  // namespace

WeightFolder::WeightFolder(const io::OpenFolder& folder, const std::string& within, std::string_view stem) {
  const std::string prefix = within.empty() ? "" : within + "/";
  where_ = within.empty() ? folder.path().string() : folder.path_of(within);
  const std::string config = prefix + "config.json";
  check(folder.has(config), where_, ": no config.json");
  config_ = io::read_json_text(folder, config);
  const std::string name(stem);
  for (const std::string& plain : {name + ".safetensors", name + ".fp16.safetensors"}) {
    if (folder.has(prefix + plain)) {
      files_.emplace_back(folder, prefix + plain);
      break;
    }
    const std::string variant =
        plain == name + ".safetensors" ? plain + ".index.json" : name + ".safetensors.index.fp16.json";
    for (const std::string& index : {plain + ".index.json", variant})
      if (files_.empty() && folder.has(prefix + index)) open_index(folder, prefix, index);
    if (!files_.empty()) break;
  }
  if (!files_.empty()) return;
  for (const char* pickle : {".bin", ".fp16.bin", ".bin.index.json"})
    for (const std::string& file : {name + pickle, std::string("pytorch_model") + pickle})
      check(!folder.has(prefix + file), where_, ": expected ", name, ".safetensors, got ", file,
            ", a pickle, which is never opened; tools/unpickle.py turns it into safetensors");
  fail(where_, ": no ", name, ".safetensors and no index of several");
}

void WeightFolder::open_index(const io::OpenFolder& folder, const std::string& prefix,
                              const std::string& name) {
  const std::string source = folder.path_of(prefix + name);
  const auto map = io::read_json_texts(io::read_json_text(folder, prefix + name), "weight_map", source);
  check(!map.empty(), source, ": weight_map: expected names of tensors with their files, got nothing");
  std::map<std::string, std::size_t> numbers;
  for (const auto& [tensor, file] : map) {
    check(is_plain_name(file), source, ": weight_map: ", shown(tensor, 120),
          ": expected the name of a file beside the index, got \"", shown(file, 120), "\"");
    if (numbers.contains(file)) continue;
    check(numbers.size() < most_files, source, ": weight_map: expected at most ", most_files,
          " files, got more");
    check(folder.has(prefix + file), source, ": weight_map: no such file: ", shown(file, 120));
    numbers.emplace(file, files_.size());
    files_.emplace_back(folder, prefix + file);
  }
  for (const auto& [tensor, file] : map)
    check(files_[numbers.at(file)].header().find(tensor) != nullptr, source,
          ": weight_map: ", shown(tensor, 120), ": expected it in ", shown(file, 120),
          ", which has no such tensor");
}

const st::Reader* WeightFolder::file_with(std::string_view stored) const {
  const auto file = std::ranges::find_if(
      files_, [&](const st::Reader& reader) { return reader.header().find(stored) != nullptr; });
  return file == files_.end() ? nullptr : &*file;
}

void WeightFolder::expect(const std::vector<TensorSpec>& tensors, const WeightRules& rules) {
  std::map<std::string, const TensorSpec*> wanted;
  for (const TensorSpec& spec : tensors) wanted.emplace(spec.name, &spec);
  std::vector<std::string> extra;
  for (std::size_t file = 0; file < files_.size(); ++file)
    for (const st::TensorInfo& tensor : files_[file].header().tensors()) {
      const std::string name = rules.renamed ? rules.renamed(tensor.name) : tensor.name;
      const auto spec = wanted.find(name);
      if (spec == wanted.end()) {
        if (!rules.other || !rules.other(name)) extra.push_back(tensor.name);
        continue;
      }
      check(same_shape(tensor.shape, spec->second->shape, rules.squeeze), files_[file].file(), ": ",
            tensor.name, ": expected the shape ", shape_text(spec->second->shape), " by config.json, got ",
            shape_text(tensor.shape));
      check(floating(tensor.dtype).has_value(), files_[file].file(), ": ", tensor.name,
            ": expected F32, F16, BF16 or F64, got ", st::name(tensor.dtype));
      const auto [place, first] = places_.emplace(name, Place{file, tensor.name, spec->second->shape});
      check(first, where_, ": ", name, ": expected it once, got it as ", place->second.stored, " in ",
            files_[place->second.file].file(), " and as ", tensor.name, " in ", files_[file].file());
    }
  std::vector<std::string> missing;
  for (const TensorSpec& spec : tensors)
    if (!places_.contains(spec.name)) missing.push_back(spec.name);
  check(missing.empty(), where_, ": expected ", tensors.size(), " tensors by config.json; ", missing.size(),
        " of them are missing: ", some_of(missing),
        extra.empty() ? "" : "; there are others: " + some_of(extra));
  check(extra.empty(), where_, ": expected the ", tensors.size(), " tensors of config.json, got ",
        extra.size(), " more: ", some_of(extra));
}

at::Tensor WeightFolder::read(const std::string& name, at::ScalarType dtype) const {
  const Place& place = places_.at(name);
  const st::Reader& file = files_[place.file];
  const st::TensorInfo& tensor = file.header().at(place.stored);
  at::Tensor values = at::empty(place.shape, *floating(tensor.dtype));
  file.read(tensor, {static_cast<std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())});
  return values.to(dtype);
}

at::Tensor WeightFolder::read_stored(std::string_view stored) const {
  const st::Reader* file = file_with(stored);
  check(file != nullptr, where_, ": no tensor ", stored);
  const st::TensorInfo& tensor = file->header().at(stored);
  const std::optional<at::ScalarType> dtype = floating(tensor.dtype);
  check(dtype.has_value(), file->file(), ": ", tensor.name, ": expected F32, F16, BF16 or F64, got ",
        st::name(tensor.dtype));
  at::Tensor values = at::empty(tensor.shape, *dtype);
  file->read(tensor, {static_cast<std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())});
  return values;
}

at::ScalarType WeightFolder::stored_dtype(const std::string& name) const {
  const Place& place = places_.at(name);
  return *floating(files_[place.file].header().at(place.stored).dtype);
}

bool WeightFolder::all_stored_as(at::ScalarType dtype) const {
  return std::ranges::all_of(places_, [&](const auto& entry) {
    const st::Reader& file = files_[entry.second.file];
    return floating(file.header().at(entry.second.stored).dtype) == dtype;
  });
}

std::int64_t WeightFolder::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [name, place] : places_)
    bytes += static_cast<std::int64_t>(files_[place.file].header().at(place.stored).bytes());
  return bytes;
}

std::vector<std::string> WeightFolder::files() const {
  std::vector<std::string> names;
  for (const st::Reader& file : files_)
    names.push_back(std::filesystem::path(file.file()).filename().string());
  return names;
}

std::vector<std::string> WeightFolder::dtypes() const {
  std::set<std::string> found;
  for (const auto& [name, place] : places_)
    found.emplace(st::name(files_[place.file].header().at(place.stored).dtype));
  return {found.begin(), found.end()};
}

std::vector<TensorSpec> WeightFolder::tensors() const {
  std::vector<TensorSpec> specs;
  for (const auto& [name, place] : places_) specs.push_back({name, place.shape});
  return specs;
}

const std::string& WeightFolder::hash() const {
  if (!hash_.empty()) return hash_;
  io::Sha256 sum;
  sum.update(config_);
  for (const st::Reader& file : files_) {
    sum.update(file.head());
    for (const st::TensorInfo& tensor : file.header().tensors()) {
      st::Buffer bytes(tensor.bytes());
      file.read(tensor, bytes.span());
      sum.update(bytes.span());
    }
  }
  hash_ = sum.hex();
  return hash_;
}

}  // namespace pom::codecs
