// All parameters of a network in one piece of memory, and their gradients in another: the optimizer goes over
// them once, and a norm is one sum. The matrices between layers come first, those of a shape side by side,
// then what else decays, then the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/models/dipom.h"

namespace pom::train {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};
std::vector<NamedParameter> named_parameters(const torch::nn::Module& module);
// In the order of the forward pass.
std::vector<std::string> forward_names(const models::NetworkConfig& network);

// A parameter's part of the flat memory.
struct Slice {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, count = 0;
};

// Matrices of one shape, one behind the other in the flat memory.
struct MatrixGroup {
  std::int64_t begin = 0, count = 0, rows = 0, columns = 0;
  std::int64_t stride = 0;  // from one to the next

  at::Tensor of(const at::Tensor& flat) const;  // (count, rows, columns), a view
};

class Parameters {
 public:
  // The parameters become views of values(), their gradients views of gradients(); their modules must not be
  // moved to another device or dtype after that. `forward_order` are their names.
  Parameters(std::vector<NamedParameter> parameters, std::vector<std::string> forward_order);
  explicit Parameters(models::DiPoM& network);

  at::Tensor& values() { return values_; }  // (n), fp32 or fp64, on the network's device
  const at::Tensor& values() const { return values_; }
  at::Tensor& gradients() { return gradients_; }     // (n); backward() adds to it
  std::int64_t count() const;                        // of numbers that are learned
  std::int64_t decayed() const { return decayed_; }  // of the first so many elements weights decay
  const std::vector<Slice>& slices() const { return slices_; }
  const std::vector<MatrixGroup>& matrices() const { return matrices_; }  // those between layers
  std::int64_t matrices_end() const;                                      // where they end

  // Copies on the CPU by name, of anything laid out like values(); and back.
  models::Weights named(const at::Tensor& flat) const;
  void assign(at::Tensor& flat, const models::Weights& weights) const;

  // The last parameter in the order of the forward pass whose part of `flat` is not finite; empty: all are.
  std::string last_not_finite(const at::Tensor& flat) const;

 private:
  void add_matrix(const Slice& slice);

  at::Tensor values_, gradients_;
  std::vector<Slice> slices_;
  std::vector<MatrixGroup> matrices_;
  std::vector<std::string> forward_order_;
  std::int64_t decayed_ = 0;
};

// Matrices decay, and embeddings, biases and other vectors do not.
bool decays(std::string_view name, std::int64_t dims);
// From one layer's width to another's: neither a table nor what reads patches or writes them.
bool between_layers(std::string_view name, std::int64_t dims);

}  // namespace pom::train
