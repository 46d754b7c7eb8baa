#include "pom/codecs/words.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/base/shown.h"
#include "pom/io/sha256.h"
#include "pom/nn/pom.h"

namespace pom::codecs {
namespace {

namespace st = io::safetensors;
namespace fs = std::filesystem;

constexpr const char* weights_file = "model.safetensors";
constexpr const char* words_key = "words";

constexpr std::int64_t mixer_order = 2, mixer_expand = 2;
constexpr double norm_eps = 1e-6;

// Beside the network, whose tensors count their noise from 0.
constexpr std::uint32_t first_noise = 1U << 20;

void fill(at::Tensor& values, std::uint64_t seed, std::uint32_t place, double deviation) {
  at::Tensor host = at::empty(values.sizes(), at::kFloat);
  fill_normal(host.data_ptr<float>(), host.numel(), {seed, noise_for::weights, first_noise + place});
  values.copy_(host.mul_(deviation));
}

// "glorp", "blee" are not …; a prompt may have many.
std::string unknown_text(const std::vector<std::string>& words) {
  constexpr std::size_t most = 5;
  std::string list;
  for (std::size_t i = 0; i < std::min(words.size(), most); ++i)
    list += detail::concat(i == 0 ? "" : ", ", '"', words[i], '"');
  if (words.size() > most) list += detail::concat(" and ", words.size() - most, " more");
  return list + (words.size() == 1 ? " is not in the model's vocabulary and is spelled out in letters"
                                   : " are not in the model's vocabulary and are spelled out in letters");
}

}  // namespace

WordsNetworkImpl::WordsNetworkImpl(const TextConfig& config, std::int64_t count, std::uint64_t seed) {
  pieces = register_module("pieces", torch::nn::Embedding(count, config.width));
  places = register_parameter("places", at::empty({config.limit, config.width}));
  near = register_module("near", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.layers; ++i)
    near->push_back(torch::nn::Linear(3 * config.width, config.width));
  far = register_module("far", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.mixers; ++i)
    far->push_back(nn::PoM(config.width, mixer_order, mixer_expand));
  set_first_values(seed);
}

// Pieces of unit size, as a layer norm would make them; places small beside them; layers that keep the size.
void WordsNetworkImpl::set_first_values(std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  std::uint32_t place = 0;
  fill(pieces->weight, seed, place++, 1);
  fill(places, seed, place++, 0.1);
  const auto fill_linear = [&](torch::nn::LinearImpl& linear) {
    fill(linear.weight, seed, place++, 1 / std::sqrt(static_cast<double>(linear.weight.size(1))));
    linear.bias.zero_();
  };
  for (const auto& layer : *near) fill_linear(*layer->as<torch::nn::LinearImpl>());
  for (const auto& layer : *far) {
    auto& mixer = *layer->as<nn::PoMImpl>();
    for (auto* linear : {&mixer.ho_proj, &mixer.se_proj, &mixer.ag_proj}) fill_linear(**linear);
  }
}

// A row of the table for each number. On a GPU the gradient of a lookup sorts the numbers and asks the host
// how many there are; that of a product does neither, and always adds in the same order.
at::Tensor WordsNetworkImpl::rows_of(const at::Tensor& numbers) {
  const at::Tensor& table = pieces->weight;
  if (!table.is_cuda() || !at::GradMode::is_enabled()) return pieces->forward(numbers);
  const c10::impl::ExcludeDispatchKeyGuard exact(c10::DispatchKey::AutocastCUDA);  // as sampling looks it up
  const at::Tensor all = at::arange(table.size(0), numbers.options());
  return at::matmul(numbers.unsqueeze(-1).eq(all).to(table.scalar_type()), table);
}

at::Tensor WordsNetworkImpl::forward(const at::Tensor& numbers, const at::Tensor& mask) {
  const at::Tensor counts = mask.unsqueeze(2).to(places.scalar_type());  // (B, L, 1)
  at::Tensor x = (rows_of(numbers) + places.narrow(0, 0, numbers.size(1))) * counts;
  const std::int64_t L = x.size(1);
  for (const auto& layer : *near) {
    const at::Tensor wide = at::constant_pad_nd(x, {0, 0, 1, 1});  // nothing before the first, after the last
    const at::Tensor three = at::cat({wide.narrow(1, 0, L), x, wide.narrow(1, 2, L)}, 2);
    x = (x + at::gelu(layer->as<torch::nn::LinearImpl>()->forward(three))) * counts;
  }
  for (const auto& layer : *far) {
    const at::Tensor normal = at::layer_norm(x, {x.size(2)}, {}, {}, norm_eps);
    x = (x + layer->as<nn::PoMImpl>()->forward(normal, {}, ops::Mask::causal())) * counts;
  }
  return x;
}

Words::Words(const TextConfig& config, WordPieces pieces, std::uint64_t seed)
    : config_(config), vocabulary_(std::move(pieces)), network_(config, vocabulary_.size(), seed) {}

Words Words::open(const TextConfig& config, const fs::path& folder) {
  return open(config, st::Reader(folder / weights_file));
}

Words Words::open(const TextConfig& config, const st::Reader& reader) {
  const std::string* lines = reader.header().find_metadata(words_key);
  check(lines != nullptr, reader.file(), ": expected the words in the metadata under \"", words_key,
        "\", got none");
  std::map<std::string, at::Tensor> weights;
  io::Sha256 hash;
  hash.update(reader.head());
  for (const st::TensorInfo& tensor : reader.header().tensors()) {
    check(tensor.dtype == st::Dtype::F32, reader.file(), ": tensor \"", shown(tensor.name),
          "\": expected F32, got ", st::name(tensor.dtype));
    at::Tensor values = at::empty(tensor.shape, at::kFloat);
    const std::span<std::byte> bytes(static_cast<std::byte*>(values.data_ptr()), values.nbytes());
    reader.read(tensor, bytes);
    hash.update(bytes);
    weights[tensor.name] = values;
  }
  try {
    Words words(config, WordPieces::from_lines(*lines));
    words.set_weights(weights);
    words.hash_ = hash.hex();
    return words;
  } catch (const Error& error) {
    fail(reader.file(), ": ", error.what());
  }
}

void Words::save(const fs::path& folder) const {
  fs::create_directories(folder);
  std::vector<at::Tensor> kept;
  std::vector<st::TensorView> views;
  const std::map<std::string, at::Tensor> all = weights();
  for (const auto& [name, tensor] : all) {
    kept.push_back(tensor.to(at::kCPU, at::kFloat).contiguous());
    const at::Tensor& values = kept.back();
    views.push_back({name,
                     st::Dtype::F32,
                     {values.sizes().data(), values.sizes().size()},
                     {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}});
  }
  st::write(folder / weights_file, views, st::Metadata{{words_key, vocabulary_.lines()}});
}

EncodedText Words::encode(std::span<const std::string> prompts) const {
  const torch::NoGradGuard no_grad;
  Pieces read = pieces(prompts);
  for (const std::string& prompt : prompts)
    if (const std::vector<std::string> unknown = vocabulary_.unknown(prompt); !unknown.empty())
      read.warnings.push_back(unknown_text(unknown));
  const at::Device device = network_->places.device();
  const at::Tensor mask = read.mask.to(device);
  WordsNetwork network = network_;
  return {network->forward(read.pieces.to(device), mask), mask, std::move(read.warnings)};
}

Words::Pieces Words::pieces(std::span<const std::string> prompts, std::int64_t length) const {
  check(length >= 1 && length <= limit(), "words: length: expected 1 to ", limit(), ", got ", length);
  Pieces result;
  std::vector<std::vector<std::int64_t>> all;
  for (const std::string& prompt : prompts) {
    all.push_back(vocabulary_.pieces(prompt));
    const std::size_t most = static_cast<std::size_t>(limit()), count = all.back().size();
    if (count > most) {
      all.back().resize(most);
      result.warnings.push_back(detail::concat("prompt: expected at most ", most, " pieces of text, got ",
                                               count, ": truncated to ", most));
    }
    length = std::max(length, static_cast<std::int64_t>(all.back().size()));
  }
  const std::int64_t B = static_cast<std::int64_t>(all.size());
  result.pieces = at::zeros({B, length}, at::kLong);
  result.mask = at::zeros({B, length}, at::kBool);
  for (std::int64_t b = 0; b < B; ++b) {
    const std::vector<std::int64_t>& row = all[static_cast<std::size_t>(b)];
    std::ranges::copy(row, result.pieces.data_ptr<std::int64_t>() + b * length);
    std::fill_n(result.mask.data_ptr<bool>() + b * length, row.size(), true);
  }
  return result;
}

void Words::to(const c10::Device& device) {
  network_->to(device);
}

std::map<std::string, at::Tensor> Words::weights() const {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : network_->named_parameters()) weights[item.key()] = item.value().detach().clone();
  return weights;
}

void Words::set_weights(const std::map<std::string, at::Tensor>& weights) {
  const torch::NoGradGuard no_grad;
  auto parameters = network_->named_parameters();
  for (auto& item : parameters) {
    const auto found = weights.find(item.key());
    check(found != weights.end(), "words: tensor \"", item.key(), "\" is missing");
    check(found->second.sizes() == item.value().sizes(), "words: tensor \"", item.key(),
          "\": expected shape ", item.value().sizes(), ", got ", found->second.sizes());
    item.value().copy_(found->second);
  }
  for (const auto& [name, tensor] : weights)
    check(parameters.contains(name), "words: tensor \"", shown(name), "\" is not part of the encoder");
}

}  // namespace pom::codecs
