// Private to the room: what an Engine holds, and the one way in which a batch is sampled.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/codecs/codec.h"
#include "pom/diffusion/path.h"
#include "pom/diffusion/sampler.h"
#include "pom/generate/engine.h"
#include "pom/generate/model_files.h"
#include "pom/generate/plan.h"
#include "pom/models/denoiser.h"

namespace pom::generate {

struct Engine::Impl {
  Impl(const std::filesystem::path& folder, c10::Device device);

  std::filesystem::path folder;
  c10::Device device;
  ModelFiles files;
  const ModelConfig& config;
  std::string name;
  std::unique_ptr<codecs::Codec> codec;
  std::map<at::ScalarType, std::unique_ptr<models::Denoiser>> denoisers;  // made when first needed

  // Of the weights that a run of this dtype reads first; 0 where its network is in memory already, and next
  // to nothing where they are.
  std::int64_t stored_bytes(const Request& request) const;
  models::Denoiser& denoiser(at::ScalarType dtype);
  Plan plan(const Request& request, std::int64_t pictures, const Limits& limits) const;

  struct Hooks {
    std::function<void()> before, after;  // each evaluation of the network; may throw
    diffusion::OnStep on_step;
  };
  // Latents (B, C, H, W), on the device, of complete requests that differ in class and seed alone. A
  // picture's bits do not depend on the others.
  at::Tensor sample_batch(std::span<const Request> pictures, const Hooks& hooks);
  struct Speed {
    double setup = 0;    // seconds of a batch before its first evaluation
    double first = 0;    // what the very first evaluation takes beyond the others
    double per_mac = 0;  // with what the sampler does between evaluations
    double decode = 0;   // of one picture
  };
  Speed measure(std::span<const Request> probe);  // samples for a moment

  std::vector<Picture> decode(const at::Tensor& latents, std::span<const Request> pictures,
                              std::int64_t first) const;
};

}  // namespace pom::generate
