#include "pom/ops/cpu/layer.h"

#include <memory>
#include <optional>

#include <ATen/ATen.h>

#include "pom/ops/cpu/dense_run.h"
#include "pom/ops/cpu/plan.h"
#include "pom/ops/cpu/run.h"

namespace pom::ops::cpu {
namespace {

constexpr double kEps = 1e-7;
constexpr std::int64_t kSlice = 64;  // features one task folds

// Everything a pass needs: the kernels' arguments and what they point to.
class Pass {
 public:
  Pass(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w)
      : problem_(problem),
        kernels_(kernel_table(dtype_of(w.ho_weight.defined() ? w.ho_weight : w.se_weight))),
        like_(xq) {
    a_.d = problem.d, a_.D = problem.D, a_.order = problem.order;
    a_.group = group_size(a_.order, a_.D);
    a_.groups = (a_.D + a_.group - 1) / a_.group;
    a_.xq = rows(xq, problem.query_start);
    a_.xc = rows(xc, problem.key_start);
    a_.w_ho = matrix(w.ho_weight), a_.w_se = matrix(w.se_weight), a_.w_ag = matrix(w.ag_weight);
    a_.b_ho = vector(w.ho_bias), a_.b_se = vector(w.se_bias), a_.b_ag = vector(w.ag_bias);
    if (problem.visible.defined()) {
      a_.keys = static_cast<const std::uint8_t*>(problem.visible.data_ptr());
      a_.keys_stride = problem.visible.size(1);
    }
    cut();
  }

  bool scans() const { return problem_.block > 0 && problem_.block < kScanBelow; }
  std::int64_t kD() const { return problem_.kD(); }
  LayerArgs& args() { return a_; }

  Rows rows(const at::Tensor& x, const std::vector<std::int64_t>& starts) {
    return rows_of(keep(with_unit_rows(x)), starts);
  }

  // H of every segment from the context's projection.
  at::Tensor context_means(at::Tensor H) {
    const at::Tensor sums = at::empty({context_.subs(), kD()}, sums_like(like_));
    a_.sums = sums.data_ptr();
    sum_context();
    const std::vector<double> scale = scales();
    fold(context_, problem_.block ? nullptr : scale.data(), H);
    if (problem_.block) walk(scale.data(), H, false);
    return H;
  }
  at::Tensor context_means(at::Tensor H, const BetweenSums& between) {
    H.copy_(between(context_sums()));
    return H;
  }
  at::Tensor context_sums() {
    const at::Tensor sums = at::empty({context_.subs(), kD()}, sums_like(like_));
    at::Tensor total = at::empty({context_.segments(), kD()}, sums_like(like_));
    a_.sums = sums.data_ptr();
    sum_context();
    fold(context_, nullptr, total);
    return total;
  }

  void select(const at::Tensor& H) {
    a_.H = H.const_data_ptr();
    if (!a_.se && query_tiles() < at::get_num_threads()) return select_together();
    run_tasks(query_tiles(), kernels_.layer_scratch(a_),
              [&](void* scratch, std::int64_t tile) { kernels_.select(a_, scratch, tile); });
  }

  void scan() {
    begin_walk();
    run_tasks(query_tiles(), kernels_.layer_scratch(a_),
              [&](void* scratch, std::int64_t tile) { kernels_.scan(a_, scratch, tile); });
  }

  void backward_segments(const at::Tensor& H, const BetweenSums* between) {
    const at::Tensor sums = at::empty({query_.subs(), kD()}, sums_like(like_));
    at::Tensor dp = at::empty({query_.segments(), kD()}, sums_like(like_));
    a_.sums = sums.data_ptr();
    a_.H = H.const_data_ptr();
    begin_order();
    run_tasks(query_tiles(), kernels_.layer_scratch(a_),
              [&](void* scratch, std::int64_t tile) { kernels_.backward_query(a_, scratch, tile); });
    fold(query_, between ? nullptr : scales().data(), dp);
    if (between) dp = (*between)(dp).contiguous();
    if (problem_.block) walk(nullptr, dp, true);
    a_.dp = dp.const_data_ptr();
    begin_order();
    run_tasks(context_tiles(), kernels_.layer_scratch(a_),
              [&](void* scratch, std::int64_t tile) { kernels_.backward_context(a_, scratch, tile); });
  }

  void backward_scan() {
    const Workspace H(static_cast<std::size_t>(query_.tokens * kD()) * sums_like(like_).dtype().itemsize());
    a_.Hrows = H.data();
    begin_walk();
    run_tasks(query_tiles(), kernels_.layer_scratch(a_),
              [&](void* scratch, std::int64_t tile) { kernels_.rescan(a_, scratch, tile); });
    begin_walk();
    run_tasks(query_tiles(), kernels_.layer_scratch(a_), [&](void* scratch, std::int64_t order) {
      kernels_.backward_scan(a_, scratch, order, query_tiles());
    });
  }

