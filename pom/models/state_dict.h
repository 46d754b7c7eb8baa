// Weights that somebody else saved: the names of one network in a safetensors file, behind a prefix or not,
// of which every tensor has to be accounted for.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/io/safetensors.h"

namespace pom::models {

// Which of the copies in a training checkpoint: the average (ema) where it has begun, else the model's own.
enum class WeightCopy { best, ema, model };

class StateDict {
 public:
  // A copy of the network is what begins with its prefix; "_orig_mod." behind it, of a compiled run, is taken
  // off. A file without them has one copy, without a prefix or behind "module.".
  struct Prefixes {
    std::string ema, model;
    std::string begun;                // a tensor that is 0 as long as the average is none; may be missing
    std::vector<std::string> others;  // names, or beginnings that end in a dot, of what else is saved there
  };
  // `file` has to outlive it.
  StateDict(const io::safetensors::Reader& file, const Prefixes& prefixes, WeightCopy copy);
  // What begins with this, of a file that holds other things too.
  StateDict(const io::safetensors::Reader& file, const std::string& prefix) : file_(file) { take(prefix); }

  const std::string& file() const { return file_.file(); }
  const std::string& prefix() const { return prefix_; }
  // "ema" or "model" of a file with several copies, else empty.
  const std::string& copy() const { return copy_; }
  // Whether the average was passed over because it has not begun.
  bool not_begun() const { return not_begun_; }

  bool has(const std::string& name) const { return tensors_.contains(name); }
  // Of a tensor that must be there, with so many sides.
  const std::vector<std::int64_t>& shape(const std::string& name, std::size_t sides) const;
  std::size_t sides(const std::string& name) const { return tensors_.at(name)->shape.size(); }
  // How many different numbers follow "layers." or another beginning.
  std::int64_t count(std::string_view beginning) const;

  struct Expected {
    std::string name;
    std::vector<std::int64_t> shape;
  };
  // Throws pom::Error unless these, and `dropped` ones or none of them, are what there is.
  void account(const std::vector<Expected>& expected, const std::set<std::string>& dropped) const;

  // As stored: fp32, bf16, fp16 or fp64.
  at::Tensor read(const std::string& name) const;
  std::set<std::string> names(std::string_view beginning) const;

 private:
  void take(const std::string& prefix);

  const io::safetensors::Reader& file_;
  std::string prefix_, copy_;
  bool not_begun_ = false;
  std::map<std::string, const io::safetensors::TensorInfo*> tensors_;
  std::vector<std::string> strangers_;  // of no copy
};

std::string shape_list(std::span<const std::int64_t> shape);  // "(384, 4, 2, 2)"

}  // namespace pom::models
