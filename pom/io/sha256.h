// SHA-256 (FIPS 180-4), with the processor's own instructions where it has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace pom::io {

// Sha256 hash; hash.update(...); hash.update(...); hash.hex();
class Sha256 {
 public:
  using Digest = std::array<std::byte, 32>;
  enum class Code { fastest, portable };  // they agree; portable is there to be tested on any machine

  explicit Sha256(Code code = Code::fastest);

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }

  // Of all bytes so far; more may follow.
  Digest digest() const;
  std::string hex() const;  // 64 digits in lower case

 private:
  static constexpr std::size_t block_bytes = 64;
  using State = std::array<std::uint32_t, 8>;
  using Compress = void (*)(State& state, const std::byte* blocks, std::size_t count);
  static void compress_portable(State& state, const std::byte* blocks, std::size_t count);
  static void compress_sha_ni(State& state, const std::byte* blocks, std::size_t count);
  static Compress fastest();

  Compress compress_;
  State state_;
  std::uint64_t size_ = 0;
  std::array<std::byte, block_bytes> rest_;  // the size_ % 64 bytes that fill no block yet
};

// The hash of a file's bytes, in hexadecimal digits.
std::string sha256_file(const std::filesystem::path& path);

}  // namespace pom::io
