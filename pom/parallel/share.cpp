#include "pom/parallel/share.h"

#include <algorithm>

#include "pom/base/error.h"

namespace pom::parallel {

Share share_of(std::int64_t total, std::int64_t parts, std::int64_t part, std::int64_t unit) {
  check(total >= 0, "share: total: expected at least 0, got ", total);
  check(unit >= 1, "share: unit: expected at least 1, got ", unit);
  check(parts >= 1 && part >= 0 && part < parts, "share: part: expected one of ", parts, " from 0 on, got ",
        part);
  const std::int64_t wholes = (total + unit - 1) / unit, each = wholes / parts, more = wholes % parts;
  const auto begin = [&](std::int64_t p) { return std::min(total, (p * each + std::min(p, more)) * unit); };
  return {begin(part), begin(part + 1) - begin(part)};
}

std::vector<std::int64_t> share_counts(std::int64_t total, std::int64_t parts, std::int64_t unit) {
  std::vector<std::int64_t> counts;
  for (std::int64_t p = 0; p < parts; ++p) counts.push_back(share_of(total, parts, p, unit).count);
  return counts;
}

}  // namespace pom::parallel
