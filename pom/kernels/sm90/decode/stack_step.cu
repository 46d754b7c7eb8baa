// One block on each processor, for the whole step. A layer has four phases: the mixer's two products with
// what makes o of them, its product with `out`, and the two of the feed-forward. In each a block has some
// lines (rows of the weights). Three warps copy them: what a block will need, and in which order, is known
// beforehand, so that they wait for nothing but room in the ring of shared memory and copies on their way.
// Twelve warps share the inputs of every line, 32 at a time: eight lines in one read of each thread, which is
// a whole operand of the tensor cores as it comes (stack_step_rows.cuh says how), against the rows, which
// they keep in registers for a phase. The warps' sums meet in shared memory. What a layer needs of the code
// must stay in the cache of instructions, hence one code for both halves.
//
// Values go from block to block as they are, written and read whole. Every layer has its own place for them,
// where before the step all bits are set, which is no value: who needs one reads it until it is another. So
// there is no other barrier between blocks, no fence and no atomic, no place is written twice, and a phase
// begins one way through the cache after the one before ended. That way is most of its time; hence all of a
// row is asked for at once, in whole sectors, and rows stand there twice, for different blocks.
//
// Why it ends: the blocks are all there (a cooperative launch). The copying warps wait for a slot that the
// block's own computing warps give back, and these for slots in the same order and for values of the phase
// before; so the first phase not yet finished by all can always go on. A warp gives a slot back once, after
// it has seen it full: full again means that all twelve had given it back, so no warp is a round ahead. It
// gives slots back as soon as they are in registers, one after the other or those of a round together: none
// is held back for a slot to come but for the others of its round, no more than the ring has. A block without
// lines in a phase copies nothing, reads no values and owes none, but meets its own barriers.
#include <algorithm>

#include "pom/kernels/common/launch.cuh"
#include "pom/kernels/sm90/decode/stack_step_gemms.cuh"

namespace pom::kernels {
namespace {

using namespace stack;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int kWorkerRegisters = 160, kCopierRegisters = 32;

__device__ __forceinline__ float inputs_of_warp(const Phase& phase, int warp) {
  int count = 0;
  for (int c = 0; c < phase.chunks; ++c) {
    const int left = min(phase.chunk, phase.inputs - c * phase.chunk) - kInputs * phase.steps * warp;
    count += max(0, min(kInputs * phase.steps, left));
  }
  return static_cast<float>(count);
}

template <class In, class S>
__device__ __forceinline__ void compute(const Plan& p, Walk walk) {
#pragma unroll 1
  for (int layer = 0; layer < p.layers; ++layer)
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      widen<In, S>(p, layer, half, walk), walk.next_phase(p);
      narrow<In, S>(p, layer, half, walk), walk.next_phase(p);
    }
}
#endif

// ---- the kernel ----

template <class In, class S>
__global__ void __launch_bounds__(kThreads, 1) stack_step_kernel(const __grid_constant__ Plan p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  Rest& rest = rest_of(p);
  if (static_cast<int>(threadIdx.x) < p.slots) {
    hopper::barrier_init(rest.full + threadIdx.x, kCopiers);
    hopper::barrier_init(rest.empty + threadIdx.x, kWarps);
    hopper::barriers_ready();
  }
  if (threadIdx.x < kWarps) {
    const float count = inputs_of_warp(p.phases[0], threadIdx.x);
    rest.counts[threadIdx.x] = count, rest.inverses[threadIdx.x] = count > 0 ? 1 / count : 0;
  }
  __syncthreads();
  const Walk walk{static_cast<int>(blockIdx.x)};
  const int warp = threadIdx.x / 32;
  if (warp >= kWarps) {
    hopper::give_registers<kCopierRegisters>();
    if (warp < kWarps + kCopiers)
      copy_weights(p, walk, warp - kWarps, threadIdx.x % 32);
    else
      warm_constants(p);
  } else {
    hopper::take_registers<kWorkerRegisters>();
    compute<In, S>(p, walk);
  }
#else
  __trap();  // built for another GPU than stack_step_supported() lets through
#endif
}

// Before it: x, in all copies, and else nothing written.
struct Beginning {
  const float* x;
  uint4* words;                                  // all of them, `count`
  int width, pitch, first, copy, copies, count;  // first: values of x before the first layer, of `copy`
};
__global__ void begin_kernel(const Beginning b) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), value = 4 * i;
  if (i >= b.count) return;
  uint4 w = make_uint4(kUnwritten, kUnwritten, kUnwritten, kUnwritten);
  if (value < b.copies * b.copy && value % b.copy < b.first) {
    const int row = value % b.copy / b.pitch, at = value % b.pitch;
    const int column = column_at(at);
    if (column < b.width) {
      const uint32_t* const from = reinterpret_cast<const uint32_t*>(b.x) + row * b.width + column;
      w = make_uint4(from[0], from[1], from[4], from[5]);
      for (uint32_t* u : {&w.x, &w.y, &w.z, &w.w})
        if (*u == kUnwritten) *u = 0x7fffffffu;  // another NaN
    }
  }
  b.words[i] = w;
}

