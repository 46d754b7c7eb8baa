// The samplers as their files in pom/diffusion register them, without what moves tensors.
#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {
namespace {

const RegisterSampler ddim({.name = "ddim", .summary = "", .run = nullptr, .takes_eta = true});
const RegisterSampler ddpm({.name = "ddpm", .aliases = {"ancestral"}, .summary = "", .run = nullptr});
const RegisterSampler dpmpp_2m({.name = "dpm++2m", .aliases = {"dpmpp_2m"}, .summary = "", .run = nullptr});
const RegisterSampler euler({.name = "euler", .summary = "", .run = nullptr});
const RegisterSampler heun({.name = "heun", .summary = "", .run = nullptr});

}  // namespace
}  // namespace pom::diffusion
