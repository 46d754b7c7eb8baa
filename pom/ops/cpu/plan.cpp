#include "pom/ops/cpu/plan.h"

#include <algorithm>

namespace pom::ops::cpu {
namespace {

class Builder {
 public:
  Builder(Plan& plan, int tile) : plan_(plan), tile_(tile) { open(); }
  void finish() {
    if (plan_.tiles.back().count == 0) plan_.tiles.pop_back();
  }

  // `count` tokens from `start` on, cut only at multiples of `unit` from there.
  void add(Piece piece, std::int64_t count, std::int64_t unit) {
    while (count > 0) {
      std::int64_t some = std::min<std::int64_t>(count, tile_ - plan_.tiles.back().count);
      if (some < count) some = some / unit * unit;
      if (some == 0) {
        open();
        continue;
      }
      Tile& tile = plan_.tiles.back();
      piece.offset = tile.count;
      piece.count = static_cast<int>(some);
      plan_.pieces.push_back(piece);
      tile.pieces += 1;
      tile.count += piece.count;
      plan_.tokens += some;
      piece.start += some;
      piece.sub += some / kSub;
      count -= some;
    }
  }

 private:
  void open() { plan_.tiles.push_back({static_cast<std::int64_t>(plan_.pieces.size()), 0, 0, plan_.tokens}); }

  Plan& plan_;
  int tile_;
};

}  // namespace

Plan plan_segments(const std::vector<std::int64_t>& lengths, std::int64_t block, int tile) {
  Plan plan;
  plan.sub_begin.push_back(0);
  plan.segment_begin.push_back(0);
  Builder builder(plan, tile);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const std::int64_t step = block > 0 ? block : std::max<std::int64_t>(lengths[s], 1);
    for (std::int64_t start = 0; start == 0 || start < lengths[s]; start += step) {
      const std::int64_t count = std::min(step, lengths[s] - start);
      builder.add({static_cast<std::int64_t>(s), start, plan.segments(), plan.subs(), 0, 0}, count, kSub);
      plan.sub_begin.push_back(plan.subs() + (count + kSub - 1) / kSub);
    }
    plan.segment_begin.push_back(plan.segments());
  }
  builder.finish();
  return plan;
}

Plan plan_scan(const std::vector<std::int64_t>& lengths, std::int64_t block, int tile) {
  Plan plan;
  plan.sub_begin.push_back(0);
  Builder builder(plan, tile);
  for (std::size_t s = 0; s < lengths.size(); ++s)
    builder.add({static_cast<std::int64_t>(s), 0, 0, 0, 0, 0}, lengths[s], block);
  builder.finish();
  return plan;
}

int tile_size(std::int64_t tokens) {
  if (tokens < 256) return 64;
  return tokens < 1024 ? 128 : kMaxTile;
}

std::int64_t group_size(std::int64_t order, std::int64_t features) {
  const std::int64_t wanted = std::max<std::int64_t>(12, 192 / order / 12 * 12);
  return std::min(wanted, features);
}

}  // namespace pom::ops::cpu
