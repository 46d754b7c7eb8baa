// Rows are tokens of the whole batch. A half is a pass over the stream and two or three products, each with
// what follows it in its own kernel; between them only what the next product reads. Few rows have kernels of
// their own (pom/kernels/portable/few_rows_gemm.h), which take the norm of the stream themselves.
#include "pom/ops/cuda/inference.h"

#include <ATen/ATen.h>

#include "pom/kernels/portable/few_rows_gemm.h"
#include "pom/kernels/portable/residual_norm.h"
#include "pom/kernels/sm90/gemm/gemm.h"
#include "pom/kernels/sm90/scan/scan.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/prepared_weights.h"
#include "pom/ops/cuda/tile_tuning.h"

namespace pom::ops::cuda {
namespace {

using detail::check_launch;
using detail::OnDevice;
using kernels::Dtype;

bool half_precision(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}
bool aligned(const at::Tensor& t) {  // or becomes so, being copied
  return !t.is_contiguous() || reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 == 0;
}
at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}
Dtype dtype_of(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat8_e4m3fn ? Dtype::e4m3 : detail::kernel_dtype(t);
}

// ---- what there are kernels for ----

// For x (B, N, K) times this weight (N', K). Operands that are made here are as aligned as anything.
bool has_gemm(const at::Tensor& x, const at::Tensor& weight, Dtype dtype) {
  kernels::Gemm p;
  p.sizes = {x.size(0), x.size(1), weight.size(1), weight.size(0)};
  p.dtype = dtype, p.a = p.w = weight.const_data_ptr();
  if (dtype == Dtype::e4m3) p.a_scale = p.w_scale = static_cast<const float*>(p.w);  // will be there
  return weight.is_contiguous() && p.sizes.rows() > 0 && p.sizes.outputs % 8 == 0 &&
         kernels::gemm_supported(p);
}
// Few rows have kernels for any sizes, on any GPU of compute capability 8.0 and newer.
bool few(const at::Tensor& x, const at::Tensor& weight) {
  kernels::FewRowsGemm p;
  p.sizes = {x.size(0), x.size(1), weight.size(1), weight.size(0)};
  p.a = p.w = weight.const_data_ptr();
  return half_precision(weight) && weight.is_contiguous() && kernels::rows_supported(p);
}
bool few_sums(const at::Tensor& x, const at::Tensor& weight, std::int64_t order) {
  return few(x, weight) && order <= kernels::kMostRowsOrder;
}
bool has_rows(const at::Tensor& x, const at::Tensor& weight, Dtype dtype) {
  return few(x, weight) || has_gemm(x, weight, dtype);
}
bool has_sums(std::int64_t batch, std::int64_t order, std::int64_t D) {
  constexpr std::int64_t most = 65535;  // a grid's height
  return order <= kMaxFusedOrder && kernels::sums_order(static_cast<int>(order)) && D % 8 == 0 &&
         batch <= most;
}

bool has_stream(const at::Tensor& x) {
  return x.is_contiguous() && aligned(x);
}
// One stride serves the modulation's two tensors.
bool has_norm(const at::Tensor& x, const Modulation& m) {
  return has_stream(x) && (x.size(0) == 1 || m.scale.stride(0) == m.shift.stride(0));
}

Dtype gemm_dtype(const at::Tensor& weight, const Fp8& fp8) {
  return fp8.stage == Fp8::Stage::on ? Dtype::e4m3 : detail::kernel_dtype(weight);
}

// Kernels for every weight, in the dtype of their products; also in fp8 where that is going to be asked for.
// Nobody who asks for fp8 gets something else.
bool has_gemms(const char* op, const at::Tensor& x, std::initializer_list<at::Tensor> weights, bool others,
               const Fp8& fp8) {
  bool all = others;
  for (const at::Tensor& weight : weights)
    all = all && half_precision(weight) && has_rows(x, weight, detail::kernel_dtype(weight)) &&
          (!fp8.asked() || (weight.scalar_type() == at::kBFloat16 && has_gemm(x, weight, Dtype::e4m3)));
  check(all || !fp8.asked(), op,
        ": fp8: expected a GPU of compute capability 9.0, bf16 weights of widths divisible by 16, and an ",
        "order of 1, 2, 3, 4, 6 or 8");
  return all;
}

// ---- the pieces ----

// What a product reads: (B, N, K), in e4m3 with a scale of each row (B N) or of several. Of few rows the
// stream itself, whose norm the product takes.
struct Rows {
  at::Tensor values, scale;
  const Modulation* norm = nullptr;
  std::int64_t scale_rows = 1;  // that share a scale
};

// The stream of an operator, and whether its last launch was a product of few rows, behind which the next
// may read its weights ahead.
struct Queue {
  cudaStream_t stream;
  bool settled = false;
};

// A weight beside its bias, as the kernels read them.
struct Matrix {
  PreparedWeight weight, bias;
};
Matrix matrix(const Dense& dense, Dtype dtype, std::int64_t order = 0) {
  PreparedWeights& prepared = PreparedWeights::current();
  return {prepared.get(dense.weight, {dtype == Dtype::e4m3 ? Form::e4m3 : Form::rows, order}),
          prepared.get(dense.bias, {Form::bias, order})};
}

const float* floats_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

kernels::Gemm gemm_of(const Rows& a, const Matrix& w) {
  kernels::Gemm p;
  p.sizes = {a.values.size(0), a.values.size(1), a.values.size(2), w.weight.values.size(0)};
  p.dtype = dtype_of(a.values);
  p.a = a.values.const_data_ptr(), p.w = w.weight.values.const_data_ptr();
  p.bias = floats_of(w.bias.values);
  p.a_scale = floats_of(a.scale), p.w_scale = floats_of(w.weight.scale), p.scale_rows = a.scale_rows;
  return p;
}

// A product of a network that samples takes the fastest tile; and in its graph, before which all copies of
// its weights were made, it reads them early. `rehearse` is like `run` and does no harm.
using Run = std::function<cudaError_t(const kernels::Gemm&)>;
void launch(const char* op, kernels::Gemm p, const char* kind, cudaStream_t stream, const Run& run,
            const Run& rehearse) {
  if (PreparedWeights::current().frozen()) {
    tune(p, kind, stream, rehearse);
    p.steady = detail::capturing(stream);
  }
  check_launch(op, run(p));
}

// As a product of few rows, if it is one.
std::optional<kernels::FewRowsGemm> rows_of(const Rows& a, const Matrix& w, bool settled) {
  kernels::FewRowsGemm p;
  p.sizes = {a.values.size(0), a.values.size(1), a.values.size(2), w.weight.values.size(0)};
  if (w.weight.scale.defined()) return {};  // e4m3
  p.dtype = dtype_of(w.weight.values), p.settled = settled;
  p.a = a.values.const_data_ptr(), p.w = w.weight.values.const_data_ptr();
  p.bias = floats_of(w.bias.values);
  if (a.norm)
    p.norm = {floats_of(a.norm->scale), floats_of(a.norm->shift), a.norm->scale.stride(0),
              static_cast<float>(a.norm->eps)};
  return kernels::rows_supported(p) ? std::optional(p) : std::nullopt;
}

// The modulated layer norm of the stream, as the next products want it, of which this weight is one.
Rows modulated_norm(const char* op, const at::Tensor& x, const Modulation& m, const at::Tensor& weight,
                    Dtype dtype, Queue& queue) {
  const Rows itself{x, {}, &m};
  if (dtype != Dtype::e4m3 && few(x, weight) && rows_of(itself, {{weight, {}}, {}}, false)) return itself;
  queue.settled = false;
  const bool e4m3 = dtype == Dtype::e4m3;
  Rows r;
  r.values = at::empty(x.sizes(), x.options().dtype(e4m3 ? at::kFloat8_e4m3fn : weight.scalar_type()));
  if (e4m3) r.scale = floats({x.size(0) * x.size(1)}, x);
  kernels::StreamNormParams p;
  p.batch = x.size(0), p.tokens = x.size(1), p.width = x.size(2);
  p.x = x.data_ptr<float>(), p.eps = static_cast<float>(m.eps);
  p.scale = floats_of(m.scale), p.shift = floats_of(m.shift), p.stride = m.scale.stride(0);
  p.out_dtype = dtype, p.out = r.values.mutable_data_ptr();
  if (e4m3) p.row_scale = r.scale.mutable_data_ptr<float>();
  check_launch(op, kernels::stream_norm(p, queue.stream));
  return r;
}

Rows quantized(const char* op, const at::Tensor& x, cudaStream_t stream) {
  Rows r;
  r.values = at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn));
  r.scale = floats({x.size(0) * x.size(1)}, x);
  kernels::QuantizeParams p;
  p.rows = x.size(0) * x.size(1), p.width = x.size(2), p.dtype = detail::kernel_dtype(x);
  p.x = x.const_data_ptr(), p.out = r.values.mutable_data_ptr();
  p.scale = r.scale.mutable_data_ptr<float>();
  check_launch(op, kernels::quantize_rows(p, stream));
  return r;
}

