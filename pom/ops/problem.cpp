#include "pom/ops/problem.h"

#include <sstream>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::ops {
namespace {

std::string list_text(at::IntArrayRef list) {
  std::ostringstream text;
  text << "(";
  for (std::size_t i = 0; i < list.size(); ++i) text << (i ? ", " : "") << list[i];
  text << ")";
  return text.str();
}

bool supported(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

void check_like(const char* op, const char* name, const at::Tensor& t, const char* other,
                const at::Tensor& like) {
  check(t.scalar_type() == like.scalar_type(), op, ": ", name, ": expected dtype ", like.scalar_type(),
        " like ", other, ", got ", t.scalar_type());
  check(t.device() == like.device(), op, ": ", name, ": expected device ", like.device().str(), " like ",
        other, ", got ", t.device().str());
}

void check_order(const char* op, std::int64_t order, std::int64_t kD, const char* what) {
  check(order >= 1, op, ": order: expected at least 1, got ", order);
  check(kD % order == 0 && kD > 0, op, ": order: expected a divisor of the ", kD, " features of ", what,
        ", got ", order);
}

void check_weight(const char* op, const char* name, const at::Tensor& weight, std::int64_t rows,
                  std::int64_t columns, const at::Tensor& like) {
  check(weight.dim() == 2 && weight.size(0) == rows && weight.size(1) == columns, op, ": ", name,
        ": expected shape ", list_text({rows, columns}), ", got ", shape_text(weight));
  check_like(op, name, weight, "the tokens", like);
}

void check_bias(const char* op, const char* name, const at::Tensor& bias, std::int64_t size,
                const at::Tensor& like) {
  if (!bias.defined()) return;
  check(bias.dim() == 1 && bias.size(0) == size, op, ": ", name, ": expected shape ", list_text({size}),
        ", got ", shape_text(bias));
  check_like(op, name, bias, "the tokens", like);
}

void check_sums(const char* op, const char* name, const at::Tensor& sums, std::int64_t batch, std::int64_t kD,
                const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  check(sums.dim() == 2 && sums.size(0) == batch && sums.size(1) == kD, op, ": ", name, ": expected shape ",
        list_text({batch, kD}), ", got ", shape_text(sums));
  check(sums.scalar_type() == type, op, ": ", name, ": expected dtype ", type, " with tokens of ",
        x.scalar_type(), ", got ", sums.scalar_type());
  check(sums.device() == x.device(), op, ": ", name, ": expected device ", x.device().str(), ", got ",
        sums.device().str());
}

std::vector<std::int64_t> check_offsets(const char* op, const char* name, const at::Tensor& cu,
                                        std::int64_t total) {
  check(cu.defined(), op, ": ", name, ": expected cumulative lengths for packed sequences, got none");
  check(cu.dim() == 1 && (cu.scalar_type() == at::kInt || cu.scalar_type() == at::kLong), op, ": ", name,
        ": expected a 1-D int32 or int64 tensor, got shape ", shape_text(cu), " of ", cu.scalar_type());
  check(cu.numel() >= 1, op, ": ", name, ": expected at least one offset, got an empty tensor");
  const at::Tensor host = cu.to(at::kCPU, at::kLong).contiguous();
  const std::int64_t* p = host.const_data_ptr<std::int64_t>();
  check(p[0] == 0, op, ": ", name, ": expected the first offset 0, got ", p[0]);
  for (std::int64_t i = 1; i < host.numel(); ++i)
    check(p[i] >= p[i - 1], op, ": ", name, ": expected offsets that never decrease, got ", p[i], " after ",
          p[i - 1]);
  check(p[host.numel() - 1] == total, op, ": ", name, ": expected the last offset ", total,
        " (the number of packed tokens), got ", p[host.numel() - 1]);
  return {p, p + host.numel()};
}

std::vector<std::int64_t> lengths(const std::vector<std::int64_t>& offsets) {
  std::vector<std::int64_t> result;
  for (std::size_t i = 1; i < offsets.size(); ++i) result.push_back(offsets[i] - offsets[i - 1]);
  return result;
}

// Sequences, from the token tensors of queries and context.
void check_sequences(const char* op, Problem& p, const char* q_name, const at::Tensor& q, const char* k_name,
                     const at::Tensor& k, const Packing& packing) {
  p.packed = packing.cu_q.defined() || packing.cu_k.defined();
  check_tokens(op, q_name, q, p.packed ? 2 : 3);
  check_tokens(op, k_name, k, p.packed ? 2 : 3);
  check_like(op, k_name, k, q_name, q);
  check(q.size(-1) == k.size(-1), op, ": ", k_name, ": expected ", q.size(-1), " channels like ", q_name,
        ", got ", k.size(-1), " in shape ", shape_text(k));
  if (p.packed) {
    p.query_start = check_offsets(op, "cu_q", packing.cu_q, q.size(0));
    p.key_start = check_offsets(op, "cu_k", packing.cu_k, k.size(0));
    check(p.query_start.size() == p.key_start.size(), op, ": cu_k: expected ", p.query_start.size(),
          " offsets like cu_q, got ", p.key_start.size());
    p.queries = lengths(p.query_start);
    p.keys = lengths(p.key_start);
    for (std::size_t s = 0; s < p.queries.size(); ++s)
      check(p.keys[s] > 0 || p.queries[s] == 0, op, ": ", k_name,
            ": expected at least one context token in sequence ", s, ", got none for its ", p.queries[s],
            " queries");
    return;
  }
  check(q.size(0) == k.size(0), op, ": ", k_name, ": expected a batch of ", q.size(0), " like ", q_name,
        ", got ", k.size(0), " in shape ", shape_text(k));
  check(k.size(1) > 0, op, ": ", k_name, ": expected at least one context token, got shape ", shape_text(k));
  p.queries.assign(static_cast<std::size_t>(q.size(0)), q.size(1));
  p.keys.assign(static_cast<std::size_t>(q.size(0)), k.size(1));
}

void check_mask(const char* op, Problem& p, const at::Tensor& q, const at::Tensor& k, const Mask& mask) {
  constexpr std::int64_t kLongest = std::int64_t{1} << 40;  // far beyond any sequence, far from overflow
  check(mask.block >= 0 && mask.block <= kLongest, op,
        ": block: expected a number of tokens from 1 to 2^40 (0 for no causal mask), got ", mask.block);
  check(mask.window >= 0, op, ": window: expected a number of blocks of at least 1 (0 for no window), got ",
        mask.window);
  check(mask.window == 0 || mask.block > 0, op, ": window: expected only with a causal mask, got window ",
        mask.window, " with block 0");
  p.block = mask.block;
  p.window = mask.window;
  if (mask.block > 0) {
    check(!mask.visible.defined(), op, ": mask: expected either a causal mask or a tensor, got both");
    for (std::size_t s = 0; s < p.queries.size(); ++s)
      check(p.queries[s] == p.keys[s], op,
            ": mask: expected as many queries as context tokens under a causal mask, got ", p.queries[s],
            " queries and ", p.keys[s], " context tokens",
            p.packed ? " in sequence " + std::to_string(s) : std::string());
  }
  if (!mask.visible.defined()) return;
  check(!p.packed, op, ": mask: expected none or a causal mask with packed sequences, got a tensor of shape ",
        shape_text(mask.visible));
  check(mask.visible.dim() == 2 || mask.visible.dim() == 3, op, ": mask: expected ",
        list_text({k.size(0), k.size(1)}), " or ", list_text({k.size(0), q.size(1), k.size(1)}),
        ", got shape ", shape_text(mask.visible));
  p.full = mask.visible.dim() == 3;
  const std::vector<std::int64_t> wanted = p.full ? std::vector<std::int64_t>{k.size(0), q.size(1), k.size(1)}
                                                  : std::vector<std::int64_t>{k.size(0), k.size(1)};
  check(mask.visible.sizes() == at::IntArrayRef(wanted), op, ": mask: expected shape ", list_text(wanted),
        ", got ", shape_text(mask.visible));
  check(!mask.visible.is_complex(), op, ": mask: expected bool or the numbers 0 and 1, got ",
        mask.visible.scalar_type());
  check(mask.visible.device() == q.device(), op, ": mask: expected device ", q.device().str(), ", got ",
        mask.visible.device().str());
  if (mask.visible.scalar_type() == at::kBool) {  // its bytes are 0 and 1 already
    p.visible = mask.visible.contiguous().view(at::kByte);
    return;
  }
  p.visible = mask.visible.ne(0);
  check(at::equal(p.visible, mask.visible.to(at::kDouble).eq(1)), op,
        ": mask: expected bool or only 0 and 1, got other values in a tensor of ",
        mask.visible.scalar_type());
  p.visible = p.visible.contiguous().view(at::kByte);
}

}  // namespace

std::string shape_text(const at::Tensor& t) {
  return list_text(t.sizes());
}

void check_tokens(const char* op, const char* name, const at::Tensor& x, std::int64_t dims) {
  check(x.dim() == dims, op, ": ", name, ": expected ", dims,
        dims == 3 ? " dimensions (batch, tokens, channels)" : " dimensions (packed tokens, channels)",
        ", got shape ", shape_text(x));
  check(supported(x.scalar_type()), op, ": ", name, ": expected float32, float64, bfloat16 or float16, got ",
        x.scalar_type());
}

void check_context(const char* op, const at::Tensor& queries, const at::Tensor& context, const Mask& mask) {
  check(context.size(1) > 0, op, ": context: expected at least one token, got shape ", shape_text(context));
  check(context.device() == queries.device(), op, ": context: expected device ", queries.device().str(),
        " like x, got ", context.device().str());
  Problem p;
  p.queries.assign(static_cast<std::size_t>(queries.size(0)), queries.size(1));
  p.keys.assign(static_cast<std::size_t>(queries.size(0)), context.size(1));
  check_mask(op, p, queries, context, mask);
}

Problem check_layer(const char* op, const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w,
                    std::int64_t order, const Mask& mask, const Packing& packing) {
  Problem p;
  check_sequences(op, p, "xq", xq, "xc", xc, packing);
  p.d = xq.size(-1);
  check(w.ho_weight.dim() == 2, op, ": ho_weight: expected 2 dimensions (features, channels), got shape ",
        shape_text(w.ho_weight));
  const std::int64_t kD = w.ho_weight.size(0);
  check_order(op, order, kD, "ho_weight");
  p.order = order;
  p.D = kD / order;
  check_weight(op, "ho_weight", w.ho_weight, kD, p.d, xq);
  check_weight(op, "se_weight", w.se_weight, kD, p.d, xq);
  check_weight(op, "ag_weight", w.ag_weight, p.d, kD, xq);
  check_bias(op, "ho_bias", w.ho_bias, kD, xq);
  check_bias(op, "se_bias", w.se_bias, kD, xq);
  check_bias(op, "ag_bias", w.ag_bias, p.d, xq);
  check_mask(op, p, xq, xc, mask);
  return p;
}

Problem check_mixer(const char* op, const at::Tensor& ho, const at::Tensor& se, std::int64_t order,
                    const Mask& mask, const Packing& packing) {
  Problem p;
  check_sequences(op, p, "se", se, "ho", ho, packing);
  check_order(op, order, ho.size(-1), "ho");
  p.order = order;
  p.D = ho.size(-1) / order;
  check_mask(op, p, se, ho, mask);
  return p;
}

namespace {

Problem stream_problem(const char* op, const at::Tensor& x, std::int64_t features, std::int64_t order) {
  check(x.dim() == 3, op, ": x: expected (B, N, d), got ", shape_text(x));
  check(x.size(1) > 0, op, ": x: expected at least one token, got ", shape_text(x));
  Problem p;
  p.queries.assign(static_cast<std::size_t>(x.size(0)), x.size(1));
  p.keys = p.queries;
  p.d = x.size(2), p.order = order, p.D = features / order;
  return p;
}
// Matrices of the queries, beside weights like these.
void check_selecting(const char* op, const Problem& p, const LayerWeights& w, const at::Tensor& like) {
  check_weight(op, "se_weight", w.se_weight, p.kD(), p.d, like);
  check_weight(op, "ag_weight", w.ag_weight, p.d, p.kD(), like);
  check_bias(op, "se_bias", w.se_bias, p.kD(), like);
  check_bias(op, "ag_bias", w.ag_bias, p.d, like);
}

}  // namespace

Problem check_stream_layer(const at::Tensor& x, const LayerWeights& w, std::int64_t order) {
  constexpr const char* op = "add_mixer";
  check_order(op, order, w.ho_weight.size(0), "ho_weight");
  const Problem p = stream_problem(op, x, w.ho_weight.size(0), order);
  check_weight(op, "ho_weight", w.ho_weight, p.kD(), p.d, w.ho_weight);
  check_bias(op, "ho_bias", w.ho_bias, p.kD(), w.ho_weight);
  check_selecting(op, p, w, w.ho_weight);
  return p;
}

Problem check_stream_selection(const at::Tensor& x, const LayerWeights& w) {
  constexpr const char* op = "add_selection";
  const Problem p = stream_problem(op, x, w.se_weight.size(0), 1);
  check_selecting(op, p, w, w.se_weight);
  return p;
}

Problem check_summary(const at::Tensor& xc, const at::Tensor& ho_weight, const at::Tensor& ho_bias,
                      std::int64_t order, const at::Tensor& keys) {
  constexpr const char* op = "mixer_summary";
  Problem p;
  check_sequences(op, p, "xc", xc, "xc", xc, {});
  check(ho_weight.dim() == 2, op, ": ho_weight: expected 2 dimensions (features, channels), got shape ",
        shape_text(ho_weight));
  check_order(op, order, ho_weight.size(0), "ho_weight");
  p.d = xc.size(2), p.order = order, p.D = ho_weight.size(0) / order;
  check_weight(op, "ho_weight", ho_weight, p.kD(), p.d, xc);
  check_bias(op, "ho_bias", ho_bias, p.kD(), xc);
  check(!keys.defined() || keys.dim() == 2, op, ": mask: expected a keys mask ",
        list_text({xc.size(0), xc.size(1)}), ", got shape ",
        keys.defined() ? shape_text(keys) : std::string());
  check_mask(op, p, xc, xc, Mask::keys(keys));
  return p;
}

Problem check_select(const at::Tensor& xq, const at::Tensor& H, const LayerWeights& w) {
  constexpr const char* op = "mixer_select";
  check_tokens(op, "xq", xq, 3);
  check(w.se_weight.dim() == 2 && w.se_weight.size(0) > 0, op,
        ": se_weight: expected 2 dimensions (features, channels), got shape ", shape_text(w.se_weight));
  Problem p;
  p.d = xq.size(2), p.D = w.se_weight.size(0), p.order = 1;
  check_weight(op, "se_weight", w.se_weight, p.D, p.d, xq);
  check_weight(op, "ag_weight", w.ag_weight, p.d, p.D, xq);
  check_bias(op, "se_bias", w.se_bias, p.D, xq);
  check_bias(op, "ag_bias", w.ag_bias, p.d, xq);
  check_sums(op, "H", H, xq.size(0), p.D, xq);
  p.queries.assign(static_cast<std::size_t>(xq.size(0)), xq.size(1));
  p.keys = p.queries;
  return p;
}

Problem check_scan(const at::Tensor& x, const LayerWeights& w, std::int64_t order, const at::Tensor& sum,
                   const at::Tensor& count) {
  constexpr const char* op = "mixer_scan";
  check_tokens(op, "x", x, 3);
  check(x.size(1) > 0, op, ": x: expected at least one token, got shape ", shape_text(x));
  Problem p = check_layer(op, x, x, w, order, Mask::causal(), {});
  check_sums(op, "sum", sum, x.size(0), p.kD(), x);
  check(count.dim() == 1 && count.size(0) == x.size(0) && count.scalar_type() == at::kLong, op,
        ": count: expected an int64 tensor of shape ", list_text({x.size(0)}), ", got ", count.scalar_type(),
        " of shape ", shape_text(count));
  return p;
}

}  // namespace pom::ops
