// Attention of sequences over spans of rows in one memory, where the spans are numbers on the device: a GPU's
// graph of it serves whatever they are. S sequences of K queries, h heads, d width, M rows of the memory.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pom::ops {

// Of sequence s the rows [first[s], first[s] + rows[s]), at least one.
struct Spans {
  at::Tensor queries;      // (S + 1) int32: s K
  at::Tensor first, rows;  // (S + 1) and (S) int32; the last of `first` means nothing
  std::int64_t most = 0;   // rows of any span at most
};

// Whether there is a kernel for it on this device: of torch's flash attention for bf16 and fp16, heads of a
// multiple of 8 values up to 256.
bool has_span_attention(c10::Device device, at::ScalarType dtype, std::int64_t head);

// queries (S, K, d), keys and values (M, d), all as (h, d / h) -> (S, K, d). Without a kernel, on any device,
// span by span, which waits for the device.
at::Tensor span_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          std::int64_t heads, const Spans& spans);

}  // namespace pom::ops
