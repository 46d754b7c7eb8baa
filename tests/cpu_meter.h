// An allocator that counts: what torch's tensors on a CPU take at the most.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <c10/core/CPUAllocator.h>

namespace pom::tests {

inline std::atomic<std::int64_t> live{0}, most{0};

// Stands in for torch's allocator for CPUs as long as it lives, oneDNN's buffers included: each block has its
// size in front.
class Meter : public c10::Allocator {
 public:
  Meter() : before_(c10::GetCPUAllocator()) {
    live = 0, most = 0;
    c10::SetCPUAllocator(this, priority);
  }
  ~Meter() override { c10::SetCPUAllocator(before_, priority); }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &give_back, c10::kCPU};
    auto* block = static_cast<char*>(std::aligned_alloc(front, (bytes + 2 * front - 1) / front * front));
    std::memcpy(block, &bytes, sizeof(bytes));
    const std::int64_t now = live += static_cast<std::int64_t>(bytes);
    for (std::int64_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    return {block + front, block + front, &give_back, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
  std::int64_t peak() const { return most; }
  std::int64_t now() const { return live; }
  void start_again() { most = live.load(); }

 private:
  static constexpr std::uint8_t priority = 255;
  static constexpr std::size_t front = 64;
  static void give_back(void* data) {
    if (data == nullptr) return;
    char* block = static_cast<char*>(data) - front;
    std::size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof(bytes));
    live -= static_cast<std::int64_t>(bytes);
    std::free(block);
  }
  c10::Allocator* before_;
};

}  // namespace pom::tests