// What the queries see of the context: (B runs, kD).
struct Means {
  kernels::Runs runs;
  at::Tensor H;
  at::Tensor largest;  // (B), fp8 only: a scale that fits every value of a sequence
  at::Tensor partial;  // instead of H: the sums of tiles, which the gate adds up
};

struct Visibility {
  kernels::Runs runs;
  bool causal = false;
  std::int64_t window = 0;
  at::Tensor visible;       // (B, n) bytes or undefined
  bool sums = false;        // not means: of a whole sequence
  bool gated_here = false;  // the queries are these tokens
};

// What a sum goes on from: (B, kD) over (B) tokens; and where the new one is left, if it is wanted.
struct Running {
  at::Tensor sum, count, total;
};

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

// The sums over the rows of tiles, apart, and what they were summed of.
struct TileSums {
  kernels::Gemm gemm;
  at::Tensor partial;
};
TileSums tile_sums(const char* op, const Rows& context, const Matrix& ho, std::int64_t order,
                   const kernels::Runs& runs, const at::Tensor& visible, Queue& queue) {
  queue.settled = false;
  TileSums t{gemm_of(context, ho), {}};
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

// Few rows have the weights in the paper's order, more in that of gemm_sums.
Means means(const char* op, const Rows& context, const Dense& dense, Dtype dtype, std::int64_t order,
            const Visibility& seen, Queue& queue) {
  const bool plain =
      dtype != Dtype::e4m3 && seen.window == 0 && few_sums(context.values, dense.weight, order);
  const Matrix ho = matrix(dense, dtype, plain ? 0 : order);
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

// The sums over the tokens of each sequence (B, kD), not divided.
at::Tensor sums_of(const char* op, const Rows& context, const Dense& dense, Dtype dtype, std::int64_t order,
                   const at::Tensor& visible, Queue& queue) {
  Visibility seen;
  seen.visible = visible, seen.sums = true;
  if (!few_sums(context.values, dense.weight, order))
    return means(op, context, dense, dtype, order, seen, queue).H;
  const auto few = rows_of(context, matrix(dense, dtype), queue.settled);
  const Running state{{}, {}, floats({context.values.size(0), dense.weight.size(0)}, context.values)};
  few_means(op, *few, order, seen, state, context.values, queue);
  return state.total;
}

// Whether one kernel makes the means of sums and of those of the blocks before.
bool folds(const PastSums& past) {
  return past.past.is_contiguous() && past.left.is_contiguous() && past.tokens_seen.is_contiguous();
}

// Of blocks that see those before them, context (R n, K, d): the sums of tiles, added up to what is kept.
Means means_with_past(const char* op, const Rows& context, const Dense& dense, Dtype dtype,
                      std::int64_t order, const PastSums& past, Queue& queue) {
  const at::Tensor& blocks = context.values;
  const std::int64_t n = past.blocks(), K = blocks.size(1), R = blocks.size(0) / n;
  const kernels::Runs runs{.run_tokens = K};
  const Rows all{blocks.view({R, n * K, blocks.size(2)}), {}};
  const auto [p, partial] = tile_sums(op, all, matrix(dense, dtype, order), order, runs, {}, queue);
  Means m{{}, floats({R * n, p.sizes.outputs}, blocks), {}, {}};
  kernels::FoldParams fold;
  fold.sizes = p.sizes, fold.runs = runs, fold.partial = floats_of(partial);
  fold.causal = true, fold.window = past.window;
  fold.past = floats_of(past.past), fold.seen = floats_of(past.tokens_seen);
  at::Tensor left = past.left;
  fold.left = left.mutable_data_ptr<float>(), fold.H = m.H.mutable_data_ptr<float>();
  check_launch(op, kernels::fold_sums(fold, queue.stream));
  return m;
}

// sigmoid(x W_se + b_se) H, for the product that follows: the sigmoid is at most 1, so the scale of H fits.
Rows gated(const char* op, const Rows& queries, const Matrix& se, const Means& m, Queue& queue) {
  const at::Tensor& weight = se.weight.values;
  Rows r;
  r.values = at::empty({queries.values.size(0), queries.values.size(1), weight.size(0)}, weight.options());
  if (const auto few = rows_of(queries, se, queue.settled)) {
    check_launch(op,
                 kernels::rows_gate(*few, {m.runs, m.H.const_data_ptr<float>(), r.values.mutable_data_ptr()},
                                    queue.stream));
    queue.settled = true;
    return r;
  }
  queue.settled = false;
  const kernels::Gemm p = gemm_of(queries, se);
  kernels::GateEpilogue epilogue;
  epilogue.runs = m.runs, epilogue.H = floats_of(m.H), epilogue.partial = floats_of(m.partial);
  epilogue.out_dtype = p.dtype, epilogue.out = r.values.mutable_data_ptr(),
  epilogue.out_scale = floats_of(m.largest);
  const Run run = [&](const kernels::Gemm& q) { return kernels::gemm_gate(q, epilogue, queue.stream); };
  launch(op, p, "gate", queue.stream, run, run);
  r.scale = m.largest, r.scale_rows = p.sizes.tokens;
  return r;
}

// Rows (B, d) that can be read two values at a time.
at::Tensor in_pairs(const at::Tensor& rows) {
  const bool fits =
      reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % 8 == 0 && rows.stride(0) % 2 == 0;
  return fits ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

void add_gated(const char* op, at::Tensor& x, const Rows& y, const Matrix& w, const at::Tensor& gates,
               Queue& queue) {
  if (const auto few = rows_of(y, w, queue.settled)) {
    check_launch(
        op, kernels::rows_residual(*few, {x.mutable_data_ptr<float>(), floats_of(gates), gates.stride(0)},
                                   queue.stream));
    queue.settled = true;
    return;
  }
  queue.settled = false;
  const at::Tensor gate = in_pairs(gates);
  kernels::ResidualEpilogue epilogue;
  epilogue.x = x.mutable_data_ptr<float>(), epilogue.gate = floats_of(gate),
  epilogue.gate_stride = gate.stride(0);
  const Run run = [&](const kernels::Gemm& q) { return kernels::gemm_residual(q, epilogue, queue.stream); };
  at::Tensor scratch;
  const Run rehearse = [&](const kernels::Gemm& q) {  // adding up is not to be repeated
    if (!scratch.defined()) scratch = at::zeros_like(x);
    kernels::ResidualEpilogue aside = epilogue;
    aside.x = scratch.mutable_data_ptr<float>();
    return kernels::gemm_residual(q, aside, queue.stream);
  };
  launch(op, gemm_of(y, w), "residual", queue.stream, run, rehearse);
}

void store(const char* op, const Rows& a, const Matrix& w, kernels::Activation activation, at::Tensor& out,
           const float* out_scale, Queue& queue) {
  if (const auto few = rows_of(a, w, queue.settled)) {
    const kernels::RowsStore epilogue{activation, dtype_of(out), out.mutable_data_ptr()};
    check_launch(op, kernels::rows_store(*few, epilogue, queue.stream));
    queue.settled = true;
    return;
  }
  queue.settled = false;
  kernels::StoreEpilogue epilogue;
  epilogue.activation = activation, epilogue.out_dtype = dtype_of(out);
  epilogue.out = out.mutable_data_ptr(), epilogue.out_scale = out_scale;
  const Run run = [&](const kernels::Gemm& q) { return kernels::gemm_store(q, epilogue, queue.stream); };
  launch(op, gemm_of(a, w), activation == kernels::Activation::gelu ? "gelu" : "store", queue.stream, run,
         run);
}

// gelu(a W + b). Where fp8 is measuring, the scale that these values would need is noted.
Rows hidden(const char* op, const Rows& a, const Matrix& up, const at::Tensor& weight, const Fp8& fp8,
            Queue& queue) {
  const bool e4m3 = dtype_of(a.values) == Dtype::e4m3;
  const std::int64_t batch = a.values.size(0), tokens = a.values.size(1);
  const at::ScalarType type = e4m3 ? at::kFloat8_e4m3fn : weight.scalar_type();
  Rows r;
  r.values = at::empty({batch, tokens, weight.size(0)}, weight.options().dtype(type));
  if (e4m3) r.scale = fp8.hidden, r.scale_rows = batch * tokens;
  store(op, a, up, kernels::Activation::gelu, r.values, floats_of(r.scale), queue);
  if (fp8.stage != Fp8::Stage::measuring) return r;
  kernels::LargestParams p;
  p.count = r.values.numel(), p.dtype = dtype_of(r.values), p.x = r.values.const_data_ptr();
  p.largest = fp8.hidden.mutable_data_ptr<float>();
  check_launch(op, kernels::largest_value(p, queue.stream));
  queue.settled = false;
  return r;
}

void check_hidden(const char* op, const at::Tensor& x, const Fp8& fp8) {
  if (!fp8.asked()) return;
  check(fp8.hidden.defined() && fp8.hidden.numel() == 1 && fp8.hidden.scalar_type() == at::kFloat &&
            fp8.hidden.device() == x.device(),
        op, ": fp8: expected a scale on ", x.device());
}

}  // namespace

bool add_mixer(at::Tensor& x, const Modulation& m, const LayerWeights& w, std::int64_t order,
               const at::Tensor& gate, const Fp8& fp8) {
  constexpr const char* op = "add_mixer";
  const Problem problem = check_stream_layer(x, w, order);
  const OnDevice device(x);
  const bool context =
      (!fp8.asked() && few_sums(x, w.ho_weight, order)) || has_sums(x.size(0), order, problem.D);
  if (!has_gemms(op, x, {w.ho_weight, w.se_weight, w.ag_weight}, has_norm(x, m) && context, fp8))
    return false;
  Queue queue{device.stream()};
  const Dtype dtype = gemm_dtype(w.ho_weight, fp8);
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype), ag = matrix({w.ag_weight, w.ag_bias}, dtype);
  const Rows normal = modulated_norm(op, x, m, w.ho_weight, dtype, queue);
  Visibility seen;
  seen.gated_here = true;
  const Means H = means(op, normal, {w.ho_weight, w.ho_bias}, dtype, order, seen, queue);
  const Rows mixed = gated(op, normal, se, H, queue);
  add_gated(op, x, mixed, ag, gate, queue);
  return true;
}

namespace {

// Means that a caller made, as the gate reads them.
Means means_from(const at::Tensor& H) {
  at::Tensor rows = H.contiguous();
  if (!aligned(rows)) rows = rows.clone();
  return {{}, rows, {}, {}};
}

}  // namespace

// The norm is taken once, for the context and for the queries.
bool add_mixer(at::Tensor& x, const Modulation& m, const LayerWeights& w, std::int64_t order,
               const at::Tensor& gate, const PastSums& past) {
  constexpr const char* op = "add_mixer";
  const Problem problem = check_stream_layer(x, w, order);
  const OnDevice device(x);
  const bool context = few_sums(x, w.ho_weight, order) || has_sums(x.size(0), order, problem.D);
  if (!has_gemms(op, x, {w.ho_weight, w.se_weight, w.ag_weight}, has_norm(x, m) && context, {})) return false;
  Queue queue{device.stream()};
  const Dtype dtype = gemm_dtype(w.ho_weight, {});
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype), ag = matrix({w.ag_weight, w.ag_bias}, dtype);
  const Rows normal = modulated_norm(op, x, m, w.ho_weight, dtype, queue);
  const Dense ho{w.ho_weight, w.ho_bias};
  Means H;
  if (!past.past.defined()) {  // 1e-7 does not count beside one token
    Visibility seen;
    seen.gated_here = true;
    H = means(op, normal, ho, dtype, order, seen, queue);
  } else if (!few_sums(x, w.ho_weight, order) && folds(past)) {
    H = means_with_past(op, normal, ho, dtype, order, past, queue);
  } else {
    H = means_from(seen_means(past, sums_of(op, normal, ho, dtype, order, {}, queue)));
    queue.settled = false;  // what came between
  }
  add_gated(op, x, gated(op, normal, se, H, queue), ag, gate, queue);
  return true;
}

