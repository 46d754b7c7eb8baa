#include "pom/data/mirror.h"

#include <algorithm>

#include "pom/base/noise.h"
#include "pom/data/streams.h"

namespace pom::data {

bool is_mirrored(std::uint64_t seed, std::int64_t index, std::int64_t visit) {
  // One word holds 32 visits of an example, so that an index may have 40 bits and a visit 27.
  const std::int64_t word = (index & ((std::int64_t{1} << 41) - 1)) | (visit / 32) << 41;
  const std::uint32_t bits = bits_at({seed, noise_for::data_content, streams::mirror}, word);
  return (bits >> (visit % 32) & 1) != 0;
}

void mirror(std::span<std::uint8_t> planes, std::int64_t width) {
  for (auto row = planes.begin(); row != planes.end(); row += width) std::reverse(row, row + width);
}

}  // namespace pom::data
