#include "pom/models/state_dict.h"

#include <algorithm>
#include <charconv>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"

namespace pom::models {
namespace {

namespace st = io::safetensors;

constexpr std::string_view kCompiled = "_orig_mod.";

at::ScalarType floating_dtype(const st::TensorInfo& tensor, const std::string& file) {
  switch (tensor.dtype) {
    case st::Dtype::F32:
      return at::kFloat;
    case st::Dtype::F64:
      return at::kDouble;
    case st::Dtype::BF16:
      return at::kBFloat16;
    case st::Dtype::F16:
      return at::kHalf;
    default:
      fail(file, ": tensor \"", shown(tensor.name), "\": expected F32, BF16, F16 or F64, got ",
           st::name(tensor.dtype));
  }
}

// A flag or a count in any dtype: zero has no bit but a sign, which a flag has not.
bool is_zero(const st::Reader& file, const std::string& name) {
  const st::Buffer bytes = file.read(name);
  return std::ranges::all_of(bytes.span(), [](std::byte b) { return b == std::byte{0}; });
}

bool begins_with_any(const st::Header& header, const std::string& prefix) {
  return std::ranges::any_of(header.tensors(),
                             [&](const st::TensorInfo& t) { return t.name.starts_with(prefix); });
}

bool is_one_of(std::string_view name, const std::vector<std::string>& others) {
  return std::ranges::any_of(others, [&](const std::string& other) {
    return other.ends_with('.') ? name.starts_with(other) : name == other;
  });
}

}  // namespace

std::string shape_list(std::span<const std::int64_t> shape) {
  constexpr std::size_t most = 8;  // of a file of others there may be any number
  std::string text = "(";
  for (std::size_t i = 0; i < std::min(shape.size(), most); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() > most ? ", …)" : ")");
}

StateDict::StateDict(const st::Reader& file, const Prefixes& prefixes, WeightCopy wanted) : file_(file) {
  const bool ema = begins_with_any(file.header(), prefixes.ema);
  const bool model = begins_with_any(file.header(), prefixes.model);
  const auto missing = [&](const char* copy, const std::string& prefix) {
    fail(file.file(), ": weights: expected names that begin with \"", prefix, "\" for --weights ", copy,
         ", got none");
  };
  if (wanted == WeightCopy::ema && !ema) missing("ema", prefixes.ema);
  if (wanted == WeightCopy::model && !model) missing("model", prefixes.model);
  const bool begun = file.header().find(prefixes.begun) == nullptr || !is_zero(file, prefixes.begun);
  if (ema && (wanted == WeightCopy::ema || (wanted == WeightCopy::best && (begun || !model)))) {
    take(prefixes.ema), copy_ = "ema";
  } else if (model) {
    take(prefixes.model), copy_ = "model";
    not_begun_ = ema && wanted == WeightCopy::best;
  } else {
    take(begins_with_any(file.header(), "module.") ? "module." : "");
  }
  if (copy_.empty()) return;
  const auto stranger = [&](const std::string& name) {
    return !name.starts_with(prefixes.ema) && !name.starts_with(prefixes.model) &&
           !is_one_of(name, prefixes.others);
  };
  for (const st::TensorInfo& tensor : file.header().tensors())
    if (stranger(tensor.name)) strangers_.push_back(tensor.name);
}

void StateDict::take(const std::string& prefix) {
  prefix_ = prefix;
  const auto found = std::ranges::find_if(file_.header().tensors(), [&](const st::TensorInfo& t) {
    return t.name.starts_with(prefix) && t.name.substr(prefix.size()).starts_with(kCompiled);
  });
  if (found != file_.header().tensors().end()) prefix_ += kCompiled;
  for (const st::TensorInfo& tensor : file_.header().tensors()) {
    if (!tensor.name.starts_with(prefix)) continue;
    if (tensor.name.starts_with(prefix_))
      tensors_[tensor.name.substr(prefix_.size())] = &tensor;
    else
      strangers_.push_back(tensor.name);
  }
}

const std::vector<std::int64_t>& StateDict::shape(const std::string& name, std::size_t sides) const {
  const auto found = tensors_.find(name);
  check(found != tensors_.end(), file(), ": tensor \"", prefix_, name, "\" is missing");
  const std::vector<std::int64_t>& shape = found->second->shape;
  check(shape.size() == sides && std::ranges::all_of(shape, [](std::int64_t n) { return n > 0; }), file(),
        ": tensor \"", prefix_, name, "\": expected ", sides, " sides, got shape ", shape_list(shape));
  return shape;
}

std::int64_t StateDict::count(std::string_view beginning) const {
  std::set<std::int64_t> numbers;
  for (const auto& [name, tensor] : tensors_) {
    if (!name.starts_with(beginning)) continue;
    std::int64_t number = 0;
    const char *from = name.data() + beginning.size(), *to = name.data() + name.size();
    if (const auto [end, error] = std::from_chars(from, to, number); error == std::errc() && end != from)
      numbers.insert(number);
  }
  return std::ssize(numbers);
}

void StateDict::account(const std::vector<Expected>& expected, const std::set<std::string>& dropped) const {
  std::map<std::string, const Expected*> wanted;
  std::vector<std::string> missing, extra = strangers_;
  for (const Expected& tensor : expected) {
    wanted[tensor.name] = &tensor;
    if (!has(tensor.name)) missing.push_back(tensor.name);
  }
  for (const auto& [name, tensor] : tensors_)
    if (!wanted.contains(name) && !dropped.contains(name)) extra.push_back(prefix_ + name);
  if (!missing.empty())
    fail(file(), ": tensor \"", prefix_, missing[0], "\" of shape ", shape_list(wanted[missing[0]]->shape),
         " is missing", missing.size() > 1 ? detail::concat(", and ", missing.size() - 1, " more") : "",
         extra.empty() ? ""
                       : detail::concat("; the file has ", extra.size(), " that the network does not, \"",
                                        shown(extra[0]), "\" first"));
  if (!extra.empty())
    fail(file(), ": tensor \"", shown(extra[0]), "\" is not part of the network",
         extra.size() > 1 ? detail::concat(", nor are ", extra.size() - 1, " more") : "");
  for (const Expected& tensor : expected) {
    const st::TensorInfo& found = *tensors_.at(tensor.name);
    check(found.shape == tensor.shape, file(), ": tensor \"", found.name, "\": expected shape ",
          shape_list(tensor.shape), ", got ", shape_list(found.shape));
    floating_dtype(found, file());
  }
}

at::Tensor StateDict::read(const std::string& name) const {
  const st::TensorInfo& tensor = *tensors_.at(name);
  at::Tensor values = at::empty(tensor.shape, floating_dtype(tensor, file()));
  file_.read(tensor, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
  return values;
}

std::set<std::string> StateDict::names(std::string_view beginning) const {
  std::set<std::string> found;
  for (const auto& [name, tensor] : tensors_)
    if (name.starts_with(beginning)) found.insert(name);
  return found;
}

}  // namespace pom::models
