// Tensors of any dtype in a safetensors file, each as it is.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "pom/io/safetensors.h"

namespace pom::generate {

struct TensorFile {
  std::map<std::string, at::Tensor> tensors;  // on the host
  io::safetensors::Metadata metadata;
};

TensorFile read_tensors(const io::safetensors::Reader& file);
void write_tensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                   const io::safetensors::Metadata& metadata);

// A number for the metadata: the shortest text that reads back.
std::string number_text(double value);

}  // namespace pom::generate
