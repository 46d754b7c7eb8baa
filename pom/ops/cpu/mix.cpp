// The projected form on the CPU.
#include <ATen/ops/empty.h>

#include "pom/ops/cpu/layer.h"
#include "pom/ops/cpu/run.h"

namespace pom::ops::cpu {
namespace {

constexpr std::int64_t kFeatures = 128;  // of one degree, for one task

struct MixPass {
  MixPass(const Problem& p, const at::Tensor& ho, const at::Tensor& se)
      : problem(p), kernels(kernel_table(dtype_of(ho))), ho_(with_unit_rows(ho)), se_(with_unit_rows(se)) {
    a.D = p.D, a.order = p.order, a.sequences = p.sequences();
    a.queries = p.queries.data(), a.keys_count = p.keys.data();
    a.ho = rows_of(ho_, p.key_start), a.se = rows_of(se_, p.query_start);
    if (p.visible.defined()) {
      a.keys = static_cast<const std::uint8_t*>(p.visible.data_ptr());
      a.keys_stride = p.visible.size(1);
    }
    std::int64_t longest = 0;
    for (const std::int64_t n : p.keys) longest = std::max(longest, n);
    a.scan.block = p.block;
    if (p.block) a.scan.window = window_within(p.window, a.scan.blocks(longest));
    a.plain_mean = !p.masked();
  }

  template <class Kernel>
  void run(Kernel kernel) {
    const std::int64_t parts = (a.D + kFeatures - 1) / kFeatures;
    run_tasks(a.sequences * parts, kernels.mix_scratch(a), [&](void* scratch, std::int64_t task) {
      const std::int64_t f = task % parts * kFeatures;
      kernel(a, scratch, task / parts, f, std::min(a.D, f + kFeatures));
    });
  }

  const Problem& problem;
  const Kernels& kernels;
  at::Tensor ho_, se_;
  MixArgs a;
};

}  // namespace

at::Tensor mix_forward(const Problem& problem, const at::Tensor& ho, const at::Tensor& se) {
  at::Tensor out = at::empty(se.sizes(), se.options());
  MixPass pass(problem, ho, se);
  pass.a.out = rows_of(out, problem.query_start);
  pass.run(pass.kernels.mix);
  return out;
}

std::pair<at::Tensor, at::Tensor> mix_backward(const Problem& problem, const at::Tensor& dout,
                                               const at::Tensor& ho, const at::Tensor& se) {
  at::Tensor dho = at::empty(ho.sizes(), ho.options()), dse = at::empty(se.sizes(), se.options());
  const at::Tensor d = with_unit_rows(dout);
  MixPass pass(problem, ho, se);
  pass.a.dout = rows_of(d, problem.query_start);
  pass.a.dho = rows_of(dho, problem.key_start);
  pass.a.dse = rows_of(dse, problem.query_start);
  pass.run(pass.kernels.mix_backward);
  return {dho, dse};
}

}  // namespace pom::ops::cpu
