// Rows are tokens of the whole batch. A half is a pass over the stream and two or three products, each with
// what follows it in its own kernel; between them only what the next product reads.
#include "pom/ops/inference_cuda.h"

#include <ATen/ATen.h>

#include "pom/kernels/product.h"
#include "pom/kernels/stream.h"
#include "pom/ops/cuda_launch.h"
#include "pom/ops/relaid.h"

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
bool has_product(const at::Tensor& x, const at::Tensor& weight, Dtype dtype) {
  kernels::Product p;
  p.sizes = {x.size(0), x.size(1), weight.size(1), weight.size(0)};
  p.dtype = dtype, p.a = p.w = weight.const_data_ptr();
  if (dtype == Dtype::e4m3) p.a_scale = p.w_scale = static_cast<const float*>(p.w);  // will be there
  return weight.is_contiguous() && p.sizes.rows() > 0 && p.sizes.outputs % 8 == 0 &&
         kernels::product_supported(p);
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

Dtype products_dtype(const at::Tensor& weight, const Fp8& fp8) {
  return fp8.stage == Fp8::Stage::on ? Dtype::e4m3 : detail::kernel_dtype(weight);
}

// Kernels for every weight, in the dtype of their products; also in fp8 where that is going to be asked for.
// Nobody who asks for fp8 gets something else.
bool has_products(const char* op, const at::Tensor& x, std::initializer_list<at::Tensor> weights, bool others,
                  const Fp8& fp8) {
  bool all = others;
  for (const at::Tensor& weight : weights)
    all = all && half_precision(weight) && has_product(x, weight, detail::kernel_dtype(weight)) &&
          (!fp8.asked() || (weight.scalar_type() == at::kBFloat16 && has_product(x, weight, Dtype::e4m3)));
  check(all || !fp8.asked(), op,
        ": fp8: expected a GPU of compute capability 9.0, bf16 weights of widths divisible by 16, and an ",
        "order of 1, 2, 3, 4, 6 or 8");
  return all;
}

// ---- the pieces ----

// What a product reads: (B, N, K), in e4m3 with a scale of each row (B N).
struct Rows {
  at::Tensor values, scale;
};

// A weight beside its bias, as the kernels read them.
struct Matrix {
  Relaid weight, bias;
};
Matrix matrix(const Dense& dense, Dtype dtype, std::int64_t order = 0) {
  RelaidWeights& relaid = RelaidWeights::current();
  return {relaid.get(dense.weight, {dtype == Dtype::e4m3 ? Form::e4m3 : Form::rows, order}),
          relaid.get(dense.bias, {Form::bias, order})};
}

const float* floats_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

kernels::Product product_of(const Rows& a, const Matrix& w) {
  kernels::Product p;
  p.sizes = {a.values.size(0), a.values.size(1), a.values.size(2), w.weight.values.size(0)};
  p.dtype = dtype_of(a.values);
  p.a = a.values.const_data_ptr(), p.w = w.weight.values.const_data_ptr();
  p.bias = floats_of(w.bias.values);
  p.a_scale = floats_of(a.scale), p.w_scale = floats_of(w.weight.scale);
  return p;
}

// The modulated layer norm of the stream, as the next product wants it.
Rows modulated_norm(const char* op, const at::Tensor& x, const Modulation& m, const at::Tensor& weight,
                    Dtype dtype, cudaStream_t stream) {
  const bool e4m3 = dtype == Dtype::e4m3;
  Rows r{at::empty(x.sizes(), x.options().dtype(e4m3 ? at::kFloat8_e4m3fn : weight.scalar_type())), {}};
  if (e4m3) r.scale = floats({x.size(0) * x.size(1)}, x);
  kernels::StreamNormParams p;
  p.batch = x.size(0), p.tokens = x.size(1), p.width = x.size(2);
  p.x = x.data_ptr<float>(), p.eps = static_cast<float>(m.eps);
  p.scale = floats_of(m.scale), p.shift = floats_of(m.shift), p.stride = m.scale.stride(0);
  p.out_dtype = dtype, p.out = r.values.mutable_data_ptr();
  if (e4m3) p.row_scale = r.scale.mutable_data_ptr<float>();
  check_launch(op, kernels::stream_norm(p, stream));
  return r;
}

Rows quantized(const char* op, const at::Tensor& x, cudaStream_t stream) {
  Rows r{at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn)), floats({x.size(0) * x.size(1)}, x)};
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
};

