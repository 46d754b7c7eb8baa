#include "pom/eval/picture_features.h"

#include <algorithm>
#include <array>

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

constexpr std::array parts = {&PictureFeatures::main, &PictureFeatures::spatial, &PictureFeatures::logits};

bool same_size(const std::vector<at::Tensor>& pictures) {
  return std::ranges::all_of(pictures, [&](const at::Tensor& t) { return t.sizes() == pictures[0].sizes(); });
}

// Pictures of one size as a block on a GPU, through memory that it reads by itself.
at::Tensor sent_together(const std::vector<at::Tensor>& pictures, const at::Device& device) {
  std::vector<std::int64_t> shape = pictures[0].sizes().vec();
  shape.insert(shape.begin(), std::ssize(pictures));
  at::Tensor all = at::empty(shape, at::TensorOptions(at::kByte).pinned_memory(device.is_cuda()));
  at::parallel_for(0, std::ssize(pictures), 1, [&](std::int64_t begin, std::int64_t end) {
    const c10::NoGradGuard no_grad;
    for (std::int64_t i = begin; i < end; ++i) all[i].copy_(pictures[static_cast<std::size_t>(i)]);
  });
  return all.to(device, all.scalar_type(), /*non_blocking=*/true);
}

// On the host each picture is one thread's; a GPU takes all of a block, as bytes.
at::Tensor inputs_of(const FeatureNetwork& network, const std::vector<at::Tensor>& pictures) {
  if (!network.device().is_cpu() && same_size(pictures))
    return network.input(sent_together(pictures, network.device()));
  std::vector<at::Tensor> inputs(pictures.size());
  at::parallel_for(0, std::ssize(pictures), 1, [&](std::int64_t begin, std::int64_t end) {
    const c10::NoGradGuard no_grad;
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      inputs[i] = network.input(pictures[i].unsqueeze(0));
  });
  return at::cat(inputs);
}

// A block is always whole for the network: a short one is filled up with zeros.
PictureFeatures block_features(const FeatureNetwork& network, const std::vector<at::Tensor>& pictures) {
  const c10::NoGradGuard no_grad;
  const std::int64_t n = std::ssize(pictures);
  at::Tensor input = inputs_of(network, pictures);
  if (n < feature_block) {
    std::vector<std::int64_t> shape = input.sizes().vec();
    shape[0] = feature_block - n;
    input = at::cat({input, at::zeros(shape, input.options())});
  }
  PictureFeatures block = network.forward(input);
  for (const auto part : parts)
    if (at::Tensor& t = block.*part; t.defined()) t = t.narrow(0, 0, n).to(at::kCPU).contiguous();
  return block;
}

}  // namespace

FeatureRows::FeatureRows(const FeatureNetwork& network, std::int64_t count, const parallel::Share& share)
    : network_(network), count_(count), share_(share) {
  check(count >= 1, "eval: expected at least one picture, got ", count);
  check(share.count == 0 ||
            (share.first % feature_block == 0 && (share.end() % feature_block == 0 || share.end() == count)),
        "FeatureRows: share: expected whole blocks of ", feature_block, ", got ", share.first, " to ",
        share.end());
}

std::int64_t FeatureRows::block_count(std::int64_t block) const {
  return std::min(feature_block, count_ - block * feature_block);
}

void FeatureRows::add(std::int64_t number, const at::Tensor& picture) {
  check(number >= share_.first && number < share_.end(), "FeatureRows: number: expected ", share_.first,
        " to ", share_.end() - 1, ", got ", number);
  const std::int64_t block = number / feature_block;
  std::map<std::int64_t, at::Tensor>& waiting = waiting_[block];
  check(!made_.contains(block) && waiting.emplace(number, picture).second,
        "FeatureRows: expected each picture once, got ", number, " twice");
  if (std::ssize(waiting) < block_count(block)) return;
  std::vector<at::Tensor> pictures;
  for (const auto& [place, each] : waiting) pictures.push_back(each);
  waiting_.erase(block);
  made_[block] = block_features(network_, pictures);
  done_ += std::ssize(pictures);
}

PictureFeatures FeatureRows::rows() const {
  check(done_ == share_.count, "FeatureRows: expected ", share_.count, " pictures, got ", done_);
  PictureFeatures all;
  for (const auto part : parts) {
    std::vector<at::Tensor> blocks;
    for (const auto& [number, block] : made_)
      if ((block.*part).defined()) blocks.push_back(block.*part);
    if (!blocks.empty()) all.*part = at::cat(blocks);
  }
  return all;
}

parallel::Share feature_share(std::int64_t count, std::int64_t parts, std::int64_t part) {
  return parallel::share_of(count, parts, part, feature_block);
}

PictureFeatures features_of(const FeatureNetwork& network, std::int64_t count, const parallel::Share& share,
                            const PictureAt& picture, const FeaturesDone& done) {
  FeatureRows rows(network, count, share);
  for (std::int64_t first = share.first; first < share.end(); first += feature_block) {
    const std::int64_t n = std::min(feature_block, share.end() - first);
    std::vector<at::Tensor> pictures(static_cast<std::size_t>(n));
    at::parallel_for(0, n, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) pictures[static_cast<std::size_t>(i)] = picture(first + i);
    });
    for (std::int64_t i = 0; i < n; ++i) rows.add(first + i, pictures[static_cast<std::size_t>(i)]);
    if (done) done(rows.done());
  }
  return rows.rows();
}

}  // namespace pom::eval