bool add_selection(at::Tensor& x, const Modulation& m, const at::Tensor& H, const LayerWeights& w,
                   const at::Tensor& gate) {
  constexpr const char* op = "add_selection";
  const OnDevice device(x);
  if (!has_gemms(op, x, {w.se_weight, w.ag_weight}, has_norm(x, m), {})) return false;
  Queue queue{device.stream()};
  const Dtype dtype = gemm_dtype(w.se_weight, {});
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype), ag = matrix({w.ag_weight, w.ag_bias}, dtype);
  const Rows normal = modulated_norm(op, x, m, w.se_weight, dtype, queue);
  add_gated(op, x, gated(op, normal, se, means_from(H), queue), ag, gate, queue);
  return true;
}

bool add_feed_forward(at::Tensor& x, const Modulation& m, const Dense& up, const Dense& down,
                      const at::Tensor& gate, const Fp8& fp8) {
  constexpr const char* op = "add_feed_forward";
  const OnDevice device(x);
  if (!has_gemms(op, x, {up.weight, down.weight}, has_norm(x, m), fp8)) return false;
  check_hidden(op, x, fp8);
  Queue queue{device.stream()};
  const Dtype dtype = gemm_dtype(up.weight, fp8);
  const Matrix first = matrix(up, dtype), second = matrix(down, dtype);
  const Rows normal = modulated_norm(op, x, m, up.weight, dtype, queue);
  const Rows between = hidden(op, normal, first, up.weight, fp8, queue);
  add_gated(op, x, between, second, gate, queue);
  return true;
}

