// The parts of `pom bench` that are no matter of speed: who is timed and who is not, what is forecast, which
// products there are, and what is drawn.
#include "cli/bench/bench.h"

#include <cmath>
#include <gtest/gtest.h>
#include <new>

#include <c10/util/Exception.h>

#include "cli/bench/gemms.h"
#include "cli/bench/report.h"
#include "cli/bench/svg.h"
#include "pom/base/error.h"
#include "pom/models/counts.h"

namespace pom::cli {
namespace {

Timing timing_of(std::vector<double> seconds) {
  return {.seconds = std::move(seconds)};
}

TEST(Timing, MedianAndSpread) {
  EXPECT_DOUBLE_EQ(timing_of({3, 1, 2}).median(), 2);
  EXPECT_DOUBLE_EQ(timing_of({4, 1, 2, 3}).median(), 2.5);
  EXPECT_DOUBLE_EQ(timing_of({5}).spread(), 0);
  // The 10th and the 90th of 1 … 11 are 2 and 10.
  EXPECT_DOUBLE_EQ(timing_of({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}).spread(), 4.0 / 6);
}

Contender counting(int& calls) {
  return {[&calls] { return [&calls] { ++calls; }; }};
}

template <class Thrown>
Contender throwing(const Thrown& thrown) {
  return {[thrown] { return Call([thrown] { throw thrown; }); }};
}

TEST(Interleave, CallsEveryoneTheSameNumberOfRounds) {
  int first = 0, second = 0;
  const std::vector<Timing> timings =
      interleave({counting(first), counting(second)}, {.budget = 0, .least = 4});
  ASSERT_EQ(timings.size(), 2U);
  EXPECT_EQ(timings[0].seconds.size(), 4U);
  EXPECT_EQ(timings[1].seconds.size(), 4U);
  EXPECT_GT(first, 4);  // with those that warm up
  EXPECT_GT(second, 4);
}

TEST(Interleave, WhoDoesNotFitOrFailsLeavesTheOthersAlone) {
  int calls = 0;
  const std::vector<Timing> timings =
      interleave({throwing(std::bad_alloc()), throwing(Error("layer: refused")), counting(calls),
                  Contender{nullptr, "skipped: because"}},
                 {.budget = 0});
  EXPECT_EQ(timings[0].note, "out of memory");
  EXPECT_FALSE(timings[0].failed);
  EXPECT_EQ(timings[1].note, "failed: layer: refused");
  EXPECT_TRUE(timings[1].failed);
  EXPECT_TRUE(timings[2].measured());
  EXPECT_EQ(timings[3].note, "skipped: because");
  EXPECT_FALSE(timings[3].failed);
  for (const std::size_t i : {0U, 1U, 3U}) EXPECT_FALSE(timings[i].measured());
}

TEST(Interleave, OneThatFailsLaterHasNoTimes) {
  int calls = 0;
  const Contender late{[&calls] {
    return [&calls] {
      if (++calls > 5) TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: 1 byte");
    };
  }};
  const std::vector<Timing> timings = interleave({late}, {.budget = 0, .least = 50});
  EXPECT_FALSE(timings[0].measured());
  EXPECT_EQ(timings[0].note, "out of memory");
}

TEST(Interleave, StopsWhereAskedTo) {
  const std::atomic<bool> stop = true;
  int calls = 0;
  EXPECT_THROW(interleave({counting(calls)}, {.stop = &stop}), BenchStopped);
  EXPECT_EQ(calls, 0);
}

TEST(Forecast, SkipsWhatWouldTakeTooLong) {
  Forecast linear, square(1024);
  EXPECT_EQ(linear.skip(1 << 20, 4, 0), "");  // nothing is known
  linear.learn(1024, 4, timing_of({0.4}));
  square.learn(1024, 4, timing_of({0.4}));
  EXPECT_EQ(linear.skip(4096, 4, 1.7), "");
  EXPECT_EQ(linear.skip(4096, 4, 1.5), "skipped: about 1.60 s a call");
  EXPECT_EQ(linear.skip(4096, 1, 0.5), "");  // 0.4 s: as many tokens in all
  EXPECT_EQ(square.skip(1024, 8, 0.7), "skipped: about 0.80 s a call");
  EXPECT_EQ(square.skip(3072, 4, 2.3), "skipped: about 2.40 s a call");  // 3 (1 + 3) to 1 (1 + 1)
  square.learn(3072, 4, timing_of({1.2}));
  EXPECT_EQ(square.skip(3072, 4, 1.3), "");
  square.learn(3072, 4, {.note = "out of memory"});  // teaches nothing
  EXPECT_EQ(square.skip(3072, 4, 1.1), "skipped: about 1.20 s a call");
}

models::NetworkConfig network(const char* mixer) {
  models::NetworkConfig config;
  config.dim = 24, config.depth = 3, config.heads = 2, config.mixer = mixer, config.order = 3;
  return config;
}

TEST(Gemms, AreThoseThatTheNetworkCounts) {
  const models::NetworkConfig pom = network("pom"), attention = network("attention");
  const std::int64_t side = 5, n = side * side, latent = side * pom.patch;
  const auto flops = [&](const models::NetworkConfig& config) {
    return forward_flops(token_gemms(config, n, 1)) + forward_flops(condition_gemms(config, 1));
  };
  const auto counted = [&](const models::NetworkConfig& config) {
    return 2 * static_cast<double>(models::count_macs(config, latent, latent));
  };
  EXPECT_EQ(flops(pom), counted(pom));
  const std::int64_t scores = 2 * 2 * n * n * attention.dim * attention.depth;  // no products of weights
  EXPECT_EQ(flops(attention), counted(attention) - static_cast<double>(scores));
  EXPECT_EQ(forward_flops(token_gemms(pom, n, 7)), 7 * forward_flops(token_gemms(pom, n, 1)));
}

// A clip's text is read once for all blocks: its products are of the conditions.
TEST(Gemms, OfClipsAreThoseThatTheNetworkCounts) {
  models::NetworkConfig clips = network("pom");
  clips.kind = "vdipom", clips.patch_time = 2, clips.text_width = 9;
  const std::int64_t side = 5, n = side * side, latent = side * clips.patch, d = clips.dim;
  const double conditions = 2.0 * static_cast<double>((8 + 11 * clips.depth + 2) * d * d);
  EXPECT_EQ(forward_flops(condition_gemms(clips, 1, 0)), conditions);
  EXPECT_EQ(forward_flops(token_gemms(clips, n, 1)) + conditions,
            2 * static_cast<double>(models::count_macs(clips, latent, latent)));
  const std::int64_t words = 7;
  EXPECT_EQ(forward_flops(condition_gemms(clips, 2, words)) - 2 * conditions,
            2.0 * static_cast<double>(2 * words * d * (clips.text_width + clips.depth * clips.features())));
}

TEST(Svg, APanelOfItsOwnKindHasItsOwnAxis) {
  const std::string svg =
      plot_svg({.title = "t",
                .subtitle = "",
                .x_label = "tokens",
                .panels = {{"p", {{"one", {{64, 2}}}}}, {"q", {{"one", {{3, 2}}}}, "blocks"}}});
  const auto count = [&](const std::string& text) {
    std::size_t found = 0, n = 0;
    while ((found = svg.find(text, found)) != std::string::npos) ++found, ++n;
    return n;
  };
  EXPECT_EQ(count(">64<"), 1U);
  EXPECT_EQ(count(">3<"), 1U);
  EXPECT_EQ(count(">tokens<"), 1U);
  EXPECT_EQ(count(">blocks<"), 1U);
}

TEST(Gemms, RunInEveryDtypeOfTheProcessor) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Gemms gemms({{5, 8, 16}, {5, 16, 3, false}}, dtype, at::kCPU);
    EXPECT_NO_THROW(gemms.forward());
    EXPECT_NO_THROW(gemms.forward_backward());
  }
}

