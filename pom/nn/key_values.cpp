#include "pom/nn/key_values.h"

#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "pom/base/error.h"

namespace pom::nn {

// ---- room ----

// Blocks of new memory, of which so many are needed now. A window's are twice as many as it sees, so that
// they are moved to the front once in a window.
std::int64_t KeyValues::wanted(std::int64_t least) const {
  if (sizes_.window == 0) return sizes_.blocks > 0 ? std::max(sizes_.blocks, least) : 2 * least;
  const std::int64_t most = 2 * sizes_.window;
  return std::max(least, sizes_.blocks > 0 ? std::min(sizes_.blocks, most) : most);
}

// The last `kept` blocks of a layer at the front of memory with so much room: the same where that is enough.
at::Tensor KeyValues::moved(const at::Tensor& old, std::int64_t kept, std::int64_t room) const {
  const std::int64_t K = sizes_.tokens;
  const bool same = old.defined() && old.size(1) == room;
  const at::Tensor memory = same ? old : at::empty({sizes_.sequences, room, sizes_.width}, options_);
  if (kept == 0) return memory;
  const at::Tensor last = old.narrow(1, (end_ - kept) * K, kept * K);
  const bool apart = !same || end_ >= 2 * kept;
  memory.narrow(1, 0, kept * K).copy_(apart ? last : last.clone());
  return memory;
}

bool KeyValues::make_room(std::int64_t n) {
  const std::int64_t K = sizes_.tokens, there = room() / K;
  if (end_ + n <= there) return false;
  const std::int64_t kept = sizes_.window > 0 ? std::min(sizes_.window, end_) : end_;
  const bool fits = kept + n <= there;
  const std::int64_t blocks = fits ? there : wanted(kept + n);
  keys_.resize(static_cast<std::size_t>(sizes_.layers)), values_.resize(keys_.size());
  for (std::vector<at::Tensor>* const memories : {&keys_, &values_})
    for (at::Tensor& memory : *memories) memory = moved(memory, kept, blocks * K);
  end_ = kept;
  return !fits;
}

// ---- blocks ----

void KeyValues::write(std::int64_t layer, std::int64_t first, const at::Tensor& k, const at::Tensor& v) {
  const auto l = static_cast<std::size_t>(layer);
  const std::int64_t at = end_ * sizes_.tokens;
  keys_[l].narrow(0, first, k.size(0)).narrow(1, at, k.size(1)).copy_(k);
  values_[l].narrow(0, first, v.size(0)).narrow(1, at, v.size(1)).copy_(v);
}

std::int64_t KeyValues::first_seen(std::int64_t i) const {
  return sizes_.window > 0 ? std::max<std::int64_t>(0, end_ + i + 1 - sizes_.window) : 0;
}
at::Tensor KeyValues::seen(const at::Tensor& memory, std::int64_t first, std::int64_t R,
                           std::int64_t i) const {
  const std::int64_t from = first_seen(i), K = sizes_.tokens;
  return memory.narrow(0, first, R).narrow(1, from * K, (end_ + i + 1 - from) * K);
}
at::Tensor KeyValues::keys(std::int64_t layer, std::int64_t first, std::int64_t R, std::int64_t i) const {
  return seen(keys_[static_cast<std::size_t>(layer)], first, R, i);
}
at::Tensor KeyValues::values(std::int64_t layer, std::int64_t first, std::int64_t R, std::int64_t i) const {
  return seen(values_[static_cast<std::size_t>(layer)], first, R, i);
}

at::Tensor KeyValues::last(const std::vector<at::Tensor>& memories, std::int64_t first, std::int64_t R,
                           std::int64_t n) const {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& memory : memories)
    parts.push_back(memory.narrow(0, first, R).narrow(1, (end_ - n) * sizes_.tokens, n * sizes_.tokens));
  return at::stack(parts);
}
at::Tensor KeyValues::last_keys(std::int64_t first, std::int64_t R, std::int64_t n) const {
  return last(keys_, first, R, n);
}
at::Tensor KeyValues::last_values(std::int64_t first, std::int64_t R, std::int64_t n) const {
  return last(values_, first, R, n);
}

// ---- as numbers on the device ----

KeyValues::Places KeyValues::places(std::int64_t R, std::int64_t n) const {
  const std::int64_t K = sizes_.tokens;
  check(sizes_.sequences * room() <= std::numeric_limits<int>::max(),
        "attention: keys: expected fewer than 2^31 of all sequences together, got ",
        sizes_.sequences * room());
  std::vector<int> first, rows;
  for (std::int64_t r = 0; r < R; ++r)
    for (std::int64_t i = 0; i < n; ++i) {
      first.push_back(static_cast<int>(r * room() + first_seen(i) * K));
      rows.push_back(static_cast<int>((end_ + i + 1 - first_seen(i)) * K));
    }
  first.push_back(0);
  const at::TensorOptions whole(at::kLong);
  const at::Tensor written =
      at::arange(R, whole).mul_(room()).add_(end_ * K).unsqueeze(1) + at::arange(n * K, whole).unsqueeze(0);
  const at::Tensor queries = at::arange(R * n + 1, whole).mul_(K).to(at::kInt);
  const auto on_device = [&](const at::Tensor& t) { return t.to(options_.device()); };
  return {on_device(written.flatten()),
          {on_device(queries), on_device(at::tensor(first, at::kInt)), on_device(at::tensor(rows, at::kInt)),
           room()}};
}

void KeyValues::shift(const Places& places, std::int64_t first, Places& out) const {
  at::add_out(out.written, places.written, at::Scalar(first * room()));
  at::add_out(out.seen.first, places.seen.first, at::Scalar(first * room()));
  out.seen.rows.copy_(places.seen.rows);
}

void KeyValues::write(std::int64_t layer, const Places& places, const at::Tensor& k, const at::Tensor& v) {
  const auto l = static_cast<std::size_t>(layer);
  keys_[l].flatten(0, 1).index_copy_(0, places.written, k.flatten(0, 1));
  values_[l].flatten(0, 1).index_copy_(0, places.written, v.flatten(0, 1));
}

at::Tensor KeyValues::attend(std::int64_t layer, const Places& places, const at::Tensor& q,
                             std::int64_t heads) const {
  const auto l = static_cast<std::size_t>(layer);
  return ops::span_attention(q, keys_[l].flatten(0, 1), values_[l].flatten(0, 1), heads, places.seen);
}

}  // namespace pom::nn