// The output of a network has few columns, perhaps no multiple of 8, and goes to fp32: its product may be
// cuBLAS's, and is rounded as others are.
bool modulated_linear(const at::Tensor& x, const Modulation& m, const Dense& dense, at::Tensor& y,
                      const Fp8& fp8) {
  constexpr const char* op = "modulated_linear";
  const OnDevice device(x);
  const bool gemm = has_gemms(op, x, {dense.weight}, has_norm(x, m), fp8);
  if (!half_precision(dense.weight) || !has_norm(x, m)) return false;
  const Dtype dtype = gemm_dtype(dense.weight, fp8);
  Queue queue{device.stream()};
  const Rows normal = modulated_norm(op, x, m, dense.weight, dtype, queue);
  if (!gemm) {
    y.copy_(at::linear(normal.values, dense.weight, dense.bias));
    return true;
  }
  const bool direct = has_stream(y) && y.scalar_type() == dense.weight.scalar_type();
  at::Tensor out = direct ? y : at::empty(y.sizes(), dense.weight.options());
  store(op, normal, matrix(dense, dtype), kernels::Activation::none, out, nullptr, queue);
  if (!direct) y.copy_(out);
  return true;
}

bool add_linear(at::Tensor& x, const at::Tensor& y, const Dense& dense, const at::Tensor& gate,
                const Fp8& fp8) {
  constexpr const char* op = "add_linear";
  const OnDevice device(x);
  if (!has_gemms(op, x, {dense.weight}, has_stream(x), fp8)) return false;
  const Dtype dtype = gemm_dtype(dense.weight, fp8);
  const at::Tensor values = y.to(dense.weight.scalar_type()).contiguous();
  if (!aligned(values)) return false;
  Queue queue{device.stream()};
  const Rows rows = dtype == Dtype::e4m3 ? quantized(op, values, queue.stream) : Rows{values, {}};
  add_gated(op, x, rows, matrix(dense, dtype), gate, queue);
  return true;
}

