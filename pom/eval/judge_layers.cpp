#include "pom/eval/judge_layers.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

namespace pom::eval {

at::Tensor convolve(const JudgeWeights& weights, const std::string& name, const at::Tensor& x,
                    std::int64_t stride, bool learning) {
  constexpr double momentum = 0.1, eps = 1e-5;
  const at::Tensor y = at::conv2d(x, weights.at(name + ".weight"), {}, stride, 1);
  return at::relu(at::batch_norm(y, weights.at(name + ".norm.weight"), weights.at(name + ".norm.bias"),
                                 weights.at(name + ".norm.mean"), weights.at(name + ".norm.variance"),
                                 learning, momentum, eps,
                                 /*cudnn_enabled=*/false));
}

void add_convolution(JudgeShapes& shapes, const std::string& name, std::int64_t in, std::int64_t out) {
  shapes[name + ".weight"] = {out, in, 3, 3};
  for (const char* part : {"weight", "bias", "mean", "variance"}) shapes[name + ".norm." + part] = {out};
}

at::Tensor dense(const JudgeWeights& weights, const std::string& name, const at::Tensor& x) {
  return at::linear(x, weights.at(name + ".weight"), weights.at(name + ".bias"));
}

void add_dense(JudgeShapes& shapes, const std::string& name, std::int64_t in, std::int64_t out) {
  shapes[name + ".weight"] = {out, in};
  shapes[name + ".bias"] = {out};
}

}  // namespace pom::eval
