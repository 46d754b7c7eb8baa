#include "pom/io/sha256.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "pom/base/error.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
alignas(16) constexpr std::uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const std::byte* bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

// The 16 words of a block and the 48 that follow from them.
void schedule(const std::byte* block, std::uint32_t (&words)[64]) {
  for (int i = 0; i < 16; ++i) words[i] = big_endian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + words[i - 7] +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
}

}  // namespace

void Sha256::compress_portable(State& state, const std::byte* blocks, std::size_t count) {
  for (; count > 0; --count, blocks += block_bytes) {
    std::uint32_t words[64];
    schedule(blocks, words);
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; ++i) {
      const std::uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                  ((e & f) ^ (~e & g)) + constants[i] + words[i];
      const std::uint32_t second =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first;
      d = c, c = b, b = a, a = first + second;
    }
    const State added = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
  }
}

#if defined(__x86_64__)

// The instructions hold the state as (a, b, e, f) and (c, d, g, h) from the highest lane to the lowest, and
// do two rounds with the sums of two words and constants in the low lanes of the third operand.
__attribute__((target("sha,sse4.1,ssse3"))) void Sha256::compress_sha_ni(State& state,
                                                                         const std::byte* blocks,
                                                                         std::size_t count) {
  const __m128i swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  const auto lane = [&](int i) { return static_cast<int>(state[static_cast<std::size_t>(i)]); };
  __m128i abef = _mm_set_epi32(lane(0), lane(1), lane(4), lane(5));
  __m128i cdgh = _mm_set_epi32(lane(2), lane(3), lane(6), lane(7));
  for (; count > 0; --count, blocks += block_bytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];  // the last 16 of the schedule, four to a register
    for (int i = 0; i < 4; ++i)
      words[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + i), swap);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& now = words[i % 4];
      if (i >= 4) {
        const __m128i newest = words[(i + 3) % 4];
        const __m128i seven_ago = _mm_alignr_epi8(newest, words[(i + 2) % 4], 4);
        now = _mm_add_epi32(_mm_sha256msg1_epu32(now, words[(i + 1) % 4]), seven_ago);
        now = _mm_sha256msg2_epu32(now, newest);
      }
      const __m128i sums =
          _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(constants) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sums);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sums, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) std::uint32_t first[4], second[4];
  _mm_store_si128(reinterpret_cast<__m128i*>(first), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(second), cdgh);
  state = {first[3], first[2], second[3], second[2], first[1], first[0], second[1], second[0]};
}

Sha256::Compress Sha256::fastest() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned ssse3 = 1u << 9, sse41 = 1u << 19, sha = 1u << 29;
  const bool has_sse = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & ssse3) != 0 && (c & sse41) != 0;
  const bool has_sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & sha) != 0;
  return has_sse && has_sha ? compress_sha_ni : compress_portable;
}

#else

Sha256::Compress Sha256::fastest() {
  return compress_portable;
}

#endif

Sha256::Sha256(Code code)
    : compress_(code == Code::portable ? compress_portable : fastest()),
      // The first 32 bits of the fractions of the square roots of the first 8 primes.
      state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      rest_{} {}

void Sha256::update(std::span<const std::byte> bytes) {
  const std::size_t waiting = size_ % block_bytes;
  size_ += bytes.size();
  if (waiting > 0) {
    const std::size_t taken = std::min(bytes.size(), block_bytes - waiting);
    std::copy_n(bytes.begin(), taken, rest_.begin() + static_cast<std::ptrdiff_t>(waiting));
    bytes = bytes.subspan(taken);
    if (waiting + taken < block_bytes) return;
    compress_(state_, rest_.data(), 1);
  }
  compress_(state_, bytes.data(), bytes.size() / block_bytes);
  std::ranges::copy(bytes.last(bytes.size() % block_bytes), rest_.begin());
}

Sha256::Digest Sha256::digest() const {
  // A one bit, zeros, and the number of bits in the last 8 bytes of a block.
  Sha256 ending = *this;
  std::array<std::byte, 2 * block_bytes> padding = {std::byte{0x80}};
  const std::size_t filled = size_ % block_bytes;
  const std::size_t length = (filled < block_bytes - 8 ? block_bytes : 2 * block_bytes) - filled;
  for (std::size_t i = 0; i < 8; ++i) padding[length - 1 - i] = static_cast<std::byte>(size_ * 8 >> (8 * i));
  ending.update(std::span(padding).first(length));
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::byte>(ending.state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string Sha256::hex() const {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : digest()) {
    text += digits[std::to_integer<std::size_t>(byte >> 4)];
    text += digits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::string sha256_file(const std::filesystem::path& path) {
  const detail::FileDescriptor file = detail::open_for_reading(path, "sha256");
  std::vector<std::byte> block(std::size_t{1} << 20);
  Sha256 hash;
  for (;;) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, "sha256: ", path.string(), ": cannot read: ", detail::errno_text(errno));
    if (got == 0) return hash.hex();
    hash.update(std::span(block).first(static_cast<std::size_t>(got)));
  }
}

}  // namespace pom::io
