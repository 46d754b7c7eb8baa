// The step of a stack, first part: what the host lays down for the kernel, what a block keeps in shared
// memory, and the ring of weights with the warps that fill it. Letters as in stack_step.h.
#pragma once

#include <cstdint>

#include "pom/kernels/sm90/decode/stack_step.h"
#include "pom/kernels/sm90/hopper.cuh"

namespace pom::kernels::stack {

constexpr int kWarps = 12, kWorkers = 32 * kWarps, kInputs = 32;
constexpr int kCopiers = 3;                            // warps
constexpr int kThreads = kWorkers + 128;               // registers are dealt to four warps at a time
constexpr int kSteps = 3;                              // of a warp in a chunk, each of 32 inputs
constexpr int kChunkUnit = kWarps * kInputs;           // inputs of a chunk are a multiple
constexpr int kLayers = 64, kSlots = 32, kPhases = 4;  // at most, of a launch
constexpr int kLines = 8;                              // that a product of the tensor cores takes
constexpr int kMostRound = 3;                          // slots that are read together, or on their way
constexpr int kMostGroup = 2 * kLines;                 // lines of a slot
constexpr int kNormChunks = 2, kInnerChunks = 8;       // at most
constexpr int kRows = static_cast<int>(kMostStackRows);

// What the blocks share in a phase: `base` units for each and one more for the first `extra`.
struct Phase {
  int base, extra;
  int lines;     // of a unit: 2 k of a feature, else 1
  int group[2];  // lines of a slot for a block with base, base + 1 units
  int inputs, chunk, chunks, steps;
};

struct Plan {
  int rows, width, features, hidden, order, layers;
  int slots, slot_bytes, pitch;  // pitch: bytes from line to line of a slot
  int turn;                      // by how much the slices move on from phase to phase
  int sums_at[2];                // bytes in shared memory, for phases in turn
  int rest_at;
  bool passing;  // the weights do not stay in the cache
  Phase phases[kPhases];
  float eps, inverse;  // inverse: 1 / d
  int64_t modulation_stride;
  float* x;
  // What blocks tell each other, `copies` times, for every layer: x before its halves, o, and what is between
  // the layers of the feed-forward; a row takes a multiple of 32 values.
  int copies, stream_pitch, stream_copy, inner_copy;  // values, from row to row or from copy to copy
  int inner_pitch[2];
  uint32_t* stream;
  uint16_t* inner;
  StackLayer layer[kLayers];
};

// Of shared memory, behind the ring and the sums: barriers and statistics.
struct Share {
  float mean, squares;
};
struct Rest {
  uint64_t full[kSlots], empty[kSlots];
  // Of what a warp has of a row: mean and squares about it; how many values, and 1 / that or 0.
  alignas(16) Share shares[kRows][kWarps];
  float counts[kWarps], inverses[kWarps];
};

__device__ __forceinline__ uint8_t* shared_memory() {
  extern __shared__ uint4 raw[];
  return reinterpret_cast<uint8_t*>(raw);
}
__device__ __forceinline__ Rest& rest_of(const Plan& p) {
  return *reinterpret_cast<Rest*>(shared_memory() + p.rest_at);
}

// ---- where the time goes ----

enum Event { kPhaseBegins, kWordsSeen, kNormed, kMultiplied, kMet, kStored, kWeightsWaited, kEvents };
#ifdef POM_STEP_TRACE
constexpr int kTraceBlocks = 160;
struct Trace {
  long long cycles[kTraceBlocks][kPhases][kEvents], nanoseconds[kTraceBlocks][kPhases][kEvents];
};
static __device__ Trace trace;
static __device__ int trace_layer;

__device__ __forceinline__ void note(int layer, int which, Event event, long long value = 0) {
  if (threadIdx.x != 0 || blockIdx.x >= kTraceBlocks || layer != trace_layer) return;
  long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  trace.cycles[blockIdx.x][which][event] = value ? value : clock64();
  trace.nanoseconds[blockIdx.x][which][event] = now;
}
#else
__device__ __forceinline__ void note(int, int, Event) {}
#endif

// ---- the ring ----

__device__ __forceinline__ uint64_t copy_policy(bool passing) {
  uint64_t policy;
  if (passing)
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_line(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(hopper::shared_address(to)),
      "l"(from), "r"(bytes), "r"(hopper::shared_address(barrier)), "l"(policy)
      : "memory");
}
// What the threads of a warp read of a slot is in registers. An arrival alone does not wait for that: with
// more than four rows reads of a slot queued behind other warps' reads of values, and the next copy was
// faster.
__device__ __forceinline__ void slot_is_read() {
  hopper::reads_done();
  __syncwarp();
}
__device__ __forceinline__ void give_back(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(hopper::shared_address(barrier)) : "memory");
}

// What both sides walk through in the same order: slots, and the slices of phases.
struct Walk {
  int at;  // the slice of this block
  int slot = 0;
  uint32_t parity = 0;
#ifdef POM_STEP_TRACE
  long long waited = 0;
#endif

