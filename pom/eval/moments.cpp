#include "pom/eval/moments.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/eval/one_thread.h"

namespace pom::eval {
namespace {

constexpr std::int64_t blocks_at_once = 8;  // blocks in memory

}  // namespace

void Moments::add(std::int64_t first, const at::Tensor& features) {
  c10::NoGradGuard no_grad;
  check(features.dim() == 2 && features.size(0) > 0, "Moments: features: expected (n, F), got ",
        features.sizes());
  check(first >= 0 && first % moment_block == 0, "Moments: first: expected a multiple of ", moment_block,
        ", got ", first);
  const std::int64_t blocks = (features.size(0) + moment_block - 1) / moment_block;
  for (std::int64_t done = 0; done < blocks; done += blocks_at_once) {
    const std::int64_t some = std::min(blocks_at_once, blocks - done);
    std::vector<Block> made(static_cast<std::size_t>(some));
    each_in_one_thread(some, blocks_at_once, [&](std::int64_t i) {
      made[static_cast<std::size_t>(i)] = block_of(features, (done + i) * moment_block);
    });
    for (std::int64_t i = 0; i < some; ++i)
      keep(first / moment_block + done + i, std::move(made[static_cast<std::size_t>(i)]));
    fold();
  }
}

Moments::Block Moments::block_of(const at::Tensor& features, std::int64_t at) {
  const std::int64_t n = std::min(moment_block, features.size(0) - at);
  const at::Tensor x = features.narrow(0, at, n).to(at::kCPU, at::kDouble);
  return {n, x.sum(0), at::matmul(x.t(), x)};
}

void Moments::keep(std::int64_t number, Block block) {
  check(number >= next_ && !blocks_.contains(number), "Moments: expected each sample once, got ",
        number * moment_block, " twice");
  count_ += block.count;
  blocks_[number] = std::move(block);
}

void Moments::fold() {
  for (auto block = blocks_.find(next_); block != blocks_.end(); block = blocks_.find(next_)) {
    check(folded_.count == next_ * moment_block, "Moments: expected whole blocks but for the last, got ",
          folded_.count, " samples before number ", next_ * moment_block);
    if (next_ == 0) {
      folded_ = block->second;
    } else {
      folded_.sum.add_(block->second.sum);
      folded_.products.add_(block->second.products);
      folded_.count += block->second.count;
    }
    blocks_.erase(block);
    ++next_;
  }
}

Gaussian Moments::gaussian() const {
  check(blocks_.empty(), "Moments: expected every sample, got none of block ", next_);
  check(count_ >= 2, "Moments: expected at least 2 samples, got ", count_);
  const auto n = static_cast<double>(count_);
  const at::Tensor mean = folded_.sum / n;
  return {mean, (folded_.products - at::outer(mean, mean) * n) / (n - 1)};
}

}  // namespace pom::eval
