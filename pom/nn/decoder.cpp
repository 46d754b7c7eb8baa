#include "pom/nn/decoder.h"

#include <array>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/ops/block/stack_step.h"
#include "pom/ops/cuda/graphs.h"
#include "pom/ops/problem.h"

namespace pom::nn {
namespace {

// The matrices of a block with their biases, in the order of a step: context, queries, back, up, down.
std::array<ops::Dense, 5> matrices_of(const PolymorpherImpl& block) {
  const ops::LayerWeights w = block.pom->weights();
  const auto& up = *block.ffw->ptr<torch::nn::LinearImpl>(0);
  const auto& down = *block.ffw->ptr<torch::nn::LinearImpl>(2);
  return {ops::Dense{w.ho_weight, w.ho_bias},
          {w.se_weight, w.se_bias},
          {w.ag_weight, w.ag_bias},
          {up.weight, up.bias},
          {down.weight, down.bias}};
}

// A tensor as it was when something was made of it.
struct Seen {
  const void* place = nullptr;
  std::uint32_t version = 0;
  explicit Seen(const at::Tensor& t)
      : place(t.defined() ? t.const_data_ptr() : nullptr), version(t.defined() ? t._version() : 0) {}
  bool operator==(const Seen&) const = default;
};

void check_blocks(const std::vector<Polymorpher>& blocks) {
  check(!blocks.empty(), "Decoder: blocks: expected at least one, got none");
  for (const Polymorpher& block : blocks)
    check(!block.is_empty(), "Decoder: blocks: expected Polymorpher blocks, got an empty one");
  const auto first = matrices_of(*blocks.front());
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    const auto other = matrices_of(*blocks[i]);
    for (std::size_t m = 0; m < first.size(); ++m) {
      const at::Tensor &a = first[m].weight, &b = other[m].weight;
      check(a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.device() == b.device(),
            "Decoder: blocks: expected blocks of one kind, like the first with ", a.scalar_type(),
            " of shape ", a.sizes(), " on ", a.device(), ", got ", b.scalar_type(), " of shape ", b.sizes(),
            " on ", b.device(), " in block ", i);
    }
    check(blocks[i]->pom->options().order == blocks.front()->pom->options().order,
          "Decoder: blocks: expected one order, ", blocks.front()->pom->options().order, ", got ",
          blocks[i]->pom->options().order, " in block ", i);
    check(blocks[i]->norm1->options.eps() == blocks.front()->norm1->options.eps(),
          "Decoder: blocks: expected norms of one eps");
  }
}

}  // namespace

struct Decoder::Impl {
  Impl(std::vector<Polymorpher> stack, std::int64_t sequences) : blocks(std::move(stack)), batch(sequences) {
    check_blocks(blocks);
    check(batch >= 1, "Decoder: batch: expected at least 1, got ", batch);
    const PoMOptions& o = blocks.front()->pom->options();
    const at::Tensor& like = blocks.front()->pom->ho_proj->weight;
    dim = o.dim, order = o.order, eps = blocks.front()->norm1->options.eps();
    dtype = like.scalar_type(), device = like.device();
    const auto L = std::ssize(blocks);
    const at::TensorOptions stream =
        at::TensorOptions(dtype == at::kDouble ? at::kDouble : at::kFloat).device(device);
    x = at::zeros({batch, dim}, stream);
    sums = at::zeros({L, batch, order * o.order_expand * dim}, stream);
    count = at::zeros({batch}, stream.dtype(at::kLong));
    modulation = at::zeros({L, batch, 2, 3, dim}, stream);
    graphs = ops::cuda::graphs_on(device, ops::cuda::GraphWeights::changing);
  }

  // ---- the blocks ----

  std::vector<Seen> now() const {
    std::vector<Seen> all;
    for (const Polymorpher& block : blocks) {
      for (const ops::Dense& dense : matrices_of(*block))
        all.emplace_back(dense.weight), all.emplace_back(dense.bias);
      for (const torch::nn::LayerNorm& norm : {block->norm1, block->norm2})
        all.emplace_back(norm->weight), all.emplace_back(norm->bias);
    }
    return all;
  }

  // Biases and norms as a step reads them. Where tensors were only written the copies stay where they are,
  // and graphs with them.
  void follow() {
    const std::vector<Seen> today = now();
    if (today == seen) return;
    bool moved = seen.size() != today.size();
    for (std::size_t i = 0; !moved && i < today.size(); ++i) moved = today[i].place != seen[i].place;
    if (moved) {
      if (graphs) graphs->drop();
      stack.clear();
      for (const Polymorpher& block : blocks) stack.push_back(stepped(*block));
    } else {
      for (std::size_t i = 0; i < blocks.size(); ++i) copy_biases(*blocks[i], stack[i]);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) set_norms(*blocks[i], static_cast<std::int64_t>(i));
    seen = today;
  }