// ---- the host's half ----

int up(int64_t count, int64_t by) {
  return static_cast<int>((count + by - 1) / by);
}
bool aligned(const void* p) {
  return p && reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// What the current device has, asked for once.
struct Device {
  int processors = 0, shared = 0;  // bytes for a block
};
Device device() {
  constexpr int kDevices = 64;
  static std::atomic<int64_t> known[kDevices];
  int index = 0, processors = 0, shared = 0;
  if (cudaGetDevice(&index) != cudaSuccess) return {};
  if (index < kDevices)
    if (const int64_t both = known[index].load(std::memory_order_relaxed))
      return {static_cast<int>(both >> 32), static_cast<int>(both & 0xffffffff)};
  if (cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, index) != cudaSuccess ||
      cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index) != cudaSuccess)
    return {};
  if (index < kDevices) known[index].store(int64_t{processors} << 32 | shared, std::memory_order_relaxed);
  return {processors, shared};
}

Phase phase_of(int64_t units, int lines, int64_t inputs, int blocks) {
  Phase phase{};
  phase.base = static_cast<int>(units / blocks), phase.extra = static_cast<int>(units % blocks);
  phase.lines = lines, phase.inputs = static_cast<int>(inputs);
  const int steps = up(inputs, kInputs), chunks = up(steps, kSteps * kWarps);
  phase.steps = up(steps, kWarps * chunks), phase.chunk = kChunkUnit * phase.steps;
  phase.chunks = up(inputs, phase.chunk);
  return phase;
}

int most_lines(const Phase& phase) {
  return (phase.base + (phase.extra > 0)) * phase.lines;
}
// Lines in groups of nearly the same size, at most `most`.
int group_of(int lines, int most) {
  return lines == 0 ? most : up(lines, up(lines, most));
}

