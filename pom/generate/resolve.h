// Private to the room: from what a person asked for to the single pictures of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "pom/diffusion/guidance.h"
#include "pom/diffusion/sampler.h"
#include "pom/generate/folder.h"
#include "pom/generate/request.h"

namespace pom::generate {

// See Engine::resolve. `factor` is the codec's.
std::vector<Request> resolve(const Request& request, const ModelConfig& config, std::int64_t factor);

// What the diffusion room calls the settings of a complete request.
// What to tell a person where a complete request is not of the model's own size; else nothing.
std::string size_remark(const Request& request, const ModelConfig& config);

diffusion::SamplerOptions sampler_options(const Request& request);
diffusion::Guidance guidance_of(const Request& request);

}  // namespace pom::generate