  at::Tensor exact(const at::Tensor& bias) const {
    return bias.defined() ? bias.detach().to(x.scalar_type(), false, /*copy=*/true) : bias;
  }
  ops::SteppedBlock stepped(const PolymorpherImpl& block) const {
    auto [ho, se, ag, up, down] = matrices_of(block);
    for (ops::Dense* dense : {&ho, &se, &ag, &up, &down})
      check(dense->weight.is_contiguous(), "Decoder: blocks: expected contiguous weights, got strides ",
            dense->weight.strides());
    return {{ho.weight.detach(), exact(ho.bias), se.weight.detach(), exact(se.bias), ag.weight.detach(),
             exact(ag.bias)},
            {up.weight.detach(), exact(up.bias)},
            {down.weight.detach(), exact(down.bias)}};
  }
  static void copy_biases(const PolymorpherImpl& block, ops::SteppedBlock& into) {
    const auto from = matrices_of(block);
    at::Tensor* const to[] = {&into.mixer.ho_bias, &into.mixer.se_bias, &into.mixer.ag_bias, &into.up.bias,
                              &into.down.bias};
    for (std::size_t i = 0; i < from.size(); ++i)
      if (to[i]->defined()) to[i]->copy_(from[i].bias.detach());
  }
  // A norm's weight and bias are a scale of 1 + s and a shift; the gate is 1.
  void set_norms(const PolymorpherImpl& block, std::int64_t layer) {
    const torch::nn::LayerNorm norms[] = {block.norm1, block.norm2};
    for (std::int64_t half = 0; half < 2; ++half) {
      at::Tensor rows = modulation.select(0, layer).select(1, half);  // (B, 3, d)
      rows.select(1, 0).copy_(norms[half]->weight.detach().to(x.scalar_type()) - 1);
      rows.select(1, 1).copy_(norms[half]->bias.detach());
      rows.select(1, 2).fill_(1);
    }
  }

  // ---- tokens ----

  void check_tokens(const char* name, const at::Tensor& tokens) const {
    check(tokens.is_floating_point() && tokens.device() == device, "Decoder: ", name,
          ": x: expected floating-point numbers on ", device, ", got ", tokens.scalar_type(), " on ",
          tokens.device());
  }
  void run() {
    at::Tensor rows = modulation.flatten(2);
    fused = ops::stack_step(x, stack, rows, sums, count, order, eps);
  }

  std::vector<Polymorpher> blocks;
  std::int64_t batch, dim = 0, order = 0;
  double eps = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  at::Tensor x, sums, count, modulation;  // (B, d), (L, B, kD), (B), (L, B, 2, 3, d)
  std::vector<Seen> seen;                 // what the rest was made of
  std::vector<ops::SteppedBlock> stack;
  std::optional<bool> fused;
  std::unique_ptr<ops::cuda::GraphedEvaluations> graphs;  // on CUDA; goes before the buffers
};

Decoder::Decoder(std::vector<Polymorpher> blocks, std::int64_t batch) {
  const c10::NoGradGuard no_gradients;
  impl_ = std::make_unique<Impl>(std::move(blocks), batch);
}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

at::Tensor Decoder::step(const at::Tensor& x) {
  const c10::NoGradGuard no_gradients;
  Impl& d = *impl_;
  check(x.sizes() == at::IntArrayRef({d.batch, d.dim}) || x.sizes() == at::IntArrayRef({d.batch, 1, d.dim}),
        "Decoder: step: x: expected (", d.batch, ", ", d.dim, ") or (", d.batch, ", 1, ", d.dim, "), got ",
        ops::shape_text(x));
  d.check_tokens("step", x);
  d.follow();
  d.x.copy_(x.detach().reshape({d.batch, d.dim}));
  if (d.graphs)
    d.graphs->run(static_cast<int>(ops::path()), [&] { d.run(); });
  else
    d.run();
  return d.x.to(x.scalar_type(), false, /*copy=*/true).reshape(x.sizes());
}

at::Tensor Decoder::prefill(const at::Tensor& x) {
  const c10::NoGradGuard no_gradients;
  Impl& d = *impl_;
  check(x.dim() == 3 && x.size(0) == d.batch && x.size(2) == d.dim && x.size(1) >= 1,
        "Decoder: prefill: x: expected (", d.batch, ", n, ", d.dim, "), got ", ops::shape_text(x));
  d.check_tokens("prefill", x);
  std::vector<ops::MixerState> after = states();
  at::Tensor y = x.detach().to(d.dtype);
  for (std::size_t i = 0; i < d.blocks.size(); ++i) y = d.blocks[i]->step_causal(y, after[i]);
  load(after);  // only now: nothing has changed where a block fails
  return y.to(x.scalar_type());
}

void Decoder::reset() {
  const c10::NoGradGuard no_gradients;
  impl_->sums.zero_(), impl_->count.zero_();
}

std::vector<ops::MixerState> Decoder::states() const {
  const c10::NoGradGuard no_gradients;
  std::vector<ops::MixerState> all;
  for (std::size_t i = 0; i < impl_->blocks.size(); ++i) {
    all.push_back(impl_->blocks[i]->pom->start(impl_->batch));
    all.back().set(impl_->sums[static_cast<std::int64_t>(i)].clone(), impl_->count.clone());
  }
  return all;
}

void Decoder::load(const std::vector<ops::MixerState>& states) {
  const c10::NoGradGuard no_gradients;
  Impl& d = *impl_;
  check(states.size() == d.blocks.size(), "Decoder: load: states: expected ", d.blocks.size(),
        ", one of each block, got ", states.size());
  const std::int64_t features = d.sums.size(2);
  for (const ops::MixerState& state : states)
    check(state.window() == 0 && state.batch() == d.batch && state.features() == features,
          "Decoder: load: states: expected ", d.batch, " sequences of ", features,
          " features without a window, got ", state.batch(), " of ", state.features(), ", window ",
          state.window());
  const at::Tensor first = states.front().count().to(d.device);
  for (const ops::MixerState& state : states)
    check(at::equal(state.count().to(d.device), first),
          "Decoder: load: states: expected the same number of tokens in every block, got several");
  for (std::size_t i = 0; i < states.size(); ++i) d.sums[static_cast<std::int64_t>(i)].copy_(states[i].sum());
  d.count.copy_(first);
}

void Decoder::refresh() {
  const c10::NoGradGuard no_gradients;
  if (impl_->graphs) impl_->graphs->drop();
  impl_->seen.clear();
}

std::optional<bool> Decoder::fused() const {
  return impl_->fused;
}

}  // namespace pom::nn
