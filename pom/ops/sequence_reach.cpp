#include "pom/ops/sequence_reach.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace pom::ops {
namespace {

// The ranks along the direction of sight: those "before" are seen by all of a rank's rows. Backwards ranks
// and blocks count from the other end.
struct Line {
  const SplitBlocks& blocks;
  bool back;

  int ranks() const { return blocks.ranks(); }
  int me() const { return place(blocks.rank()); }
  int place(int rank) const { return back ? ranks() - 1 - rank : rank; }
  std::int64_t first(int p) const { return back ? -blocks.last(place(p)) : blocks.first(p); }
  std::int64_t last(int p) const { return back ? -blocks.first(place(p)) : blocks.last(p); }
};

at::Tensor turned(const at::Tensor& t, std::int64_t dim, bool back) {
  return back ? t.flip(dim) : t;
}

void add(at::Tensor& total, const at::Tensor& more) {
  total = total.defined() ? total + more : more;
}

// The sum over all ranks, for which they hand in one row.
at::Tensor sum_of_all(const at::Tensor& sums, const SplitTokens& split) {
  at::Tensor total = sums.contiguous().clone();
  if (!split.exact()) {
    split.ranks().sum(total);
    return total;
  }
  const at::Tensor all = split.ranks().gather(total);
  total = all[0].clone();
  for (int r = 1; r < split.ranks().size(); ++r) total += all[r];
  return total;
}

// Rows (B, m, c) of every rank, in the order of the line: (N, B, m, c).
at::Tensor exchanged(const std::vector<at::Tensor>& rows, const SplitTokens& split, bool back) {
  return turned(split.ranks().gather(at::cat(rows, 1).contiguous()), 0, back);
}

// The first row, if a rank before has tokens of its block, or zeros: for whoever shares the block.
at::Tensor shared_row(const at::Tensor& rows, const Line& line) {
  const int me = line.me();
  const at::Tensor row = rows.narrow(1, 0, 1);
  return me > 0 && line.last(me - 1) == line.first(me) ? row : at::zeros_like(row);
}

// The last row's block goes on in the ranks behind.
void add_rest_of_block(at::Tensor& seen, const at::Tensor& all, std::int64_t column, const Line& line) {
  at::Tensor last = seen.select(1, seen.size(1) - 1);
  for (int p = line.me() + 1; p < line.ranks() && line.first(p) == line.last(line.me()); ++p)
    last += all[p].select(1, column);
}

at::Tensor all_before(const at::Tensor& rows, const SplitTokens& split, const Line& line) {
  std::vector<at::Tensor> mine{rows.sum(1, /*keepdim=*/true)};
  if (line.blocks.cut()) mine.push_back(shared_row(rows, line));
  const at::Tensor all = exchanged(mine, split, line.back);
  at::Tensor before;
  for (int p = 0; p < line.me(); ++p) add(before, all[p].select(1, 0));
  at::Tensor seen = rows.cumsum(1);
  if (before.defined()) seen += before.unsqueeze(1);
  if (line.blocks.cut()) add_rest_of_block(seen, all, 1, line);
  return seen;
}

// The last `count` rows, zeros before them where there are fewer.
at::Tensor last_rows(const at::Tensor& rows, std::int64_t count) {
  const std::int64_t some = std::min(count, rows.size(1));
  return at::constant_pad_nd(rows.narrow(1, rows.size(1) - some, some), {0, 0, count - some, 0});
}

at::Tensor within_window(const at::Tensor& rows, const SplitTokens& split, const Line& line) {
  const std::int64_t W = line.blocks.window(), first = line.first(line.me());
  const bool cut = line.blocks.cut();
  const std::int64_t sent = std::min(cut ? W : W - 1, line.blocks.most_rows());
  // What this rank's rows see before them: blocks first - W + 1 .. first, the last of which is its own first.
  at::Tensor past = at::zeros({rows.size(0), W, rows.size(2)}, rows.options());
  at::Tensor all;
  if (sent > 0) {
    std::vector<at::Tensor> mine{last_rows(rows, sent)};
    if (cut) mine.push_back(shared_row(rows, line));
    all = exchanged(mine, split, line.back);
    for (int p = 0; p < line.me(); ++p)
      for (std::int64_t b = std::max(line.first(p), line.last(p) - sent + 1); b <= line.last(p); ++b)
        if (b > first - W) past.select(1, b - first + W - 1) += all[p].select(1, b - line.last(p) + sent - 1);
  }
  at::Tensor own = rows;
  if (cut) {
    own = rows.clone();
    own.select(1, 0) += past.select(1, W - 1);
  }
  at::Tensor seen = at::cat({past.narrow(1, 0, W - 1), own}, 1).unfold(1, W, 1).sum(-1);
  if (cut) add_rest_of_block(seen, all, sent, line);
  return seen;
}

struct ReachCall : torch::CustomClassHolder {
  ReachCall(SplitTokens split, SplitBlocks blocks) : split(std::move(split)), blocks(std::move(blocks)) {}
  SplitTokens split;
  SplitBlocks blocks;
};

class ReachFunction : public torch::autograd::Function<ReachFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& sums,
                            const c10::intrusive_ptr<ReachCall>& call, bool back) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->saved_data["back"] = back;
    return reach_of(sums, call->split, call->blocks, back);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto call = c10::static_intrusive_pointer_cast<ReachCall>(ctx->saved_data["call"].toCapsule());
    return {ReachFunction::apply(grads[0], call, !ctx->saved_data["back"].toBool()), {}, {}};
  }
};

}  // namespace

at::Tensor reach_of(const at::Tensor& sums, const SplitTokens& split, const SplitBlocks& blocks, bool back) {
  if (blocks.one()) return sum_of_all(sums, split);
  const Line line{blocks, back};
  const at::Tensor rows = turned(sums, 1, back);
  return turned(blocks.window() > 0 ? within_window(rows, split, line) : all_before(rows, split, line), 1,
                back);
}

at::Tensor reach(const at::Tensor& sums, const SplitTokens& split, const SplitBlocks& blocks) {
  return ReachFunction::apply(sums, c10::make_intrusive<ReachCall>(split, blocks), false);
}

}  // namespace pom::ops
