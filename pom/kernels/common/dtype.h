// How values are stored on the GPU; arithmetic is fp32 always.
#pragma once

namespace pom::kernels {

enum class Dtype { fp32, bf16, fp16, e4m3 };

}  // namespace pom::kernels