// The shape alone; false where it does not fit into a block.
bool plan_shape(const StackStep& s, const Device& device, Plan* plan) {
  Plan& p = *plan;
  const int64_t all = s.order * s.features;
  p.rows = static_cast<int>(s.rows), p.width = static_cast<int>(s.width),
  p.features = static_cast<int>(s.features);
  p.hidden = static_cast<int>(s.hidden), p.order = s.order;
  p.phases[0] = phase_of(s.features, 2 * s.order, s.width, device.processors);
  p.phases[1] = phase_of(s.width, 1, all, device.processors);
  p.phases[2] = phase_of(s.hidden, 1, s.width, device.processors);
  p.phases[3] = phase_of(s.width, 1, s.hidden, device.processors);
  const int slim = std::max(most_lines(p.phases[1]), most_lines(p.phases[3]));
  const int wide = std::max(most_lines(p.phases[0]), most_lines(p.phases[2]));
  // The narrow phases have few lines and long ones: their slots are full. The wide ones' have as many lines
  // as one product takes.
  const int group = std::max(group_of(slim, kMostGroup), kLines);
  int chunk = 0;
  for (int which = 0; which < kPhases; ++which) {
    Phase& phase = p.phases[which];
    for (int more = 0; more < 2; ++more)
      phase.group[more] = group_of((phase.base + more) * phase.lines, which % 2 == 0 ? kLines : group);
    chunk = std::max(chunk, phase.chunk);
  }
  p.pitch = 2 * chunk + 64;  // an odd number of 64 bytes: two lines are read without a conflict
  p.slot_bytes = group * p.pitch;
  p.turn = device.processors * 5 / 8;
  const int line_bytes = kWarps * p.rows * static_cast<int>(sizeof(float));
  const int64_t behind = int64_t{wide + slim} * line_bytes + 16 + static_cast<int64_t>(sizeof(Rest));
  p.slots = static_cast<int>(std::min<int64_t>(kSlots, (device.shared - behind) / p.slot_bytes));
  if (p.slots < kMostRound) return false;
  p.sums_at[0] = p.slots * p.slot_bytes, p.sums_at[1] = p.sums_at[0] + wide * line_bytes;
  p.rest_at = (p.sums_at[1] + slim * line_bytes + 15) / 16 * 16;
  return p.phases[0].chunks <= kNormChunks &&
         std::max(p.phases[1].chunks, p.phases[3].chunks) <= kInnerChunks;
}

// Blocks that read the same lines of the cache at the same time wait for each other; but every copy has to be
// written. More than two, or one, took longer with any number of rows.
int copies_of(const StackStep&) {
  return 2;
}
int pitch_of(int64_t values) {
  return kInputs * up(values, kInputs);
}

bool sizes_supported(const StackStep& s) {
  constexpr int64_t kMostInner = 9216, kMostWidth = 2304;
  if (s.order < 1 || s.order > kMostStackOrder || s.rows < 1 || s.rows > kMostStackRows) return false;
  if (s.features < 1 || s.features > kMostInner || s.width < 8 || s.hidden < 8) return false;
  const int64_t all = s.order * s.features;
  return s.width % 8 == 0 && all % 8 == 0 && s.hidden % 8 == 0 && s.width <= kMostWidth &&
         all <= kMostInner && s.hidden <= kMostInner;
}

bool layer_supported(const StackLayer& l) {
  return aligned(l.context) && aligned(l.gate) && aligned(l.out) && aligned(l.up) && aligned(l.down) &&
         aligned(l.modulation) && l.sum && l.count;
}

template <class In, class S>
cudaError_t start(const Plan& plan, const Device& device, cudaStream_t stream) {
  const auto kernel = stack_step_kernel<In, S>;
  static std::atomic<uint64_t> prepared;  // a bit for each device
  int index = 0;
  if (const cudaError_t e = cudaGetDevice(&index); e != cudaSuccess) return e;
  const uint64_t bit = index < 64 ? uint64_t{1} << index : 0;
  if (!(prepared.load(std::memory_order_relaxed) & bit)) {
    if (const cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared);
        e != cudaSuccess)
      return e;
    prepared.fetch_or(bit, std::memory_order_relaxed);
  }
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative, together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(device.processors)), config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(plan.rest_at) + sizeof(Rest), config.stream = stream;
  config.attrs = &together, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, plan);
}

// Whether every chunk is three steps of every warp, as with a width of 1152; two or four chunks in the narrow
// phases.
bool whole(const Plan& plan) {
  for (const Phase& phase : plan.phases)
    if (phase.steps != kSteps || phase.inputs % phase.chunk != 0) return false;
  const auto even = [](const Phase& phase) { return phase.chunks == 2 || phase.chunks == 4; };
  return plan.phases[0].chunks == 1 && even(plan.phases[1]) && even(plan.phases[3]);
}

template <class In>
cudaError_t start_variant(const Plan& plan, const Device& device, cudaStream_t stream) {
  if (!whole(plan)) return start<In, Shape<kRows, kNormChunks, kInnerChunks, false>>(plan, device, stream);
  if (plan.rows == 1) return start<In, Shape<1, 1, 4, true>>(plan, device, stream);
  if (plan.rows <= 4) return start<In, Shape<4, 1, 4, true>>(plan, device, stream);
  return start<In, Shape<kRows, 1, 4, true>>(plan, device, stream);
}

}  // namespace