  __device__ void next_slot(const Plan& p) {
    if (++slot == p.slots) slot = 0, parity ^= 1;
  }
  __device__ uint64_t* full(const Plan& p) const {
    return rest_of(p).full + slot;
  }
  __device__ uint64_t* empty(const Plan& p) const {
    return rest_of(p).empty + slot;
  }
  __device__ uint8_t* memory(const Plan& p) const {
    return shared_memory() + slot * p.slot_bytes;
  }
  __device__ void wait_full(const Plan& p) {
#ifdef POM_STEP_TRACE
    const long long from = clock64();
    hopper::barrier_wait(full(p), parity);
    waited += clock64() - from;
#else
    hopper::barrier_wait(full(p), parity);
#endif
  }
  __device__ void next_phase(const Plan& p) {
    at += p.turn;
    if (at >= static_cast<int>(gridDim.x)) at -= static_cast<int>(gridDim.x);
  }
};

#ifdef POM_STEP_TRACE
__device__ __forceinline__ void note_waits(int layer, int which, Walk& walk) {
  note(layer, which, kWeightsWaited, max(walk.waited, 1ll)), walk.waited = 0;
}
#else
__device__ __forceinline__ void note_waits(int, int, Walk&) {}
#endif

struct Slice {
  int first, units, lines, group;
  __device__ Slice(const Phase& phase, const Walk& walk) {
    const bool more = walk.at < phase.extra;
    first = phase.base * walk.at + min(walk.at, phase.extra), units = phase.base + more;
    lines = units * phase.lines, group = phase.group[more];
  }
};

__device__ __forceinline__ const uint8_t* line_at(const Plan& p, int layer, int which, const Slice& slice,
                                                  int line) {
  const StackLayer& l = p.layer[layer];
  const void* matrix = which == 1 ? l.out : which == 2 ? l.up : l.down;
  int row = slice.first + line;
  if (which == 0) {
    const int feature = line / (2 * p.order), factor = line % (2 * p.order);
    matrix = factor < p.order ? l.context : l.gate;
    row = (factor < p.order ? factor : factor - p.order) * p.features + slice.first + feature;
  }
  return static_cast<const uint8_t*>(matrix) + static_cast<int64_t>(row) * p.phases[which].inputs * 2;
}

// Slots that may be on their way at a time, for each warp that copies: 2 2/3 with one row, else 2. More would
// only queue up in front of what the blocks tell each other: a word of those then takes as long as everything
// that was asked for before it. With fewer the memory rests.
__device__ __forceinline__ int flight_of(int rows, int copier) {
  return rows == 1 && copier > 0 ? 3 : 2;
}

// Several warps share the lines of a slot, because a copy takes a warp some 60 cycles to begin. Each has its
// arrival at every slot, with or without lines: so none is a round ahead or behind.
__device__ __forceinline__ void copy_weights(const Plan& p, Walk walk, int copier, int lane) {
  const uint64_t policy = copy_policy(p.passing);
  const int mine = copier + kCopiers * lane;  // line
  Walk behind = walk;  // the slot that has to be there before the next one is asked for
  const int flight = flight_of(p.rows, copier);
  int begun = 0;
#pragma unroll 1
  for (int layer = 0; layer < p.layers; ++layer)
#pragma unroll 1
    for (int which = 0; which < kPhases; ++which, walk.next_phase(p)) {
      const Phase& phase = p.phases[which];
      const Slice slice(phase, walk);
#pragma unroll 1
      for (int first = 0; first < slice.lines; first += slice.group) {
        const int lines = min(slice.group, slice.lines - first);
        const int share = (lines - copier + kCopiers - 1) / kCopiers;  // lines of this warp
        const uint8_t* const from = line_at(p, layer, which, slice, first + min(mine, lines - 1));
#pragma unroll 1
        for (int k = 0; k < phase.inputs; k += phase.chunk, walk.next_slot(p)) {
          const int bytes = 2 * min(phase.chunk, phase.inputs - k);
          if (lane == 0) {
            if (begun >= flight) hopper::barrier_wait(behind.full(p), behind.parity);
            hopper::barrier_wait(walk.empty(p), walk.parity ^ 1);
            hopper::barrier_expect(walk.full(p), share * bytes);
          }
          if (begun >= flight)
            behind.next_slot(p);
          else
            ++begun;
          __syncwarp();
          if (mine < lines)
            copy_line(walk.memory(p) + mine * p.pitch, from + 2 * k, bytes, walk.full(p), policy);
        }
      }
    }
}

// A layer's pointers come from far away when they are read first. A warp without work does it ahead of all.
__device__ __forceinline__ void warm_constants(const Plan& p) {
#pragma unroll 1
  for (int i = 0; i < p.layers; ++i) {
    const StackLayer& l = p.layer[i];
    asm volatile("" ::"l"(l.context), "l"(l.up_bias), "l"(l.next_count));
  }
}

}  // namespace pom::kernels::stack
