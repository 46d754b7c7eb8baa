// A folder as diffusers and transformers write it: config.json, and weights in one safetensors file or in
// several with an index. Headers are read and checked when it is opened, values when they are asked for.
// Pickles (.bin) are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/io/folder_swap.h"
#include "pom/io/safetensors.h"

namespace pom::codecs {

// A tensor that a network has, by the name that today's packages write.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
};

struct WeightRules {
  // An older name -> today's, or the name itself; a tensor may be there under one of them only.
  std::function<std::string(const std::string&)> renamed = {};
  // Tensors of other parts that such files also hold and that are passed over (a decoder's, a loss's); asked
  // with today's name.
  std::function<bool(const std::string&)> other = {};
  // Whether trailing sides of 1 may be missing or too many: (C, C, 1, 1) for (C, C).
  bool squeeze = false;
};

class WeightFolder {
 public:
  // `within` is "" or a folder in it, "vae"; `stem` is the file's name without .safetensors:
  // "diffusion_pytorch_model", "model". Where there are several, the first of these is taken:
  // STEM.safetensors, STEM.safetensors.index.json, STEM.fp16.safetensors, STEM.fp16.safetensors.index.json
  // (and the index of diffusers' variants, STEM.safetensors.index.fp16.json).
  WeightFolder(const io::OpenFolder& folder, const std::string& within, std::string_view stem);

  const std::string& where() const { return where_; }  // the folder, for messages
  const std::string& config_text() const { return config_; }
  std::string config_source() const { return where_ + "/config.json"; }

  // Whether a file has a tensor of this very name.
  bool has(std::string_view stored) const { return file_with(stored) != nullptr; }

  // Accounts for every tensor: one that is missing, extra, of another shape or not of floating point is an
  // error that names it with what was expected. To be called once, before the others below.
  void expect(const std::vector<TensorSpec>& tensors, const WeightRules& rules = {});

  // A tensor of expect()'s, in its shape, on the host.
  at::Tensor read(const std::string& name, at::ScalarType dtype) const;
  // A tensor under the name that a file has it by, as stored.
  at::Tensor read_stored(std::string_view stored) const;
  at::ScalarType stored_dtype(const std::string& name) const;
  // Whether all expected tensors are stored in this dtype; and their bytes as stored.
  bool all_stored_as(at::ScalarType dtype) const;
  std::int64_t bytes() const;
  // Names of the files of weights, and dtypes in them ("F16") of the expected tensors, each once; and these
  // tensors, by name.
  std::vector<std::string> files() const;
  std::vector<std::string> dtypes() const;
  std::vector<TensorSpec> tensors() const;
  // SHA-256 in hexadecimal digits of config.json and the files of weights; reads them all the first time.
  const std::string& hash() const;

 private:
  struct Place {
    std::size_t file;
    std::string stored;  // its name there
    std::vector<std::int64_t> shape;
  };
  const io::safetensors::Reader* file_with(std::string_view stored) const;
  void open_index(const io::OpenFolder& folder, const std::string& prefix, const std::string& name);

  std::string where_, config_;
  std::vector<io::safetensors::Reader> files_;
  std::map<std::string, Place> places_;
  mutable std::string hash_;
};

}  // namespace pom::codecs