namespace {

// Which tokens a causal layer's see. A window as long as the sequence hides nothing.
Visibility visibility(const Problem& p, std::int64_t n) {
  Visibility seen;
  const std::int64_t run = std::min(p.block, n);
  seen.visible = p.visible, seen.causal = p.block > 0, seen.runs.run_tokens = run;
  if (run > 0 && p.window < runs_of(n, run)) seen.window = p.window;
  return seen;
}
// Whether there are kernels for the sums of many rows, and weights for them.
bool has_context(const at::Tensor& xc, const at::Tensor& weight, std::int64_t order) {
  return has_sums(xc.size(0), order, weight.size(0) / order) &&
         has_gemm(xc, weight, detail::kernel_dtype(weight));
}
// Whether means() has a kernel for it: of many rows short runs would be a sum for every few.
bool has_means(const at::Tensor& xc, const at::Tensor& weight, std::int64_t order, const Visibility& seen) {
  if (few_sums(xc, weight, order) && seen.window == 0) return true;
  return (!seen.causal || seen.runs.run_tokens >= std::min(kLeastBlock, xc.size(1))) &&
         has_context(xc, weight, order);
}
bool has_select(const at::Tensor& xq, const LayerWeights& w) {
  const Dtype dtype = detail::kernel_dtype(xq);
  return has_rows(xq, w.se_weight, dtype) && has_rows(xq, w.ag_weight, dtype);
}
// Whether causal() has kernels.
bool has_scan(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w, std::int64_t order) {
  return has_context(xc, w.ho_weight, order) && has_gemm(xq, w.se_weight, detail::kernel_dtype(xq)) &&
         has_rows(xq, w.ag_weight, detail::kernel_dtype(xq));
}
// Whether mixed() has a kernel.
bool has_mix(const at::Tensor& x, const LayerWeights& w, std::int64_t order, std::int64_t block) {
  kernels::Gemm p;
  p.sizes = {x.size(0), x.size(1), w.ho_weight.size(1), w.ho_weight.size(0)};
  p.dtype = detail::kernel_dtype(x), p.a = p.w = w.ho_weight.const_data_ptr();
  return has_scan(x, x, w, order) && kernels::scan_mix_supported(p, static_cast<int>(order), block);
}
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.const_data_ptr() == b.const_data_ptr() && a.strides() == b.strides() &&
                          a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type());
}
Rows plain(const at::Tensor& x) {
  Rows r;
  r.values = x.contiguous();
  if (!aligned(r.values)) r.values = r.values.clone();
  return r;
}
at::Tensor aggregated(const char* op, const Rows& mixed, const LayerWeights& w, Queue& queue) {
  const at::Tensor& values = mixed.values;
  at::Tensor out = at::empty({values.size(0), values.size(1), w.ag_weight.size(0)}, values.options());
  const Matrix ag = matrix({w.ag_weight, w.ag_bias}, dtype_of(values));
  store(op, mixed, ag, kernels::Activation::none, out, nullptr, queue);
  return out;
}
at::Tensor select(const char* op, const Rows& queries, const Means& H, const LayerWeights& w, Queue& queue) {
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype_of(queries.values));
  return aggregated(op, gated(op, queries, se, H, queue), w, queue);
}

