// A step of AdamW and of the running average of the weights, in one pass over flat fp32 buffers.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "pom/kernels/portable/weight_copies.h"

namespace pom::kernels {

// As torch.optim.AdamW: g is times *clip_scale; p -= lr wd p; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
// p -= lr / bias_correction1 m / (sqrt(v) / sqrt(bias_correction2) + eps); ema += (1 - ema_decay) (p - ema).
struct AdamWParams {
  float* p = nullptr;  // (n), like the others
  const float* g = nullptr;
  float *m = nullptr, *v = nullptr;
  float* ema = nullptr;  // null: no average
  int64_t n = 0;
  int64_t decayed = 0;  // the first so many values decay
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double bias_correction1 = 1, bias_correction2 = 1;  // 1 - beta^step
  const float* clip_scale = nullptr;  // one value on the device, so that nobody waits; null: 1
  double ema_decay = 0;               // 1: the average stays as it is
  WeightParts weights = {};           // with parts: these are stepped, which have all of p but padding
};
cudaError_t adamw(const AdamWParams& params, cudaStream_t stream);

}  // namespace pom::kernels
