// What attention keeps of blocks: memory that is written in place, moved and grown, against all that was
// written, bit for bit; the same through numbers on the device.
#include "pom/nn/key_values.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/nn/clip_attention.h"

namespace pom::nn {
namespace {

constexpr std::int64_t kLayers = 2, kSequences = 5, kTokens = 4, kWidth = 6;

struct Case {
  std::int64_t window, blocks;            // of Sizes
  std::vector<std::int64_t> chunks = {};  // of blocks
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::int64_t window : {0, 1, 2, 3})
    for (const std::int64_t blocks : {0, 4, 9})
      for (const std::vector<std::int64_t>& chunks :
           {std::vector<std::int64_t>(9, 1), {9}, {3, 1, 1, 4}, {1, 5, 2, 1}, {2, 2, 2, 3}})
        all.push_back({window, blocks, chunks});
  return all;
}
KeyValues empty(const Case& c) {
  return KeyValues({.layers = kLayers,
                    .sequences = kSequences,
                    .tokens = kTokens,
                    .width = kWidth,
                    .window = c.window,
                    .blocks = c.blocks},
                   at::TensorOptions(at::kFloat));
}

// (L, S, all tokens, d) of 9 blocks, and what block b sees of them.
at::Tensor some() {
  return at::randn({kLayers, kSequences, 9 * kTokens, kWidth});
}
at::Tensor seen(const at::Tensor& all, std::int64_t layer, std::int64_t window, std::int64_t b) {
  const std::int64_t from = window > 0 ? std::max<std::int64_t>(0, b + 1 - window) : 0;
  return all[layer].narrow(1, from * kTokens, (b + 1 - from) * kTokens);
}

TEST(KeyValues, KeepWhatIsSeenWhateverTheRoom) {
  for (const Case& c : cases()) {
    KeyValues kept = empty(c);
    const at::Tensor all = some();
    std::int64_t b = 0;
    for (const std::int64_t n : c.chunks) {
      kept.make_room(n);
      for (const bool last : {false, true})  // the first time they are broken off
        for (std::int64_t l = 0; l < kLayers; ++l)
          for (const auto& [first, R] : {std::pair<std::int64_t, std::int64_t>{0, 2}, {2, 3}}) {
            const at::Tensor k = all[l].narrow(0, first, R).narrow(1, b * kTokens, n * kTokens);
            kept.write(l, first, last ? k : at::ones_like(k), last ? -k : at::ones_like(k));
            for (std::int64_t i = 0; last && i < n; ++i) {
              const at::Tensor expected = seen(all, l, c.window, b + i).narrow(0, first, R);
              EXPECT_TRUE(at::equal(kept.keys(l, first, R, i), expected)) << b + i;
              EXPECT_TRUE(at::equal(kept.values(l, first, R, i), -expected)) << b + i;
            }
          }
      kept.advance(n), b += n;
      const std::int64_t stored = c.window > 0 ? std::min(c.window, b) : b;
      const at::Tensor last = all.narrow(2, (b - stored) * kTokens, stored * kTokens);
      EXPECT_TRUE(at::equal(kept.last_keys(0, kSequences, stored), last));
      EXPECT_TRUE(at::equal(kept.last_values(2, 3, stored), -last.narrow(1, 2, 3)));
      kept.make_room(1);  // for blocks that do not come, or not yet: nothing is lost
      EXPECT_TRUE(at::equal(kept.last_keys(0, kSequences, stored), last));
    }
  }
}

// Room is taken once where it is known how much will be needed; else not often, and a window's is bounded.
TEST(KeyValues, MemoryStaysWhereItIs) {
  const auto taken = [](const Case& c, std::int64_t blocks, std::int64_t* room = nullptr) {
    KeyValues kept = empty(c);
    const at::Tensor one = at::ones({kSequences, kTokens, kWidth});
    int times = 0;
    for (std::int64_t b = 0; b < blocks; ++b) {
      times += kept.make_room(1);
      kept.write(0, 0, one, one), kept.advance(1);
    }
    if (room != nullptr) *room = kept.room() / kTokens;
    return times;
  };
  std::int64_t room = 0;
  EXPECT_EQ(taken({.window = 0, .blocks = 50}, 50, &room), 1);
  EXPECT_EQ(room, 50);
  EXPECT_LE(taken({.window = 0, .blocks = 0}, 100), 7);
  EXPECT_EQ(taken({.window = 3, .blocks = 0}, 100, &room), 1);
  EXPECT_EQ(room, 6);
  EXPECT_EQ(taken({.window = 30, .blocks = 9}, 9, &room), 1);
  EXPECT_EQ(room, 9);
}

// As a graph reads them: rows and lengths as numbers, of evaluations one after another in one memory.
TEST(KeyValues, PlacesAreWhatIsSeen) {
  constexpr std::int64_t heads = 2;
  for (const Case& c : cases()) {
    KeyValues kept = empty(c);
    const at::Tensor all = some();
    std::int64_t b = 0;
    for (const std::int64_t n : c.chunks) {
      kept.make_room(n);
      for (const auto& [first, R] : {std::pair<std::int64_t, std::int64_t>{0, 2}, {2, 3}}) {
        KeyValues::Places places = kept.places(R, n), buffers = kept.places(R, n);
        kept.shift(places, first, buffers);
        for (std::int64_t l = 0; l < kLayers; ++l) {
          const at::Tensor k = all[l].narrow(0, first, R).narrow(1, b * kTokens, n * kTokens);
          const at::Tensor rows = k.reshape({R * n, kTokens, kWidth});
          kept.write(l, buffers, rows, -rows);
          const at::Tensor q = at::randn({R * n, kTokens, kWidth});
          const at::Tensor answer = kept.attend(l, buffers, q, heads).view({R, n, kTokens, kWidth});
          for (std::int64_t i = 0; i < n; ++i) {
            const at::Tensor keys = seen(all, l, c.window, b + i).narrow(0, first, R);
            const at::Tensor expected =
                attend(q.view({R, n, kTokens, kWidth}).select(1, i), keys, -keys, heads);
            EXPECT_TRUE(at::allclose(answer.select(1, i), expected, 1e-5, 1e-6)) << b + i;
          }
        }
      }
      kept.advance(n), b += n;
    }
  }
}

TEST(SpanAttention, RefusesWhatDoesNotFit) {
  const at::Tensor q = at::randn({2, 3, 8}), k = at::randn({20, 8});
  const at::TensorOptions numbers(at::kInt);
  const ops::Spans good{at::tensor({0, 3, 6}, numbers), at::tensor({0, 10, 0}, numbers),
                        at::tensor({20, 5}, numbers), 20};
  EXPECT_EQ(ops::span_attention(q, k, k, 2, good).sizes(), q.sizes());
  const auto refused = [&](const auto& change) {
    ops::Spans spans = good;
    change(spans);
    EXPECT_THROW(ops::span_attention(q, k, k, 2, spans), Error);
  };
  refused([](ops::Spans& s) { s.rows = at::tensor({20, 11}, at::kInt); });  // beyond the memory
  refused([](ops::Spans& s) { s.rows = at::tensor({20, 0}, at::kInt); });
  refused([](ops::Spans& s) { s.most = 19; });
  refused([](ops::Spans& s) { s.first = s.first.to(at::kLong); });
  refused([](ops::Spans& s) { s.rows = at::tensor({20}, at::kInt); });
  EXPECT_THROW(ops::span_attention(q, k, k, 3, good), Error);
  EXPECT_THROW(ops::span_attention(q, k, k.narrow(0, 0, 19), 2, good), Error);
}

}  // namespace
}  // namespace pom::nn