// Each row sees those before it, to the end of its own short block: their running sums are kept in 16 bits,
// tile by tile.
at::Tensor causal(const char* op, const Rows& xq, const Rows& xc, const LayerWeights& w, std::int64_t order,
                  std::int64_t block, const Running& state, Queue& queue) {
  queue.settled = false;
  const Dtype dtype = dtype_of(xq.values);
  const Matrix ho = matrix({w.ho_weight, w.ho_bias}, dtype, order);
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype);
  const kernels::Gemm context = gemm_of(xc, ho), queries = gemm_of(xq, se);
  const kernels::GemmSizes& sizes = context.sizes;
  const at::Tensor prefix = at::empty({sizes.rows(), sizes.outputs}, xc.values.options());
  const at::Tensor totals = floats({kernels::scan_slots(sizes), sizes.outputs}, xc.values);
  const kernels::ScanEpilogue scan{static_cast<int>(order), prefix.mutable_data_ptr(),
                                   totals.mutable_data_ptr<float>()};
  check_launch(op, kernels::scan(context, scan, queue.stream));
  kernels::CarryParams carry;
  carry.sizes = sizes, carry.totals = scan.totals, carry.sum = floats_of(state.sum);
  if (state.total.defined()) carry.total = state.total.mutable_data_ptr<float>();
  check_launch(op, kernels::scan_carry(carry, queue.stream));
  Rows mixed;
  mixed.values = at::empty({sizes.batch, sizes.tokens, sizes.outputs}, xq.values.options());
  kernels::ScanGateEpilogue gate;
  gate.block = block, gate.prefix = scan.prefix, gate.carry = scan.totals;
  if (state.count.defined()) gate.count = state.count.const_data_ptr<std::int64_t>();
  gate.out = mixed.values.mutable_data_ptr();
  check_launch(op, kernels::scan_gate(queries, gate, queue.stream));
  return aggregated(op, mixed, w, queue);
}

