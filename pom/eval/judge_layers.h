// Private to the room: what the networks of judges consist of, as functions of named tensors. N pictures.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::eval {

using JudgeWeights = std::map<std::string, at::Tensor>;
using JudgeShapes = std::map<std::string, std::vector<std::int64_t>>;

// A 3x3 convolution, batch norm and a rectifier. While learning, norms are those of the batch, and what they
// will be later (norm.mean, norm.variance) is brought up to date.
at::Tensor convolve(const JudgeWeights& weights, const std::string& name, const at::Tensor& x,
                    std::int64_t stride, bool learning);
void add_convolution(JudgeShapes& shapes, const std::string& name, std::int64_t in, std::int64_t out);

at::Tensor dense(const JudgeWeights& weights, const std::string& name, const at::Tensor& x);
void add_dense(JudgeShapes& shapes, const std::string& name, std::int64_t in, std::int64_t out);

}  // namespace pom::eval