  std::int64_t query_tiles() const { return static_cast<std::int64_t>(query_.tiles.size()); }
  // Few tokens (a step of the recurrent form): the threads share each tile, first by features, then by
  // channels.
  void select_together() {
    const Workspace shared(kernels_.shared_bytes(a_) * static_cast<std::size_t>(query_tiles()));
    a_.shared = shared.data();
    const std::int64_t parts = 2 * at::get_num_threads();
    const auto run = [&](std::int64_t extent, std::int64_t unit, auto kernel) {
      const std::int64_t units = (extent + unit - 1) / unit, slices = std::min(parts, units);
      run_tasks(query_tiles() * slices, kernels_.layer_scratch(a_), [&](void* scratch, std::int64_t task) {
        const std::int64_t i = task % slices;
        kernel(a_, scratch, task / slices, units * i / slices * unit,
               std::min(extent, units * (i + 1) / slices * unit));
      });
    };
    run(a_.groups, 1, kernels_.select_gate);
    run(a_.d, 48, kernels_.select_aggregate);
  }

  std::int64_t context_tiles() const { return static_cast<std::int64_t>(context_.tiles.size()); }
  int panel() const { return 2 * kernels_.features_per_vector; }

 private:
  at::Tensor keep(const at::Tensor& t) {
    kept_.push_back(t);
    return t;
  }
  Matrix matrix(const at::Tensor& w) {
    if (!w.defined()) return {};
    const at::Tensor m = keep(with_unit_rows(w));
    return {m.const_data_ptr(), m.stride(0)};
  }
  const void* vector(const at::Tensor& b) {
    return b.defined() ? keep(b.contiguous()).const_data_ptr() : nullptr;
  }

  void cut() {
    std::int64_t tokens = 0, longest = 0;
    for (std::size_t s = 0; s < problem_.keys.size(); ++s) {
      tokens += std::max(problem_.queries[s], problem_.keys[s]);
      longest = std::max(longest, problem_.keys[s]);
    }
    a_.tile = tile_size(tokens);
    if (problem_.block)
      a_.scan.window = window_within(problem_.window, ScanRule{problem_.block, 0}.blocks(longest));
    a_.scan_length = problem_.keys.data();
    if (scans()) {
      a_.scan.block = problem_.block;
      query_ = plan_scan(problem_.queries, problem_.block, a_.tile);
    } else {
      query_ = plan_segments(problem_.queries, problem_.block, a_.tile);
      context_ = plan_segments(problem_.keys, problem_.block, a_.tile);
    }
    a_.tiles = query_.tiles.data(), a_.pieces = query_.pieces.data();
    a_.ctiles = context_.tiles.data(), a_.cpieces = context_.pieces.data();
    a_.tile_count = query_tiles(), a_.ctile_count = context_tiles();
  }

  // 1 / count for each segment, count being what its queries see.
  std::vector<double> scales() const {
    std::vector<double> scale;
    for (std::size_t s = 0; s < problem_.keys.size(); ++s) {
      const std::int64_t n = problem_.keys[s],
                         block = problem_.block ? problem_.block : std::max<std::int64_t>(n, 1);
      for (std::int64_t start = 0; start == 0 || start < n; start += block) {
        const std::int64_t b = start / block;
        const std::int64_t from =
            a_.scan.window && b >= a_.scan.window ? (b - a_.scan.window + 1) * block : 0;
        std::int64_t count = std::min(start + block, n) - from;
        if (a_.keys) {
          count = 0;
          for (std::int64_t t = 0; t < n; ++t)
            count += a_.keys[static_cast<std::int64_t>(s) * a_.keys_stride + t] != 0;
        }
        scale.push_back(1.0 / ((problem_.masked() ? kEps : 0.0) + static_cast<double>(count)));
      }
    }
    return scale;
  }

  void sum_context() {
    const std::int64_t tiles = context_tiles();
    // Few tiles: share the features out as well. A sum over tokens is the same whoever computes it.
    const std::int64_t threads = at::get_num_threads();
    const std::int64_t slices =
        std::min(a_.groups, (2 * threads + tiles - 1) / std::max<std::int64_t>(tiles, 1));
    run_tasks(tiles * slices, kernels_.layer_scratch(a_), [&](void* scratch, std::int64_t task) {
      const std::int64_t slice = task % slices;
      kernels_.context(a_, scratch, task / slices, a_.groups * slice / slices,
                       a_.groups * (slice + 1) / slices);
    });
  }

