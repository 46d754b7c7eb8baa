// Private to this folder: torch's CUDA device in host memory, for a torch without CUDA. What libc10_cuda and
// libtorch_cuda would bring, as far as libpom and its tests use it, on the runtime in tests/emulated.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>

namespace emulated {

// While one lives, what torch's CPU operations of this thread allocate is memory of the device.
class AllocatesOnDevice {
 public:
  explicit AllocatesOnDevice(bool yes);
  ~AllocatesOnDevice();
  AllocatesOnDevice(const AllocatesOnDevice&) = delete;
  AllocatesOnDevice& operator=(const AllocatesOnDevice&) = delete;

 private:
  bool before_;
};

c10::Allocator* pinned_memory();
bool is_pinned(const void* data);

// What all of the device's memory holds, to be put back: a capture only records, but here it runs as well.
class MemoryImage {
 public:
  MemoryImage();
  void put_back() const;

 private:
  struct Block {
    void* data;
    std::vector<char> bytes;
  };
  std::vector<Block> blocks_;
};

const at::Generator& generator();

// Whether what the current stream is given becomes part of a graph; and what is to be done again with it.
bool capturing();
void record(std::function<void()> work);

}  // namespace emulated
