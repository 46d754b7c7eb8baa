#include "pom/ops/cuda/inference_means.h"

#include <ATen/ATen.h>

namespace pom::ops::cuda::sampling {

std::int64_t runs_of(std::int64_t tokens, std::int64_t run) {
  return run == 0 ? 1 : (tokens + run - 1) / run;
}

Means few_means(const char* op, const kernels::FewRowsGemm& p, std::int64_t order, const Visibility& seen,
                const Running& state, const at::Tensor& like, Queue& queue) {
  const std::int64_t runs = runs_of(p.sizes.tokens, seen.runs.run_tokens);
  Means m{seen.runs, floats({p.sizes.batch * runs, p.sizes.outputs}, like), {}, {}};
  kernels::RowsSums epilogue;
  epilogue.order = static_cast<int>(order), epilogue.runs = seen.runs, epilogue.causal = seen.causal;
  if (seen.visible.defined()) epilogue.visible = seen.visible.const_data_ptr<std::uint8_t>();
  epilogue.sum = floats_of(state.sum);
  if (state.count.defined()) epilogue.count = state.count.const_data_ptr<std::int64_t>();
  if (state.total.defined()) epilogue.total = state.total.mutable_data_ptr<float>();
  epilogue.H = m.H.mutable_data_ptr<float>();
  check_launch(op, kernels::rows_sums(p, epilogue, queue.stream));
  queue.settled = true;
  return m;
}

namespace {

// Whether the sums' GEMM reads the weight where it stands, which saves the copies of weights that change; and
// the order in which a copy of it is wanted, 0 for none: that of order 1 is the paper's.
bool in_place(Dtype dtype, std::int64_t order) {
  return order == 2 && dtype != Dtype::e4m3 && !PreparedWeights::current().frozen();
}
std::int64_t sums_layout(Dtype dtype, std::int64_t order) {
  return order == 1 || in_place(dtype, order) ? 0 : order;
}

// The sums over the rows of tiles, apart, and what they were summed of.
struct TileSums {
  kernels::Gemm gemm;
  at::Tensor partial;
};
TileSums tile_sums(const char* op, const Rows& context, const Matrix& ho, std::int64_t order,
                   const kernels::Runs& runs, const at::Tensor& visible, Queue& queue) {
  queue.settled = false;
  TileSums t{gemm_of(context, ho), {}};
  t.gemm.factors = in_place(t.gemm.dtype, order) ? 2 : 0;
  t.partial = floats({kernels::sums_slots(t.gemm.sizes, runs), t.gemm.sizes.outputs}, context.values);
  kernels::SumsEpilogue epilogue;
  epilogue.order = static_cast<int>(order), epilogue.runs = runs;
  epilogue.partial = t.partial.mutable_data_ptr<float>();
  if (visible.defined()) epilogue.visible = visible.const_data_ptr<std::uint8_t>();
  const Run sums = [&](const kernels::Gemm& q) { return kernels::gemm_sums(q, epilogue, queue.stream); };
  if (order == 2)
    launch(op, t.gemm, "sums", queue.stream, sums, sums);
  else
    check_launch(op, sums(t.gemm));  // there is one tile
  return t;
}

}  // namespace

Means means(const char* op, const Rows& context, const Dense& dense, Dtype dtype, std::int64_t order,
            const Visibility& seen, Queue& queue) {
  const bool plain =
      dtype != Dtype::e4m3 && seen.window == 0 && few_sums(context.values, dense.weight, order);
  const Matrix ho = matrix(dense, dtype, plain ? 0 : sums_layout(dtype, order));
  if (plain)
    return few_means(op, *rows_of(context, ho, queue.settled), order, seen, {}, context.values, queue);
  const auto [p, partial] = tile_sums(op, context, ho, order, seen.runs, seen.visible, queue);
  const bool whole = !seen.visible.defined() && !seen.sums && !seen.causal && p.dtype != Dtype::e4m3;
  if (seen.gated_here && whole && kernels::gate_takes_sums(p.sizes, seen.runs))
    return {seen.runs, {}, {}, partial};

  const std::int64_t runs = runs_of(p.sizes.tokens, seen.runs.run_tokens);
  Means m{seen.runs, floats({p.sizes.batch * runs, p.sizes.outputs}, context.values), {}, {}};
  if (p.dtype == Dtype::e4m3) m.largest = floats({p.sizes.batch}, context.values);
  at::Tensor counts;
  if (seen.sums)  // divided by one, not by the number of rows
    counts = at::ones({p.sizes.batch}, m.H.options());
  else if (seen.visible.defined())
    counts = seen.visible.sum(1, /*keepdim=*/false, at::kFloat);
  kernels::FoldParams fold;
  fold.sizes = p.sizes, fold.runs = seen.runs, fold.partial = partial.const_data_ptr<float>();
  fold.causal = seen.causal, fold.window = seen.window, fold.counts = floats_of(counts);
  fold.H = m.H.mutable_data_ptr<float>();
  if (m.largest.defined()) fold.largest = m.largest.mutable_data_ptr<float>();
  check_launch(op, kernels::fold_sums(fold, queue.stream));
  return m;
}

at::Tensor sums_of(const char* op, const Rows& context, const Dense& dense, Dtype dtype, std::int64_t order,
                   const at::Tensor& visible, Queue& queue) {
  Visibility seen;
  seen.visible = visible, seen.sums = true;
  if (dtype == Dtype::e4m3 || !few_sums(context.values, dense.weight, order))
    return means(op, context, dense, dtype, order, seen, queue).H;
  const auto few = rows_of(context, matrix(dense, dtype), queue.settled);
  const Running state{{}, {}, floats({context.values.size(0), dense.weight.size(0)}, context.values)};
  few_means(op, *few, order, seen, state, context.values, queue);
  return state.total;
}

bool folds(const PastSums& past) {
  return past.past.is_contiguous() && past.left.is_contiguous() && past.tokens_seen.is_contiguous();
}

Means means_with_past(const char* op, const Rows& context, const Dense& dense, Dtype dtype,
                      std::int64_t order, const PastSums& past, Queue& queue) {
  const at::Tensor& blocks = context.values;
  const std::int64_t n = past.blocks(), K = blocks.size(1), R = blocks.size(0) / n;
  const kernels::Runs runs{.run_tokens = K};
  const Rows all{blocks.view({R, n * K, blocks.size(2)}), context.scale};
  const auto [p, partial] =
      tile_sums(op, all, matrix(dense, dtype, sums_layout(dtype, order)), order, runs, {}, queue);
  Means m{{}, floats({R * n, p.sizes.outputs}, blocks), {}, {}};
  if (p.dtype == Dtype::e4m3) m.largest = floats({R * n}, blocks);
  kernels::FoldParams fold;
  fold.sizes = p.sizes, fold.runs = runs, fold.partial = floats_of(partial);
  fold.causal = true, fold.window = past.window;
  fold.past = floats_of(past.past), fold.seen = floats_of(past.tokens_seen);
  at::Tensor left = past.left;
  fold.left = left.mutable_data_ptr<float>(), fold.H = m.H.mutable_data_ptr<float>();
  if (m.largest.defined()) fold.largest = m.largest.mutable_data_ptr<float>(), fold.largest_of_runs = true;
  check_launch(op, kernels::fold_sums(fold, queue.stream));
  return m;
}

Means means_from(const at::Tensor& H, Dtype dtype, const at::Tensor& scales) {
  at::Tensor rows = H.contiguous();
  if (!aligned(rows)) rows = rows.clone();
  if (dtype != Dtype::e4m3) return {{}, rows, {}, {}};
  return {{}, rows, scales.defined() ? scales : means_scales(rows), {}};
}

}  // namespace pom::ops::cuda::sampling
