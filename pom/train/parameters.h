// All parameters of a network in one piece of memory, and their gradients in another: the optimizer goes over
// them once, and a norm is one sum. The matrices between layers come first, layer by layer, so that those of
// the last layers, whose gradients are there first, are one piece; then what else decays, then the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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

// A part of the flat memory.
struct FlatRange {
  std::int64_t begin = 0, count = 0;
};

// Matrices of one shape and role, one in each layer, at equal distances in the flat memory.
struct MatrixGroup {
  std::int64_t begin = 0, count = 0, rows = 0, columns = 0;
  std::int64_t stride = 0;  // from one to the next

  at::Tensor of(const at::Tensor& flat) const;  // (count, rows, columns), a view
};

// Sums over the flat memory that must not depend on how it is divided go over pieces of so many elements,
// and whoever divides it does so between them.
inline constexpr std::int64_t flat_piece = 1024;

class Parameters {
 public:
  // The parameters become views of values(), their gradients views of gradients(); their modules must not be
  // moved to another device or dtype after that. `forward_order` are their names. The memory can be divided
  // into `ranks` equal ranges of whole pieces; `by_layer`, so can the matrices of each layer.
  Parameters(std::vector<NamedParameter> parameters, std::vector<std::string> forward_order,
             std::int64_t ranks = 1, bool by_layer = false);
  explicit Parameters(models::DiPoM& network);

  std::int64_t total() const { return total_; }  // n, of the flat memory
  at::Tensor& values() { return values_; }       // (n), fp32 or fp64, on the network's device
  const at::Tensor& values() const { return values_; }
  at::Tensor& gradients() { return gradients_; }  // (n); backward() adds to it
  void drop_gradients();                          // for who keeps them elsewhere: gradients() is empty then
  // From here on values() are these, a rank's own parts, and each parameter is where `memory` says, which
  // someone else keeps filled; gradients are kept elsewhere too.
  void divide(at::Tensor own, const std::function<at::Tensor(const Slice&)>& memory);
  bool divided() const { return divided_; }
  std::int64_t count() const;                        // of numbers that are learned
  std::int64_t decayed() const { return decayed_; }  // of the first so many elements weights decay
  const std::vector<Slice>& slices() const { return slices_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }     // the parameters, in their order
  const std::vector<MatrixGroup>& matrices() const { return matrices_; }  // those between layers
  std::int64_t matrices_end() const { return matrices_end_; }             // where they end
  const std::vector<FlatRange>& layers() const { return layers_; }        // their matrices, where `by_layer`

  // Copies on the CPU by name, of anything laid out like values(); and back.
  models::Weights named(const at::Tensor& flat) const;
  void assign(at::Tensor& flat, const models::Weights& weights) const;

  // The last parameter in the order of the forward pass whose part of `flat` is not finite; empty: all are.
  std::string last_not_finite(const at::Tensor& flat) const;

 private:
  void add_matrix(const Slice& slice);
  std::map<std::string, std::size_t> roles_;  // of matrices: "blocks.#.mlp.0.weight" -> its group

  at::Tensor values_, gradients_;
  std::vector<Slice> slices_;
  std::vector<at::Tensor> tensors_;
  std::vector<MatrixGroup> matrices_;
  std::int64_t matrices_end_ = 0, total_ = 0;
  std::vector<FlatRange> layers_;
  bool divided_ = false;
  std::vector<std::string> forward_order_;
  std::int64_t decayed_ = 0;
};

// Matrices decay, and embeddings, biases and other vectors do not.
bool decays(std::string_view name, std::int64_t dims);
// From one layer's width to another's: neither a table nor what reads patches or writes them.
bool between_layers(std::string_view name, std::int64_t dims);

}  // namespace pom::train
