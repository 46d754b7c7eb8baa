// How tokens are cut into tiles: every token once, in order, and cut only where sums may be cut.
#include "pom/ops/cpu/plan.h"

#include <gtest/gtest.h>

namespace {

using namespace pom::ops::cpu;

const std::vector<std::vector<std::int64_t>> kLengths = {
    {1}, {64}, {65}, {256}, {1000}, {5, 1, 0, 74, 331, 2, 287}, std::vector<std::int64_t>(100, 17), {}};

void expect_every_token_once(const Plan& plan, const std::vector<std::int64_t>& lengths, int tile) {
  std::vector<std::int64_t> seen(lengths.size(), 0);
  std::int64_t tokens = 0;
  for (const Tile& t : plan.tiles) {
    EXPECT_GT(t.count, 0);
    EXPECT_LE(t.count, tile);
    EXPECT_EQ(t.saved, tokens);
    int lane = 0;
    for (int p = 0; p < t.pieces; ++p) {
      const Piece& piece = plan.pieces[static_cast<std::size_t>(t.first_piece + p)];
      EXPECT_EQ(piece.offset, lane);
      EXPECT_EQ(piece.start, seen[static_cast<std::size_t>(piece.sequence)]);
      seen[static_cast<std::size_t>(piece.sequence)] += piece.count;
      lane += piece.count;
    }
    EXPECT_EQ(lane, t.count);
    tokens += t.count;
  }
  EXPECT_EQ(seen, lengths);
  EXPECT_EQ(plan.tokens, tokens);
}

TEST(Plan, SegmentsCoverEveryTokenAndCutAtSubs) {
  for (const auto& lengths : kLengths)
    for (const std::int64_t block : {0, 32, 50, 64, 1000})
      for (const int tile : {64, 128, 256}) {
        const Plan plan = plan_segments(lengths, block, tile);
        expect_every_token_once(plan, lengths, tile);
        EXPECT_EQ(plan.segment_begin.size(), lengths.size() + 1);
        for (const Piece& piece : plan.pieces) {
          const std::int64_t from_segment = block ? piece.start % block : piece.start;
          EXPECT_EQ(from_segment % kSub, 0);
          EXPECT_EQ(piece.sub, plan.sub_begin[static_cast<std::size_t>(piece.segment)] + from_segment / kSub);
          EXPECT_LE(piece.sub + (piece.count + kSub - 1) / kSub,
                    plan.sub_begin[static_cast<std::size_t>(piece.segment) + 1]);
        }
      }
}

TEST(Plan, ScansCutAtBlocks) {
  for (const auto& lengths : kLengths)
    for (const std::int64_t block : {1, 3, 16, 31}) {
      const Plan plan = plan_scan(lengths, block, 64);
      expect_every_token_once(plan, lengths, 64);
      for (const Piece& piece : plan.pieces) EXPECT_EQ(piece.start % block, 0);
    }
}

TEST(Plan, GroupsAreWholeStrips) {
  for (std::int64_t order = 1; order <= kMaxOrder; ++order) {
    EXPECT_EQ(group_size(order, 100000) % 12, 0);
    EXPECT_GE(group_size(order, 100000), 12);
  }
  EXPECT_EQ(group_size(2, 7), 7);
}

}  // namespace