struct Visibility {
  kernels::Runs runs;
  bool causal = false;
  std::int64_t window = 0;
  at::Tensor visible;  // (B, n) bytes or undefined
};

Means means(const char* op, const Rows& context, const Matrix& ho, std::int64_t order, const Visibility& seen,
            cudaStream_t stream) {
  const kernels::Product p = product_of(context, ho);
  const std::int64_t n = p.sizes.tokens, run = seen.runs.run_tokens;
  const at::Tensor partial =
      floats({kernels::sums_slots(p.sizes, seen.runs), p.sizes.outputs}, context.values);
  kernels::SumsTail tail;
  tail.order = static_cast<int>(order), tail.runs = seen.runs;
  tail.partial = partial.mutable_data_ptr<float>();
  if (seen.visible.defined()) tail.visible = seen.visible.const_data_ptr<std::uint8_t>();
  check_launch(op, kernels::product_sums(p, tail, stream));

  const std::int64_t runs = run == 0 ? 1 : (n + run - 1) / run;
  Means m{seen.runs, floats({p.sizes.batch * runs, p.sizes.outputs}, context.values), {}};
  if (p.dtype == Dtype::e4m3) m.largest = floats({p.sizes.batch}, context.values);
  const at::Tensor counts =
      seen.visible.defined() ? seen.visible.sum(1, /*keepdim=*/false, at::kFloat) : at::Tensor();
  kernels::FoldParams fold;
  fold.sizes = p.sizes, fold.runs = seen.runs, fold.partial = partial.const_data_ptr<float>();
  fold.causal = seen.causal, fold.window = seen.window, fold.counts = floats_of(counts);
  fold.H = m.H.mutable_data_ptr<float>();
  if (m.largest.defined()) fold.largest = m.largest.mutable_data_ptr<float>();
  check_launch(op, kernels::fold_sums(fold, stream));
  return m;
}

// sigmoid(x W_se + b_se) H, for the product that follows: the sigmoid is at most 1, so the scale of H fits.
Rows gated(const char* op, const Rows& queries, const Matrix& se, const Means& m, cudaStream_t stream) {
  const kernels::Product p = product_of(queries, se);
  Rows r{at::empty({p.sizes.batch, p.sizes.tokens, p.sizes.outputs}, queries.values.options()), {}};
  kernels::GateTail tail;
  tail.runs = m.runs, tail.H = m.H.const_data_ptr<float>();
  tail.out_dtype = p.dtype, tail.out = r.values.mutable_data_ptr(), tail.out_scale = floats_of(m.largest);
  check_launch(op, kernels::product_gate(p, tail, stream));
  if (m.largest.defined()) r.scale = m.largest.unsqueeze(1).expand({-1, p.sizes.tokens}).contiguous();
  return r;
}

