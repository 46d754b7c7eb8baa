// Private to the room: attention over spans by torch's flash attention, which reads their numbers on the
// device. Arguments checked.
#pragma once

#include "pom/ops/block/span_attention.h"

namespace pom::ops::cuda {

bool has_span_attention(c10::Device device, at::ScalarType dtype, std::int64_t head);
at::Tensor span_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          std::int64_t heads, const Spans& spans);

}  // namespace pom::ops::cuda
