// Private to the room: the products behind a mixer's means and of a feed-forward, each with its epilogue.
#pragma once

#include "pom/ops/cuda/inference_means.h"

namespace pom::ops::cuda::sampling {

// sigmoid(x W_se + b_se) H, for the product that follows: the sigmoid is at most 1, so the scale of H fits.
Rows gated(const char* op, const Rows& queries, const Matrix& se, const Means& m, Queue& queue);

// x += gate * (y W + b)
void add_gated(const char* op, at::Tensor& x, const Rows& y, const Matrix& w, const at::Tensor& gates,
               Queue& queue);

void store(const char* op, const Rows& a, const Matrix& w, kernels::Activation activation, at::Tensor& out,
           const float* out_scale, Queue& queue);

// gelu(a W + b). Where fp8 is measuring, the scale that these values would need is noted.
Rows hidden(const char* op, const Rows& a, const Matrix& up, const at::Tensor& weight, const Fp8& fp8,
            Queue& queue);
void check_hidden(const char* op, const at::Tensor& x, const Fp8& fp8);

}  // namespace pom::ops::cuda::sampling