// Rows (B, d) that can be read two values at a time.
at::Tensor in_pairs(const at::Tensor& rows) {
  const bool fits =
      reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % 8 == 0 && rows.stride(0) % 2 == 0;
  return fits ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

void add_gated(const char* op, at::Tensor& x, const Rows& y, const Matrix& w, const at::Tensor& gates,
               cudaStream_t stream) {
  const at::Tensor gate = in_pairs(gates);
  kernels::ResidualTail tail;
  tail.x = x.mutable_data_ptr(), tail.gate = floats_of(gate), tail.gate_stride = gate.stride(0);
  check_launch(op, kernels::product_residual(product_of(y, w), tail, stream));
}

void store(const char* op, const Rows& a, const Matrix& w, kernels::Activation activation, at::Tensor& out,
           const float* out_scale, cudaStream_t stream) {
  kernels::StoreTail tail;
  tail.activation = activation, tail.out_dtype = dtype_of(out);
  tail.out = out.mutable_data_ptr(), tail.out_scale = out_scale;
  check_launch(op, kernels::product_store(product_of(a, w), tail, stream));
}

// gelu(a W + b). Where fp8 is measuring, the scale that these values would need is noted.
Rows hidden(const char* op, const Rows& a, const Matrix& up, const at::Tensor& weight, const Fp8& fp8,
            cudaStream_t stream) {
  const bool e4m3 = dtype_of(a.values) == Dtype::e4m3;
  const std::int64_t batch = a.values.size(0), tokens = a.values.size(1);
  const at::ScalarType type = e4m3 ? at::kFloat8_e4m3fn : weight.scalar_type();
  Rows r{at::empty({batch, tokens, weight.size(0)}, weight.options().dtype(type)), {}};
  if (e4m3) r.scale = fp8.hidden;
  store(op, a, up, kernels::Activation::gelu, r.values, floats_of(r.scale), stream);
  if (fp8.stage != Fp8::Stage::measuring) return r;
  kernels::LargestParams p;
  p.count = r.values.numel(), p.dtype = dtype_of(r.values), p.x = r.values.const_data_ptr();
  p.largest = fp8.hidden.mutable_data_ptr<float>();
  check_launch(op, kernels::largest_value(p, stream));
  return r;
}

void check_hidden(const char* op, const at::Tensor& x, const Fp8& fp8) {
  if (!fp8.asked()) return;
  const std::int64_t rows = x.size(0) * x.size(1);
  check(fp8.hidden.defined() && fp8.hidden.dim() == 1 && fp8.hidden.is_contiguous() &&
            fp8.hidden.size(0) >= rows && fp8.hidden.scalar_type() == at::kFloat &&
            fp8.hidden.device() == x.device(),
        op, ": fp8: expected a scale for each of ", rows, " rows on ", x.device());
}

}  // namespace

bool mixer_half(at::Tensor& x, const Modulation& m, const LayerWeights& w, std::int64_t order,
                const at::Tensor& gate, const Fp8& fp8) {
  constexpr const char* op = "mixer_half";
  const Problem problem = check_stream_layer(x, w, order);
  const OnDevice device(x);
  const bool others = has_norm(x, m) && has_sums(x.size(0), order, problem.D);
  if (!has_products(op, x, {w.ho_weight, w.se_weight, w.ag_weight}, others, fp8)) return false;
  const cudaStream_t stream = device.stream();
  const Dtype dtype = products_dtype(w.ho_weight, fp8);
  const Rows normal = modulated_norm(op, x, m, w.ho_weight, dtype, stream);
  const Means H = means(op, normal, matrix({w.ho_weight, w.ho_bias}, dtype, order), order, {}, stream);
  const Rows mixed = gated(op, normal, matrix({w.se_weight, w.se_bias}, dtype), H, stream);
  add_gated(op, x, mixed, matrix({w.ag_weight, w.ag_bias}, dtype), gate, stream);
  return true;
}

bool feed_forward_half(at::Tensor& x, const Modulation& m, const Dense& up, const Dense& down,
                       const at::Tensor& gate, const Fp8& fp8) {
  constexpr const char* op = "feed_forward_half";
  const OnDevice device(x);
  if (!has_products(op, x, {up.weight, down.weight}, has_norm(x, m), fp8)) return false;
  check_hidden(op, x, fp8);
  const cudaStream_t stream = device.stream();
  const Dtype dtype = products_dtype(up.weight, fp8);
  const Rows normal = modulated_norm(op, x, m, up.weight, dtype, stream);
  const Rows between = hidden(op, normal, matrix(up, dtype), up.weight, fp8, stream);
  add_gated(op, x, between, matrix(down, dtype), gate, stream);
  return true;
}

