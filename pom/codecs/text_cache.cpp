#include "pom/codecs/text_cache.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <system_error>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "pom/base/error.h"
#include "pom/io/sha256.h"

namespace pom::codecs {
namespace {

namespace st = io::safetensors;
namespace fs = std::filesystem;

constexpr std::string_view entry_format = "pom text 1", entry_ending = ".safetensors";
constexpr std::size_t key_digits = 64;

struct DtypeNames {
  st::Dtype stored;
  at::ScalarType dtype;
};
constexpr DtypeNames entry_dtypes[] = {{st::Dtype::F32, at::kFloat},
                                       {st::Dtype::F64, at::kDouble},
                                       {st::Dtype::BF16, at::kBFloat16},
                                       {st::Dtype::F16, at::kHalf},
                                       {st::Dtype::BOOL, at::kBool}};

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

std::string digest_of(const TextCache::Entry& entry) {
  io::Sha256 sum;
  sum.update(bytes_of(entry.tokens));
  sum.update(bytes_of(entry.mask));
  return sum.hex();
}

bool is_entry(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.size() == key_digits + entry_ending.size() && name.ends_with(entry_ending) &&
         name.find_first_not_of("0123456789abcdef") == key_digits;
}

at::Tensor entry_tensor(const st::Reader& file, const char* name, std::size_t sides) {
  const st::TensorInfo& info = file.header().at(name);
  const auto* found = std::ranges::find(entry_dtypes, info.dtype, &DtypeNames::stored);
  check(found != std::end(entry_dtypes) && info.shape.size() == sides, file.file(), ": ", name,
        ": expected another dtype or shape");
  const at::Tensor values = at::empty(info.shape, found->dtype);
  file.read(info, bytes_of(values));
  return values;
}

st::TensorView entry_view(const char* name, const at::Tensor& tensor) {
  const auto* found = std::ranges::find(entry_dtypes, tensor.scalar_type(), &DtypeNames::dtype);
  check(found != std::end(entry_dtypes), "text cache: ", name, ": expected floating point, got ",
        tensor.scalar_type());
  return {name, found->stored, {tensor.sizes().data(), tensor.sizes().size()}, bytes_of(tensor)};
}

std::vector<std::string> lines_in(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

TextCache::TextCache(fs::path folder, std::uint64_t most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes) {
  std::error_code error;
  fs::create_directories(folder_, error);
  check(fs::is_directory(folder_), "text cache: ", folder_.string(), ": expected a folder, got ",
        error ? error.message() : "something else");
  make_room();
}

fs::path TextCache::path_of(const std::string& key) const {
  return folder_ / (key + std::string(entry_ending));
}

std::optional<TextCache::Entry> TextCache::find(const std::string& key) const {
  const fs::path path = path_of(key);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const st::Reader file(path);
  const std::string* format = file.header().find_metadata("format");
  const std::string* sum = file.header().find_metadata("sha256");
  const std::string* warnings = file.header().find_metadata("warnings");
  check(format != nullptr && *format == entry_format && sum != nullptr && warnings != nullptr, file.file(),
        ": expected an encoded prompt, got another file");
  Entry entry{entry_tensor(file, "tokens", 2), entry_tensor(file, "mask", 1), lines_in(*warnings)};
  check(entry.mask.scalar_type() == at::kBool && entry.mask.size(0) == entry.tokens.size(0), file.file(),
        ": mask: expected one bool for each token");
  check(*sum == digest_of(entry), file.file(), ": expected the sha256 ", *sum, ", got other bytes");
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // used last
  return entry;
}

void TextCache::put(const std::string& key, const Entry& entry) {
  if (entry.tokens.nbytes() + entry.mask.nbytes() > most_bytes_) return;
  const Entry plain{entry.tokens.contiguous(), entry.mask.contiguous(), {}};
  std::string warnings;
  for (const std::string& line : entry.warnings) warnings += line + "\n";
  const st::TensorView views[] = {entry_view("tokens", plain.tokens), entry_view("mask", plain.mask)};
  st::write(path_of(key), views,
            st::Metadata{
                {"format", std::string(entry_format)}, {"sha256", digest_of(plain)}, {"warnings", warnings}});
  std::error_code error;
  const std::uint64_t size = fs::file_size(path_of(key), error);
  bytes_ += error ? 0 : size;
  if (bytes_ > most_bytes_) make_room();
}

// Others may write here too: what is there is counted anew.
void TextCache::make_room() {
  struct File {
    fs::file_time_type used;
    std::uint64_t bytes;
    fs::path path;
  };
  std::vector<File> files;
  std::error_code error;
  bytes_ = 0;
  for (const fs::directory_entry& item : fs::directory_iterator(folder_, error)) {
    if (!is_entry(item.path()) || !item.is_regular_file(error)) continue;
    const File file{item.last_write_time(error), item.file_size(error), item.path()};
    if (error) continue;  // another process has removed it
    files.push_back(file);
    bytes_ += file.bytes;
  }
  if (bytes_ <= most_bytes_) return;
  std::ranges::sort(files, {}, &File::used);
  for (const File& file : files) {
    if (bytes_ <= most_bytes_ / 8 * 7) break;  // so that not every entry from now on looks through them
    if (fs::remove(file.path, error)) bytes_ -= file.bytes;
  }
}

CachedText::CachedText(std::unique_ptr<TextEncoder> encoder, TextCache cache)
    : encoder_(std::move(encoder)), cache_(std::move(cache)) {}

std::string CachedText::key_of(std::string_view prompt) const {
  if (encoder_->hash().empty()) return {};
  io::Sha256 sum;
  const std::string sizes = detail::concat(encoder_->limit(), " ", encoder_->width());
  for (const std::string_view part :
       {entry_format, std::string_view(encoder_->hash()), std::string_view(sizes), prompt}) {
    sum.update(detail::concat(part.size(), ":"));  // so that no two lists of parts are the same bytes
    sum.update(part);
  }
  sum.update(encoder_->settings());
  return sum.hex();
}

TextCache::Entry CachedText::made(const std::string& prompt, std::vector<std::string>& warnings) const {
  const std::string key = key_of(prompt);
  if (!key.empty()) try {
      if (std::optional<TextCache::Entry> found = cache_.find(key)) {
        check(found->tokens.size(1) == width() && found->tokens.size(0) <= limit(),
              cache_.path_of(key).string(), ": expected tokens of width ", width(), ", got ",
              found->tokens.size(1));
        return std::move(*found);
      }
    } catch (const Error& error) {
      warnings.push_back(detail::concat("text cache: a damaged entry is made again: ", error.what()));
    }
  EncodedText text = encoder_->encode(std::span(&prompt, 1));
  TextCache::Entry entry{text.tokens[0].cpu(), text.mask[0].cpu(), std::move(text.warnings)};
  if (!key.empty()) try {
      cache_.put(key, entry);
    } catch (const Error& error) {
      warnings.push_back(detail::concat("text cache: not kept: ", error.what()));
    }
  return entry;
}

EncodedText CachedText::encode(std::span<const std::string> prompts) const {
  EncodedText result;
  std::map<std::string_view, TextCache::Entry> entries;
  std::int64_t length = 1;
  for (const std::string& prompt : prompts) {
    const auto [place, is_new] = entries.try_emplace(prompt);
    if (is_new) place->second = made(prompt, result.warnings);
    const TextCache::Entry& entry = place->second;
    result.warnings.insert(result.warnings.end(), entry.warnings.begin(), entry.warnings.end());
    length = std::max(length, entry.tokens.size(0));
  }
  if (prompts.empty()) return encoder_->encode(prompts);
  std::vector<at::Tensor> tokens, masks;
  for (const std::string& prompt : prompts) {
    const TextCache::Entry& entry = entries.at(prompt);
    const std::int64_t missing = length - entry.tokens.size(0);
    tokens.push_back(missing == 0 ? entry.tokens : at::constant_pad_nd(entry.tokens, {0, 0, 0, missing}));
    masks.push_back(missing == 0 ? entry.mask : at::constant_pad_nd(entry.mask, {0, missing}));
  }
  result.tokens = at::stack(tokens).to(device_);
  result.mask = at::stack(masks).to(device_);
  return result;
}

void CachedText::to(const c10::Device& device) {
  device_ = device;
  encoder_->to(device);
}

}  // namespace pom::codecs
