// A command line around the samplers, for referees that are not written in C++. The model is that of a
// Gaussian mixture (tests/diffusion/mixture.h).
//
//   sampler_tool IN OUT
//
// IN and OUT are safetensors files. IN has x (B, D), F32 or F64; weights (K), stds (K) and means (K, D), F64;
// where the sampler is stochastic noise (steps, B, D), of x's dtype; and as metadata path, sampler, steps
// and, where another than the default is wanted, variance, eta, clip, t_start, t_end, shift. OUT has x (B,
// D), each step's x (steps, B, D), and the times of the evaluations, F64.
#include "tests/diffusion/mixture.h"
#include <cstring>
#include <iostream>
#include <span>
#include <string>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/diffusion/sampler.h"
#include "pom/io/safetensors.h"

namespace {

using namespace pom;
using namespace pom::diffusion;
namespace safetensors = pom::io::safetensors;

at::Tensor tensor_of(const safetensors::File& file, std::string_view name) {
  const safetensors::TensorView& view = file.at(name);
  check(view.dtype == safetensors::Dtype::F32 || view.dtype == safetensors::Dtype::F64, name,
        ": expected F32 or F64");
  const at::ScalarType type = view.dtype == safetensors::Dtype::F32 ? at::kFloat : at::kDouble;
  at::Tensor out =
      at::empty(at::IntArrayRef(view.shape.data(), view.shape.size()), at::TensorOptions().dtype(type));
  std::memcpy(out.data_ptr(), view.data.data(), view.data.size());
  return out;
}

safetensors::TensorView view_of(std::string_view name, const at::Tensor& x) {
  return {name,
          x.scalar_type() == at::kFloat ? safetensors::Dtype::F32 : safetensors::Dtype::F64,
          {x.sizes().data(), x.sizes().size()},
          {static_cast<const std::byte*>(x.const_data_ptr()), x.nbytes()}};
}

std::string text(const safetensors::File& file, std::string_view key) {
  const std::string* found = file.header().find_metadata(key);
  return found == nullptr ? "" : *found;
}

double number(const safetensors::File& file, std::string_view key, double otherwise) {
  const std::string found = text(file, key);
  return found.empty() ? otherwise : std::stod(found);
}

testing::Mixture mixture_of(const safetensors::File& file) {
  const at::Tensor weights = tensor_of(file, "weights"), stds = tensor_of(file, "stds"),
                   means = tensor_of(file, "means");
  testing::Mixture mixture;
  for (std::int64_t k = 0; k < weights.numel(); ++k) {
    const double* mean = means.const_data_ptr<double>() + k * means.size(1);
    mixture.push_back({weights[k].item<double>(), stds[k].item<double>(), {mean, mean + means.size(1)}});
  }
  return mixture;
}

SamplerOptions options_of(const safetensors::File& file) {
  SamplerOptions options{.steps = static_cast<int>(number(file, "steps", 50)),
                         .eta = number(file, "eta", 0),
                         .t_start = number(file, "t_start", 1),
                         .t_end = number(file, "t_end", 0),
                         .shift = number(file, "shift", 1)};
  if (!text(file, "clip").empty()) options.clamp = number(file, "clip", 0);
  return options;
}

void run(const char* in, const char* out) {
  const auto file = safetensors::File::open(in);
  const Path path = Path::named(text(file, "path"), text(file, "variance"));
  const SamplerOptions options = options_of(file);
  const std::string sampler = text(file, "sampler");
  StepNoise noise;
  if (file.header().find("noise") != nullptr)
    noise = [all = tensor_of(file, "noise")](at::Tensor& to, std::uint32_t step) { to.copy_(all[step]); };
  std::vector<at::Tensor> steps;
  const at::Tensor x =
      sample(testing::perfect_model(mixture_of(file), path), tensor_of(file, "x"), path, sampler, options,
             noise, [&](const StepInfo& info) { steps.push_back(info.x.clone()); });
  const at::Tensor all = at::stack(steps),
                   times = at::tensor(evaluation_times(sampler, options), at::kDouble);
  const safetensors::TensorView views[] = {view_of("x", x), view_of("steps", all), view_of("times", times)};
  safetensors::write(out, views);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: sampler_tool IN OUT\n";
    return 2;
  }
  run(argv[1], argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