  template <class Body>
  void over_features(const Body& body) {
    run_tasks((kD() + kSlice - 1) / kSlice, 0,
              [&](void*, std::int64_t i) { body(i * kSlice, std::min(kD(), (i + 1) * kSlice)); });
  }
  void fold(const Plan& plan, const double* scale, const at::Tensor& H) {
    over_features([&](std::int64_t f0, std::int64_t f1) {
      kernels_.fold(a_, plan.sub_begin.data(), plan.segments(), scale, H.data_ptr(), f0, f1);
    });
  }
  void walk(const double* scale, const at::Tensor& H, bool backwards) {
    const at::Tensor state = at::empty({a_.scan.state_rows(), kD()}, sums_like(like_));
    over_features([&](std::int64_t f0, std::int64_t f1) {
      kernels_.walk(a_, context_.segment_begin.data(), problem_.sequences(), scale, H.data_ptr(),
                    state.data_ptr(), backwards, f0, f1);
    });
  }

  void begin_order() {
    done_ = std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(a_.groups));
    for (std::int64_t g = 0; g < a_.groups; ++g) done_[static_cast<std::size_t>(g)] = 0;
    a_.done = done_.get();
  }
  void begin_walk() {
    begin_order();
    carry_ = at::empty({a_.scan.state_rows(), kD()}, sums_like(like_));
    a_.carry = carry_.data_ptr();
  }

