// The matrix products of a network alone: the floor under its time. M rows (tokens of a batch), K values in,
// N out; weights are (N, K) as torch::nn::Linear has them.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/models/config.h"

namespace pom::cli {

struct GemmShape {
  std::int64_t rows = 0, in = 0, out = 0;
  bool input_gradient =
      true;  // whether the backward pass needs that of the rows as well as that of the weights
};

// Of the tokens: into the network, those of each block, out of it. An evaluation while sampling has no
// others: what a clip's text says is read once a step, before the blocks.
std::vector<GemmShape> token_gemms(const models::NetworkConfig& config, std::int64_t tokens,
                                   std::int64_t batch);
// Of time and class, which a step of training has besides; of clips of time and text, `words` pieces a clip.
std::vector<GemmShape> condition_gemms(const models::NetworkConfig& config, std::int64_t batch,
                                       std::int64_t words = 0);
// Of one mixer.
std::vector<GemmShape> layer_gemms(std::int64_t dim, std::int64_t features, std::int64_t rows);

// Operations of the forward pass, a multiplication and an addition being two.
double forward_flops(const std::vector<GemmShape>& shapes);

// Random values, weights of its own for each product; rows and results are shared by products of one shape.
class Gemms {
 public:
  // dtype fp32, bf16, fp16, or e4m3: then with one scale for a matrix, the result in bf16, and sides that
  // are no multiples of 16 in bf16 altogether.
  Gemms(std::vector<GemmShape> shapes, at::ScalarType dtype, const at::Device& device);

  void forward();
  void forward_backward();  // of e4m3 there is none

 private:
  at::ScalarType dtype_of(const GemmShape& shape) const;
  at::Tensor random(std::int64_t rows, std::int64_t columns, at::ScalarType dtype) const;
  at::Tensor& input(std::int64_t rows, std::int64_t columns, at::ScalarType dtype);
  at::Tensor& output(std::int64_t rows, std::int64_t columns);
  void multiply(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) const;

  using Matrices = std::map<std::tuple<std::int64_t, std::int64_t, at::ScalarType>, at::Tensor>;
  std::vector<GemmShape> shapes_;
  at::ScalarType dtype_;
  at::Device device_;
  std::vector<at::Tensor> weights_;
  Matrices inputs_, outputs_;
  at::Tensor one_;  // the scale
};

}  // namespace pom::cli
