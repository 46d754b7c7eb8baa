// The weights of a network: which there are, their first values, and safetensors files of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/io/safetensors.h"
#include "pom/io/sha256.h"
#include "pom/models/config.h"

namespace pom::models {

using Weights = std::map<std::string, at::Tensor>;

struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
};

// Every tensor of the network, in the order of the forward pass.
std::vector<TensorSpec> expected_tensors(const NetworkConfig& config);

// Values before training, functions of the seed alone (fp32).
Weights initial_weights(const NetworkConfig& config, std::uint64_t seed);

// Reads a file in which every tensor must be accounted for: one that is missing, extra or of another shape is
// an error that names it, with the expected and the found shape, and guesses where names differ by a prefix.
// A buffer `freqs`, which is computed here, may be there. fp32, bf16, fp16 or fp64, converted to `dtype`, or
// as stored where it says nothing.
Weights read_weights(const std::filesystem::path& path, const NetworkConfig& config,
                     std::optional<at::ScalarType> dtype = at::kFloat);
// The same of a file that is open; `hash` is given every byte of it as it was read, in its order.
Weights read_weights(const io::safetensors::Reader& file, const NetworkConfig& config,
                     std::optional<at::ScalarType> dtype = at::kFloat, io::Sha256* hash = nullptr);

// Whether weights are those of the network, by the same rules; `where` begins the message.
void check_weights(const Weights& weights, const NetworkConfig& config, std::string_view where);
// The same of a file of which no more than the header was read.
void check_weights(const io::safetensors::Header& header, const NetworkConfig& config,
                   std::string_view where);

// Stored as fp32, bf16, fp16 or fp64; each as it is where `storage` says nothing.
void write_weights(const std::filesystem::path& path, const Weights& weights,
                   std::optional<at::ScalarType> storage, const io::safetensors::Metadata& metadata = {});

}  // namespace pom::models