TEST(Table, RatiosAndWhatIsMissing) {
  BenchRow row{.tokens = 256, .batch = 4};
  row.gemms = timing_of({0.004}), row.pom = timing_of({0.005});
  row.attention.note = "out of memory";
  const std::string line = BenchTable().line(row);
  EXPECT_NE(line.find(" 1.000 ±0.0% |"), std::string::npos) << line;
  EXPECT_NE(line.find(" 1.250 ±0.0% | out of memory |        1.250 |             - |"), std::string::npos)
      << line;
  row.flops = 2.5e9;
  EXPECT_NE(BenchTable(4e12).line(row).find("|   2.000 |   50.0% |"), std::string::npos)
      << BenchTable(4e12).line(row);
}

TEST(Command, SaysWhatIsNotTheDefault) {
  BenchOptions options;
  options.what = "figure1";
  EXPECT_EQ(typed_command(options), "pom bench figure1");
  options.tokens = {64, 256}, options.ffw_expand = 2, options.no_backward = true, options.budget = 0.5;
  options.device = "cuda";
  EXPECT_EQ(typed_command(options),
            "pom bench figure1 --tokens 64,256 --no-backward --ffw-expand 2 --device cuda --budget 0.5");
}

TEST(Svg, EscapesAndLeavesOutWhatIsEmpty) {
  const std::string svg = plot_svg({.title = "a < b & \"c\"",
                                    .subtitle = "",
                                    .x_label = "x",
                                    .panels = {{"p", {{"none", {}}, {"one", {{4, 2}}}}}, {"q", {}}}});
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(svg.find("a < b"), std::string::npos);
  EXPECT_EQ(svg.find(">none<"), std::string::npos);
  EXPECT_NE(svg.find(">one<"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace pom::cli