#ifdef POM_STEP_TRACE
// For bench/step_cuda.cu: which layer is looked at, and cycles and nanoseconds of all blocks' phases in it.
cudaError_t stack_step_trace_layer(int layer) {
  return cudaMemcpyToSymbol(trace_layer, &layer, sizeof(layer));
}
cudaError_t stack_step_trace(long long (*to)[160][4][7]) {
  static_assert(sizeof(Trace) == sizeof(long long[2][160][4][7]));
  return cudaMemcpyFromSymbol(to, trace, sizeof(trace));
}
#endif

bool stack_step_supported(const StackStep& s) {
  if (device_capability() != 90 || (s.dtype != Dtype::bf16 && s.dtype != Dtype::fp16)) return false;
  if (!sizes_supported(s) || !s.layers || s.layer_count < 1) return false;
  if (!aligned(s.x) || !aligned(s.workspace) || s.modulation_stride % 4 != 0) return false;
  for (int64_t i = 0; i < s.layer_count; ++i)
    if (!layer_supported(s.layers[i])) return false;
  Plan plan{};
  const Device at = device();
  return at.processors > 0 && plan_shape(s, at, &plan);
}

int64_t stack_step_workspace(const StackStep& s) {
  const int64_t layers = std::min<int64_t>(s.layer_count, kLayers);
  const int64_t stream = pitch_of(s.width) * int64_t{2 * sizeof(float)};
  const int64_t inner = (pitch_of(s.order * s.features) + pitch_of(s.hidden)) * int64_t{sizeof(uint16_t)};
  return copies_of(s) * layers * s.rows * (stream + inner);
}

cudaError_t stack_step(const StackStep& s, cudaStream_t stream) {
  if (!stack_step_supported(s)) return cudaErrorNotSupported;
  constexpr int64_t kCache = int64_t{32} << 20;
  constexpr int kBeginThreads = 256;
  const Device at = device();
  Plan plan{};
  plan_shape(s, at, &plan);
  plan.eps = s.eps, plan.inverse = 1.0f / static_cast<float>(s.width),
  plan.modulation_stride = s.modulation_stride, plan.x = s.x;
  plan.copies = copies_of(s), plan.stream_pitch = pitch_of(s.width);
  plan.inner_pitch[0] = pitch_of(s.order * s.features), plan.inner_pitch[1] = pitch_of(s.hidden);
  plan.stream = static_cast<uint32_t*>(s.workspace);
  plan.passing = s.layer_count * 2 * s.width * (3 * s.order * s.features + 2 * s.hidden) > kCache;
  for (int64_t first = 0; first < s.layer_count; first += kLayers) {
    plan.layers = static_cast<int>(std::min<int64_t>(kLayers, s.layer_count - first));
    std::copy_n(s.layers + first, plan.layers, plan.layer);
    const int halves = 2 * plan.layers * plan.rows;
    plan.stream_copy = halves * plan.stream_pitch;
    plan.inner_copy = plan.layers * plan.rows * (plan.inner_pitch[0] + plan.inner_pitch[1]);
    plan.inner = reinterpret_cast<uint16_t*>(plan.stream + plan.copies * plan.stream_copy);
    const int words = plan.copies * (plan.stream_copy / 4 + plan.inner_copy / 8);
    begin_kernel<<<up(words, kBeginThreads), kBeginThreads, 0, stream>>>(
        {s.x, static_cast<uint4*>(s.workspace), plan.width, plan.stream_pitch, plan.rows * plan.stream_pitch,
         plan.stream_copy, plan.copies, words});
    if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    const cudaError_t e = s.dtype == Dtype::bf16 ? start_variant<__nv_bfloat16>(plan, at, stream)
                                                 : start_variant<__half>(plan, at, stream);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace pom::kernels