// The same in one kernel and nothing rounded on the way, where the queries are the context.
at::Tensor mixed(const char* op, const Rows& x, const LayerWeights& w, std::int64_t order, std::int64_t block,
                 const Running& state, Queue& queue) {
  queue.settled = false;
  const Dtype dtype = dtype_of(x.values);
  const std::int64_t prepared = order == 2 ? 0 : order;
  const Matrix ho = matrix({w.ho_weight, w.ho_bias}, dtype, prepared);
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype, prepared);
  kernels::Gemm context = gemm_of(x, ho);
  const kernels::GemmSizes& sizes = context.sizes;
  at::Tensor padded;  // the kernel takes rows by 32
  if (const std::int64_t rows = kernels::scan_mix_rows(sizes); rows != sizes.rows()) {
    padded = at::empty({rows, sizes.inputs}, x.values.options());
    padded.narrow(0, 0, sizes.rows()).copy_(x.values.view({sizes.rows(), sizes.inputs}));
    context.a = padded.const_data_ptr();
  }
  const at::Tensor work = at::empty({kernels::scan_mix_work(sizes)}, x.values.options().dtype(at::kByte));
  Rows r;
  r.values = at::empty({sizes.batch, sizes.tokens, sizes.outputs}, x.values.options());
  kernels::ScanMix mix;
  mix.order = static_cast<int>(order), mix.block = block;
  mix.se = se.weight.values.const_data_ptr(), mix.se_bias = floats_of(se.bias.values);
  mix.sum = floats_of(state.sum);
  if (state.count.defined()) mix.count = state.count.const_data_ptr<std::int64_t>();
  if (state.total.defined()) mix.total = state.total.mutable_data_ptr<float>();
  mix.work = work.mutable_data_ptr(), mix.out = r.values.mutable_data_ptr();
  check_launch(op, kernels::scan_mix(context, mix, queue.stream));
  return aggregated(op, r, w, queue);
}

