// Tests of the sizes of batches.
#include "pom/serve/batch_size.h"

#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::serve {
namespace {

using Sizes = std::vector<std::int64_t>;

TEST(BatchSize, AnyOnACpu) {
  EXPECT_TRUE(batch_sizes("cpu", "fp32").empty());
  for (const std::int64_t waiting : {1, 3, 7}) EXPECT_EQ(batch_size(waiting, 100, {}), waiting);
  EXPECT_EQ(batch_size(7, 4, {}), 4);
}

TEST(BatchSize, AFewOnAGpu) {
  const Sizes sizes = batch_sizes("cuda:1", "bf16");
  EXPECT_EQ(sizes, (Sizes{1, 4, 16, 64}));
  EXPECT_EQ(batch_sizes("cuda:0", "fp8"), (Sizes{1}));
  const std::vector<std::pair<std::int64_t, std::int64_t>> expected = {
      {1, 1},   {2, 4},   {4, 4},   {5, 4},   {7, 4},   {8, 16},
      {16, 16}, {17, 16}, {31, 16}, {32, 64}, {64, 64}, {500, 64}};
  for (const auto& [waiting, size] : expected) EXPECT_EQ(batch_size(waiting, 1000, sizes), size) << waiting;
  EXPECT_EQ(batch_size(64, 63, sizes), 16);  // what fits
  EXPECT_EQ(batch_size(64, 2, sizes), 1);
}

TEST(BatchSize, AsFlagsSayThem) {
  EXPECT_EQ(parse_batch_sizes("1,4,16,64", "x"), (Sizes{1, 4, 16, 64}));
  EXPECT_EQ(parse_batch_sizes("8", "x"), (Sizes{8}));
  for (const char* wrong : {"", ",", "1,", "0,4", "4,1", "1,1", "1 4", "x", "1,2000", "1;4", "1x", "1,4;"})
    EXPECT_THROW(parse_batch_sizes(wrong, "x"), Error) << wrong;
}

}  // namespace
}  // namespace pom::serve
