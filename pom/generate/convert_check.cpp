// Whether a converted model is what it was made of, as far as this library alone can say.
#include <cstring>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/generate/convert.h"
#include "pom/models/denoiser.h"
#include "pom/models/dipom.h"
#include "pom/models/vdipom.h"

namespace pom::generate {
namespace {

namespace st = io::safetensors;

bool same_bytes(const st::Buffer& stored, const at::Tensor& values) {
  const at::Tensor rows = values.contiguous();
  return stored.size() == rows.nbytes() &&
         std::memcmp(stored.data(), rows.const_data_ptr(), stored.size()) == 0;
}

// What was computed anew is not in every file; what the network does not have was refused before.
std::int64_t compare_weights(const st::Reader& source, const std::string& prefix,
                             const models::Weights& theirs) {
  std::int64_t same = 0;
  for (const auto& [name, values] : theirs) {
    const std::string stored = prefix + name;
    if (name == "pos_embed" || source.header().find(stored) == nullptr) continue;
    check(same_bytes(source.read(stored), values), "check: tensor \"", stored,
          "\": expected the values of the source after going there and back, got others");
    ++same;
  }
  return same;
}

// The two answers, as one is trained and as it samples, to one draw of noise at t = 0.5.
std::pair<at::Tensor, at::Tensor> answers(const models::NetworkConfig& c, const models::Weights& weights,
                                          at::ScalarType dtype) {
  const at::NoGradGuard no_gradients;
  const at::Tensor half = at::full({1}, 0.5, dtype);
  const std::int64_t H = 2 * c.patch, W = 3 * c.patch;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(0);
  const auto noise = [&](std::vector<std::int64_t> shape) { return at::randn(shape, generator, dtype); };
  const auto denoiser = models::Denoiser::make(c, weights, dtype);
  if (c.video()) {
    const std::int64_t frames = 2 * c.patch_time;
    const at::Tensor x = noise({1, c.channels, frames, H, W}), text = noise({1, 3, c.text_width}),
                     mask = at::ones({1, 3}, at::kBool);
    models::VDiPoM network(c);
    network->to(dtype), network->set_weights(weights);
    denoiser->plan({1, H, W, {{0.5, false}}, 2});
    denoiser->tell({.text = text, .mask = mask});
    return {network->forward(x, half, text, mask), (*denoiser)(x, 0).clone()};
  }
  const at::Tensor x = noise({1, c.channels, H, W});
  models::DiPoM network(c);
  network->to(dtype), network->set_weights(weights);
  denoiser->plan({1, H, W, {{0.5, false}}});
  denoiser->tell({.classes = {0}});
  return {network->forward(x, half, at::zeros({1}, at::kLong)), (*denoiser)(x, 0).clone()};
}

}  // namespace

ConversionCheck check_converted(const std::filesystem::path& source, const std::filesystem::path& folder,
                                const ConvertedModel& model, models::Origin origin) {
  const st::Reader file(source);
  const models::Weights theirs = weights_for(folder, origin);
  ConversionCheck done{.tensors = compare_weights(file, model.prefix, theirs)};
  const at::ScalarType dtype =
      model.weights.at("out_proj.weight").scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  models::Weights weights = models::read_weights(folder / weights_file, model.config.network, dtype);
  const auto [trained, sampled] = answers(model.config.network, weights, dtype);
  check(at::isfinite(trained).all().item<bool>(), "check: expected finite answers to noise at t = 0.5, got ",
        "others: the weights may be damaged");
  const double largest = std::max(trained.abs().max().item<double>(), 1e-30);
  done.difference = (trained - sampled).abs().max().item<double>() / largest;
  const double allowed = dtype == at::kDouble ? 1e-9 : 1e-3;
  check(done.difference <= allowed, "check: expected one answer from both forms of the network, got ",
        done.difference, " of the largest value between them");
  return done;
}

}  // namespace pom::generate