// Of many rows and several blocks that are shorter than a tile, or cross its edges, a running sum of each row
// is less work than a sum of each block; nothing where it is not.
std::optional<at::Tensor> running_layer(const char* op, const at::Tensor& xq, const at::Tensor& xc,
                                        const LayerWeights& w, std::int64_t order, const Visibility& seen,
                                        Queue& queue) {
  constexpr std::int64_t tile = 128;
  const std::int64_t block = seen.runs.run_tokens;
  const bool one = block >= xc.size(1) && block > 1;
  if (!seen.causal || seen.window > 0 || seen.visible.defined() || one) return {};
  if (few_sums(xc, w.ho_weight, order)) return {};
  if (block <= tile && same(xq, xc) && has_mix(xq, w, order, block))
    return mixed(op, plain(xq), w, order, block, {}, queue);
  if (block >= tile || !has_scan(xq, xc, w, order)) return {};
  const Rows queries = plain(xq);
  return causal(op, queries, same(xq, xc) ? queries : plain(xc), w, order, block, {}, queue);
}

}  // namespace

std::optional<at::Tensor> inference_layer(const Problem& p, const at::Tensor& xq, const at::Tensor& xc,
                                          const LayerWeights& w) {
  constexpr const char* op = "mixer_layer";
  if (p.packed || p.full || !half_precision(xq)) return {};
  const OnDevice device(xq);
  const Visibility seen = visibility(p, xc.size(1));
  Queue queue{device.stream()};
  if (!has_select(xq, w)) return {};
  if (auto out = running_layer(op, xq, xc, w, p.order, seen, queue)) return out;
  if (!has_means(xc, w.ho_weight, p.order, seen)) return {};
  const Rows queries = plain(xq), context = xq.is_same(xc) ? queries : plain(xc);
  const Means H =
      means(op, context, {w.ho_weight, w.ho_bias}, detail::kernel_dtype(xq), p.order, seen, queue);
  return select(op, queries, H, w, queue);
}

std::optional<at::Tensor> inference_summary(const Problem& p, const at::Tensor& xc,
                                            const at::Tensor& ho_weight, const at::Tensor& ho_bias) {
  constexpr const char* op = "mixer_summary";
  if (!half_precision(xc)) return {};
  const OnDevice device(xc);
  Visibility seen;
  seen.visible = p.visible, seen.sums = true;
  if (!has_means(xc, ho_weight, p.order, seen)) return {};
  Queue queue{device.stream()};
  return sums_of(op, plain(xc), {ho_weight, ho_bias}, detail::kernel_dtype(xc), p.order, p.visible, queue);
}

std::optional<at::Tensor> inference_select(const at::Tensor& xq, const at::Tensor& H, const LayerWeights& w) {
  if (!half_precision(xq) || H.scalar_type() != at::kFloat) return {};
  const OnDevice device(xq);
  if (!has_select(xq, w)) return {};
  Queue queue{device.stream()};
  return select("mixer_select", plain(xq), means_from(H), w, queue);
}

std::optional<std::tuple<at::Tensor, at::Tensor>> inference_scan(const Problem& p, const at::Tensor& x,
                                                                 const LayerWeights& w, const at::Tensor& sum,
                                                                 const at::Tensor& count) {
  constexpr const char* op = "mixer_scan";
  if (!half_precision(x) || sum.scalar_type() != at::kFloat) return {};
  const OnDevice device(x);
  const bool fews = few_sums(x, w.ho_weight, p.order) && has_select(x, w);
  if (!fews && !has_scan(x, x, w, p.order)) return {};
  Queue queue{device.stream()};
  const Rows rows = plain(x);
  const Running state{sum.contiguous(), count.to(x.device()).contiguous(), floats(sum.sizes(), sum)};
  if (!fews) {
    const auto run = has_mix(x, w, p.order, 1) ? mixed(op, rows, w, p.order, 1, state, queue)
                                               : causal(op, rows, rows, w, p.order, 1, state, queue);
    return std::tuple{run, state.total};
  }
  const auto context = rows_of(rows, matrix({w.ho_weight, w.ho_bias}, detail::kernel_dtype(x)), false);
  Visibility seen;
  seen.causal = true, seen.runs.run_tokens = 1;
  const Means H = few_means(op, *context, p.order, seen, state, x, queue);
  return std::tuple{select(op, rows, H, w, queue), state.total};
}

std::string fp8_refusal(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  int major = 0, minor = 0;
  for (const auto& [value, attribute] : {std::pair{&major, cudaDevAttrComputeCapabilityMajor},
                                         std::pair{&minor, cudaDevAttrComputeCapabilityMinor}})
    check_launch("fp8", cudaDeviceGetAttribute(value, attribute, guard.current_device().index()));
  if (kernels::gemm_device()) return {};
  return pom::detail::concat("fp8 needs a GPU of compute capability 9.0, this one has ", major, ".", minor);
}

}  // namespace pom::ops::cuda