  const Problem& problem_;
  const Kernels& kernels_;
  at::Tensor like_, carry_;
  std::vector<at::Tensor> kept_;
  Plan query_, context_;
  std::unique_ptr<std::atomic<std::int64_t>[]> done_;
  LayerArgs a_;
};

std::vector<std::int64_t> with_last(const at::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

// Where the gradients of the three matrices are summed up: arithmetic type, rows of a whole number of panels.
// The kernels write the weights' own dtype and layout at the end; where that is the same thing, they sum in
// place.
class WeightSums {
 public:
  WeightSums(Pass& pass, Gradients& g, const LayerWeights& w, const at::Tensor& like) {
    LayerArgs& a = pass.args();
    const bool idle = pass.query_tiles() == 0;  // nothing will write them
    const auto make = [&](at::IntArrayRef shape, const at::TensorOptions& options) {
      return idle ? at::zeros(shape, options) : at::empty(shape, options);
    };
    for (auto [gradient, weight] : {std::pair{&g.weights.ho_weight, &w.ho_weight},
                                    {&g.weights.se_weight, &w.se_weight},
                                    {&g.weights.ag_weight, &w.ag_weight}})
      *gradient = make(weight->sizes(), like.options());
    a.gw_ho = g.weights.ho_weight.data_ptr();
    a.gw_se = g.weights.se_weight.data_ptr();
    a.gw_ag = g.weights.ag_weight.data_ptr();
    a.dw_ld = (a.d + pass.panel() - 1) / pass.panel() * pass.panel();
    const at::TensorOptions sums = sums_like(like);
    const bool in_place = a.dw_ld == a.d && sums.dtype() == like.dtype();
    const std::size_t bytes = static_cast<std::size_t>(pass.kD() * a.dw_ld) * sums.dtype().itemsize();
    memory_.emplace(bytes * (in_place ? 1 : 3));
    char* base = static_cast<char*>(memory_->data());
    a.dw_ag_t = base;
    a.dw_ho = in_place ? a.gw_ho : base + bytes;
    a.dw_se = in_place ? a.gw_se : base + 2 * bytes;
    bias_ = make({3, std::max(pass.kD(), a.d)}, sums);
    a.db_ho = bias_[0].data_ptr(), a.db_se = bias_[1].data_ptr(), a.db_ag = bias_[2].data_ptr();
  }
  void finish(Gradients& g, const Problem& p, const at::Tensor& like) const {
    g.weights.ho_bias = bias_[0].narrow(0, 0, p.kD()).to(like.scalar_type(), false, /*copy=*/true);
    g.weights.se_bias = bias_[1].narrow(0, 0, p.kD()).to(like.scalar_type(), false, /*copy=*/true);
    g.weights.ag_bias = bias_[2].narrow(0, 0, p.d).to(like.scalar_type(), false, /*copy=*/true);
  }

 private:
  std::optional<Workspace> memory_;
  at::Tensor bias_;
};

}  // namespace

std::int64_t saved_rows(const Problem& p) {
  std::int64_t total = 0;
  for (const std::int64_t n : p.keys) total += n;
  const std::int64_t each = p.keys.empty() ? 0 : p.keys[0];
  return saved_rows<std::int64_t>(p.sequences(), each, total, p.block, p.packed);
}

bool covers(const Problem& problem) {
  static_assert(kMaxFusedOrder == kMaxOrder);
  return !problem.full && problem.order <= kMaxOrder;
}

at::Tensor layer_forward(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                         const LayerWeights& w, Saved* saved, const BetweenSums* between) {
  at::Tensor out = at::empty(xq.sizes(), xq.options());
  Pass pass(problem, xq, xc, w);
  pass.args().out = pass.rows(out, problem.query_start);
  if (saved) {
    saved->ho = at::empty(with_last(xc, problem.kD()), xc.options());
    saved->se = at::empty(with_last(xq, problem.kD()), xq.options());
    pass.args().ho = saved->ho.data_ptr();
    pass.args().se = saved->se.data_ptr();
  }
  at::Tensor H = at::empty({saved_rows(problem), problem.kD()}, sums_like(xq));
  if (saved) saved->H = H;
  if (pass.scans())
    pass.scan();
  else
    pass.select(between ? pass.context_means(H, *between) : pass.context_means(H));
  return out;
}

Gradients layer_backward(const Problem& problem, const at::Tensor& dout, const at::Tensor& xq,
                         const at::Tensor& xc, const LayerWeights& w, const Saved& saved, bool need_x,
                         bool need_w, const BetweenSums* between) {
  Gradients g;
  Pass pass(problem, xq, xc, w);
  LayerArgs& a = pass.args();
  a.backward = true;
  a.need_x = need_x, a.need_w = need_w;
  a.dout = pass.rows(dout, problem.query_start);
  a.ho = saved.ho.data_ptr(), a.se = saved.se.data_ptr();
  if (need_x) {
    g.xq = at::empty(xq.sizes(), xq.options());
    g.xc = at::empty(xc.sizes(), xc.options());
    a.dxq = pass.rows(g.xq, problem.query_start);
    a.dxc = pass.rows(g.xc, problem.key_start);
  }
  std::optional<WeightSums> sums;
  if (need_w) sums.emplace(pass, g, w, xq);
  if (pass.query_tiles() == 0 && !between) {  // no queries: nothing depends on anything
    if (need_x) g.xq.zero_(), g.xc.zero_();
  } else if (pass.scans()) {
    pass.backward_scan();
  } else {
    pass.backward_segments(saved.H, between);
  }
  if (sums) sums->finish(g, problem, xq);
  return g;
}

at::Tensor layer_summary(const Problem& problem, const at::Tensor& xc, const LayerWeights& w) {
  return Pass(problem, xc, xc, w).context_sums();
}

at::Tensor layer_select(const Problem& problem, const at::Tensor& xq, const at::Tensor& H,
                        const LayerWeights& w) {
  at::Tensor out = at::empty(xq.sizes(), xq.options());
  Pass pass(problem, xq, xq, w);
  pass.args().out = pass.rows(out, problem.query_start);
  pass.select(H.contiguous());
  return out;
}

namespace {

// The stream, read through its modulated norm, and the result added to it through a gate.
void set_stream(LayerArgs& a, const Modulation& m, const at::Tensor& gate) {
  a.stream = true;
  a.out = a.xq;
  a.scale = per_sequence(m.scale), a.shift = per_sequence(m.shift), a.gate = per_sequence(gate),
  a.eps = m.eps;
}

}  // namespace

void mixer_stream(at::Tensor& x, const Modulation& m, const LayerWeights& w, std::int64_t order,
                  const at::Tensor& gate, const BetweenSums& seen) {
  const Problem problem = check_stream_layer(x, w, order);
  Pass pass(problem, x, x, w);
  set_stream(pass.args(), m, gate);
  const at::Tensor H = at::empty({problem.sequences(), problem.kD()}, x.options());
  pass.select(seen ? pass.context_means(H, seen) : pass.context_means(H));
}

void selection_stream(at::Tensor& x, const Modulation& m, const at::Tensor& H, const LayerWeights& w,
                      const at::Tensor& gate) {
  const Problem problem = check_stream_selection(x, w);
  const LayerWeights queries{{}, {}, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias};
  Pass pass(problem, x, x, queries);
  set_stream(pass.args(), m, gate);
  const at::Tensor rows = H.contiguous();
  pass.select(rows);
}

std::pair<at::Tensor, at::Tensor> layer_scan(const Problem& problem, const at::Tensor& x,
                                             const LayerWeights& w, const at::Tensor& sum,
                                             const at::Tensor& count) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  at::Tensor last = at::empty(sum.sizes(), sum.options());
  const at::Tensor first = sum.contiguous(), before = count.to(at::kLong).contiguous();
  Pass pass(problem, x, x, w);
  LayerArgs& a = pass.args();
  a.out = pass.rows(out, problem.query_start);
  a.init_sum = first.const_data_ptr();
  a.init_count = before.const_data_ptr<std::int64_t>();
  a.final_sum = last.data_ptr();
  pass.scan();
  return {out, last};
}

}  // namespace pom::ops::cpu
