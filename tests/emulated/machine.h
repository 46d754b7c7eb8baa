// A GPU that is not there: the threads of a kernel are fibers of one CPU thread, which take turns where they
// wait for each other. Blocks of a cluster run at the same time, other blocks start when those that run can't
// go on, up to as many as the machine has SMs. What the copy engine and the tensor cores are asked for
// happens late: copies when the scheduler gets to them, products when their warpgroup waits for them; so who
// reads too early reads something else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace emulated {

// A kernel's own memory and place. `threadIdx` and the others read them.
struct Block;
struct Thread {
  uint3 index{};
  int number = 0;  // in its block
  Block* block = nullptr;
};
extern Thread* now;  // the one that runs; of one grid at a time
const uint3& block_index();
const dim3& block_size();
const dim3& grid_size();
unsigned cluster_rank();
template <class T, const T& (*of)()>
struct Coordinates {
  struct X {
    operator unsigned() const { return of().x; }
  } x;
  struct Y {
    operator unsigned() const { return of().y; }
  } y;
  struct Z {
    operator unsigned() const { return of().z; }
  } z;
};
inline const uint3& thread_index() {
  return now->index;
}

// ---- shared memory: 32-bit addresses as the hardware has them, valid in every block of a cluster ----

void* dynamic_shared();
void* static_shared(const void* declaration, std::size_t bytes);
uint32_t shared_address(const void* p);
void* shared_memory(uint32_t address);                 // of this block
void* shared_memory(uint32_t address, unsigned rank);  // of another block of the cluster

// ---- waiting ----

void sync_block(int barrier, int threads);  // threads 0: all that still live
void arrive_block(int barrier, int threads);
void sync_warp(unsigned mask);
void sync_cluster();
void yield();  // somebody else's memory is looked at again later
// The value that lane `from` of the mask gave; lanes beyond 31 give one's own.
uint64_t exchange(unsigned mask, uint64_t value, int from);
int lane();

// ---- barriers in shared memory ----

void barrier_init(uint32_t address, uint32_t arrivals);
void barrier_arrive(uint32_t address, unsigned rank, int64_t expected_bytes);
void barrier_complete(uint32_t address, unsigned rank, int64_t bytes);
void barrier_wait(uint32_t address, uint32_t parity);

// ---- the copy engine and the tensor cores ----

struct Map {  // what a CUtensorMap holds here
  const uint8_t* base;
  uint64_t sizes[5], pitches[5];  // in values; in bytes, the first of them the size of a value
  uint32_t box[5];
  uint32_t rank, swizzled;
};
static_assert(sizeof(Map) <= 128);

void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier);
void copy_box(const Map& map, uint32_t to, uint32_t barrier, std::array<int, 5> at,
              unsigned blocks);                                        // a mask
void copy_line(uint32_t to, const void* from, int bytes, int inside);  // cp.async: 16 bytes of one thread
void commit_lines();
void wait_lines(int pending);

enum class Values { bf16, fp16, e4m3 };
void product(float* d, uint64_t a, uint64_t b, bool keep, int columns, Values values);
void commit_products();
void wait_products(int pending);

// ---- launching ----

struct Shape {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;
};
cudaError_t submit(cudaStream_t stream, std::function<void()> work);  // now, or into a graph
cudaError_t launch(const Shape& shape, std::function<void()> thread);
unsigned processors();

template <class Kernel, class... A>
requires(!std::is_function_v<std::remove_pointer_t<Kernel>>) cudaError_t
    start(const Shape& shape, Kernel kernel, A... arguments) {
  return launch(shape, [kernel, given = std::tuple<A...>(arguments...)] { std::apply(kernel, given); });
}
template <class... P>
cudaError_t start(const Shape& shape, void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  return launch(shape, [kernel, given = std::tuple<P...>(arguments...)] { std::apply(kernel, given); });
}

}  // namespace emulated
