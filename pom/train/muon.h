// Muon: a momentum whose matrices are made orthogonal before they are subtracted, so that a step moves all
// directions of a matrix alike, those of small gradients too. For the matrices between the layers; everything
// else stays with AdamW.
#pragma once

#include <ATen/core/Tensor.h>

namespace pom::train {

struct MuonNumbers {
  double lr, momentum, weight_decay;
  double ema_weight;  // 1 − decay; 0: the average stays
  // On a GPU the numbers that change from step to step are read there, so that a step can be repeated as a
  // graph: three like the matrices, 1 − lr·weight_decay, −lr and ema_weight. Undefined on the host.
  at::Tensor there = {};
};
at::Tensor changing_numbers(const MuonNumbers& numbers);  // those three, on the host

// n matrices of one shape, (n, rows, columns) each; g is scaled by `scale`, a scalar on their device.
//
//   m ← momentum·m + (1 − momentum)·g,  u = momentum·m + (1 − momentum)·g,
//   p ← (1 − lr·weight_decay)·p − 0.2·√max(rows, columns)·lr·orthogonal(u)
//
// The factor gives an update the size of AdamW's, so that one learning rate suits both.
void muon_step(const MuonNumbers& numbers, const at::Tensor& scale, const at::Tensor& p, const at::Tensor& g,
               const at::Tensor& m, const at::Tensor& ema);

// Each of the matrices (n, rows, columns) with its singular values, those that are not tiny, brought near 1
// (0.7 to 1.2) by five steps of a polynomial iteration, in `dtype`. A matrix of zeros stays one.
at::Tensor orthogonal(const at::Tensor& matrices, at::ScalarType dtype);

}  // namespace pom::train