// The output of a network has few columns, perhaps no multiple of 8, and goes to fp32: its product may be
// cuBLAS's, and is rounded as others are.
bool modulated_linear(const at::Tensor& x, const Modulation& m, const Dense& dense, at::Tensor& y,
                      const Fp8& fp8) {
  constexpr const char* op = "modulated_linear";
  const OnDevice device(x);
  const bool product = has_products(op, x, {dense.weight}, has_norm(x, m), fp8);
  if (!half_precision(dense.weight) || !has_norm(x, m)) return false;
  const Dtype dtype = products_dtype(dense.weight, fp8);
  const Rows normal = modulated_norm(op, x, m, dense.weight, dtype, device.stream());
  if (!product) {
    y.copy_(at::linear(normal.values, dense.weight, dense.bias));
    return true;
  }
  const bool direct = has_stream(y) && y.scalar_type() == dense.weight.scalar_type();
  at::Tensor out = direct ? y : at::empty(y.sizes(), dense.weight.options());
  store(op, normal, matrix(dense, dtype), kernels::Activation::none, out, nullptr, device.stream());
  if (!direct) y.copy_(out);
  return true;
}

bool linear_half(at::Tensor& x, const at::Tensor& y, const Dense& dense, const at::Tensor& gate,
                 const Fp8& fp8) {
  constexpr const char* op = "linear_half";
  const OnDevice device(x);
  if (!has_products(op, x, {dense.weight}, has_stream(x), fp8)) return false;
  const Dtype dtype = products_dtype(dense.weight, fp8);
  const at::Tensor values = y.to(dense.weight.scalar_type()).contiguous();
  if (!aligned(values)) return false;
  const Rows rows = dtype == Dtype::e4m3 ? quantized(op, values, device.stream()) : Rows{values, {}};
  add_gated(op, x, rows, matrix(dense, dtype), gate, device.stream());
  return true;
}

std::optional<at::Tensor> inference_layer(const Problem& p, const at::Tensor& xq, const at::Tensor& xc,
                                          const LayerWeights& w) {
  constexpr const char* op = "mixer_layer";
  const bool mask = !p.full && (p.block == 0 || p.block >= kLeastBlock);
  if (p.packed || !mask || !half_precision(xq) || !has_sums(xc.size(0), p.order, p.D)) return {};
  if (!aligned(xq) || !aligned(xc)) return {};
  const OnDevice device(xq);
  const Dtype dtype = detail::kernel_dtype(xq);
  if (!has_product(xc, w.ho_weight, dtype) || !has_product(xq, w.se_weight, dtype) ||
      !has_product(xq, w.ag_weight, dtype))
    return {};
  const cudaStream_t stream = device.stream();
  Visibility seen;
  const std::int64_t n = xc.size(1), run = std::min(p.block, n);
  seen.visible = p.visible, seen.causal = p.block > 0, seen.runs.run_tokens = run;
  if (run > 0 && p.window < (n + run - 1) / run) seen.window = p.window;  // a longer one hides nothing
  const Matrix ho = matrix({w.ho_weight, w.ho_bias}, dtype, p.order);
  const Means H = means(op, {xc.contiguous(), {}}, ho, p.order, seen, stream);
  const Rows mixed = gated(op, {xq.contiguous(), {}}, matrix({w.se_weight, w.se_bias}, dtype), H, stream);
  at::Tensor out = at::empty(xq.sizes(), xq.options());
  store(op, mixed, matrix({w.ag_weight, w.ag_bias}, dtype), kernels::Activation::none, out, nullptr, stream);
  return out;
}

std::string fp8_refusal(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  int major = 0, minor = 0;
  for (const auto& [value, attribute] : {std::pair{&major, cudaDevAttrComputeCapabilityMajor},
                                         std::pair{&minor, cudaDevAttrComputeCapabilityMinor}})
    check_launch("fp8", cudaDeviceGetAttribute(value, attribute, guard.current_device().index()));
  if (major * 10 + minor < 89)
    return pom::detail::concat("fp8 needs a GPU of compute capability 8.9 or more, this one has ", major, ".",
                               minor);
  if (!kernels::product_device())
    return pom::detail::concat("libpom has fp8 kernels for compute capability 9.0 only, this GPU has ", major,
                               ".", minor);
  return {};
}

}  // namespace pom::ops::cuda
