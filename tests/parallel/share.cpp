#include "pom/parallel/share.h"

#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::parallel {
namespace {

TEST(Share, FirstPartsGetOneMore) {
  EXPECT_EQ(share_counts(10, 4), (std::vector<std::int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(share_counts(8, 4), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(share_counts(2, 4), (std::vector<std::int64_t>{1, 1, 0, 0}));
}

TEST(Share, WholeUnitsTheLastOneShort) {
  EXPECT_EQ(share_counts(22, 2, 4), (std::vector<std::int64_t>{12, 10}));
  EXPECT_EQ(share_counts(12, 2, 4), (std::vector<std::int64_t>{8, 4}));
}

TEST(Share, PartsFollowEachOther) {
  for (std::int64_t total = 0; total < 40; ++total)
    for (std::int64_t parts = 1; parts < 7; ++parts)
      for (std::int64_t unit = 1; unit < 5; ++unit) {
        std::int64_t next = 0;
        for (std::int64_t p = 0; p < parts; ++p) {
          const Share share = share_of(total, parts, p, unit);
          ASSERT_EQ(share.first, next);
          ASSERT_TRUE(share.first % unit == 0 || share.first == total);
          next = share.end();
        }
        ASSERT_EQ(next, total);
      }
}

TEST(Share, Mistakes) {
  EXPECT_THROW(share_of(3, 2, 2), Error);
  EXPECT_THROW(share_of(3, 0, 0), Error);
  EXPECT_THROW(share_of(-1, 1, 0), Error);
  EXPECT_THROW(share_of(3, 1, 0, 0), Error);
}

}  // namespace
}  // namespace pom::parallel
