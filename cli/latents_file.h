// A file of latents, as --save-latents writes and --init-latents reads it: safetensors with a tensor
// "latents", a row for each item.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace pom::cli {

at::Tensor read_latents(const std::string& path);
void save_latents(const std::string& path, const at::Tensor& latents);

}  // namespace pom::cli
