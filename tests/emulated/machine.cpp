#include "tests/emulated/machine.h"

#include "tests/emulated/ptx.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace emulated {

Thread* now = nullptr;

constexpr std::size_t kStack = 192 * 1024;
constexpr std::size_t kArena = 256 * 1024;  // addresses of shared memory have 18 bits
constexpr uint32_t kDynamic = 1024 + 16;    // as aligned as the hardware promises, and no more
constexpr int kNamed = 16;

// ---- fibers ----

extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.globl emulated_switch
.hidden emulated_switch
.type emulated_switch, @function
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

struct Fiber;
struct Line {  // of cp.async
  uint32_t to;
  const void* from;
  int bytes, inside;
};
struct Product {
  float* d;
  uint64_t a, b;
  bool keep;
  int columns;
  Values values;
};
struct Meeting {  // of threads that wait for each other
  int arrived = 0;
  std::vector<Fiber*> waiting;
};
struct Exchange {
  Meeting meeting;
  uint64_t values[2][32] = {};
  unsigned turn = 0;
};
struct Lane {  // of a warp's product
  uint32_t a[4], b[2];
  float c[4];
};
struct Warp {
  Exchange all;
  std::map<unsigned, Exchange> some;  // by the mask
  Meeting products;
  std::array<Lane, 32> lanes;
};
struct Warpgroup {
  Meeting meeting;
};
struct Cluster;

struct Block {
  uint3 index{};
  Cluster* cluster = nullptr;
  unsigned rank = 0;
  uint8_t* arena = nullptr;
  std::map<const void*, uint32_t> statics;
  uint32_t next_static = 0;
  int alive = 0;
  Meeting named[kNamed];
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
};
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  int alive = 0;
  Meeting meeting;
};
struct Fiber {
  void* stack = nullptr;      // where it goes on
  uint8_t* memory = nullptr;  // all of the stack
  Thread thread;
  const char* waits = "";
  std::vector<std::vector<Product>> products;
  std::vector<Product> open_products;
  std::deque<std::vector<Line>> lines;
  std::vector<Line> open_lines;
};

namespace {

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what.c_str());
  std::fflush(nullptr);
  std::abort();
}

unsigned from_environment(const char* name, unsigned otherwise) {
  const char* value = std::getenv(name);
  return value ? static_cast<unsigned>(std::strtoul(value, nullptr, 10)) : otherwise;
}

struct Grid;
Grid* running = nullptr;
Fiber* current = nullptr;

// What mbarriers are here, in the 8 bytes that they have.
struct Barrier {
  uint64_t phase : 1, expected : 10, pending : 10;
  int64_t bytes : 43;
};
static_assert(sizeof(Barrier) == 8);

struct Pool {  // stacks and arenas, used again
  std::vector<uint8_t*> stacks, arenas;
  std::vector<Fiber*> fibers;  // with their stacks
  static Fiber* taken(std::vector<Fiber*>& from) {
    Fiber* const fiber = from.back();
    from.pop_back();
    return fiber;
  }
  static uint8_t* pages(std::size_t bytes) {
    void* p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) die("no memory for a stack");
    return static_cast<uint8_t*>(p);
  }
  static uint8_t* take(std::vector<uint8_t*>& from, std::size_t bytes) {
    if (from.empty()) {
      uint8_t* p = pages(bytes);
      mprotect(p, 4096, PROT_NONE);
      return p;
    }
    uint8_t* p = from.back();
    from.pop_back();
    return p;
  }
};
Pool& pool() {
  static Pool it;
  return it;
}

void fiber_main();

struct Grid {
  Shape shape;
  std::function<void()> body;
  std::mt19937 random{from_environment("POM_EMULATED_SEED", 1)};
  void* scheduler = nullptr;
  std::deque<Fiber*> ready;
  std::vector<Fiber*> spinning;
  std::deque<std::function<void()>> copies;
  std::map<const void*, std::vector<Fiber*>> at_barriers;
  std::vector<std::unique_ptr<Cluster>> clusters;  // that run
  uint64_t next = 0, total = 0;                    // of clusters
  bool progress = false;

  void start_cluster() {
    auto cluster = std::make_unique<Cluster>();
    const unsigned threads = shape.block.x * shape.block.y * shape.block.z;
    for (unsigned rank = 0; rank < shape.cluster; ++rank) {
      auto block = std::make_unique<Block>();
      const uint64_t n = next * shape.cluster + rank;
      block->index = {static_cast<unsigned>(n % shape.grid.x),
                      static_cast<unsigned>(n / shape.grid.x % shape.grid.y),
                      static_cast<unsigned>(n / shape.grid.x / shape.grid.y)};
      block->cluster = cluster.get(), block->rank = rank, block->alive = static_cast<int>(threads);
      block->arena = Pool::take(pool().arenas, kArena + 8192) + 4096;
      block->next_static = static_cast<uint32_t>((kDynamic + shape.shared + 127) / 128 * 128 + 64);
      if (block->next_static > 227 * 1024 + 2048) die("more shared memory than a block may have");
      std::memset(block->arena, 0xff, block->next_static);  // not a number
      block->warps.resize((threads + 31) / 32), block->warpgroups.resize((threads + 127) / 128);
      for (unsigned t = 0; t < threads; ++t) {
        Fiber* fiber = pool().fibers.empty() ? new Fiber : Pool::taken(pool().fibers);
        fiber->thread.index = {t % shape.block.x, t / shape.block.x % shape.block.y,
                               t / shape.block.x / shape.block.y};
        fiber->thread.number = static_cast<int>(t), fiber->thread.block = block.get();
        if (!fiber->memory) fiber->memory = Pool::take(pool().stacks, kStack);
        void** top = reinterpret_cast<void**>(fiber->memory + kStack) - 1;
        *top = nullptr;
        *--top = reinterpret_cast<void*>(&fiber_main);
        for (int i = 0; i < 6; ++i) *--top = nullptr;
        fiber->stack = top;
        ready.push_back(fiber);
      }
      cluster->alive += static_cast<int>(threads);
      cluster->blocks.push_back(std::move(block));
    }
    clusters.push_back(std::move(cluster));
    ++next;
  }

  void end_cluster(Cluster* cluster) {
    for (const auto& block : cluster->blocks) {
      const uint32_t end = static_cast<uint32_t>(kDynamic + shape.shared);
      for (uint32_t at = end; at < (end + 127) / 128 * 128 + 64; ++at)
        if (block->arena[at] != 0xff)
          die("a block wrote behind its " + std::to_string(shape.shared) + " bytes of shared memory");
      pool().arenas.push_back(block->arena - 4096);
    }
    std::erase_if(clusters, [&](const auto& each) { return each.get() == cluster; });
  }

  void run() {
    total = static_cast<uint64_t>(shape.grid.x) * shape.grid.y * shape.grid.z;
    if (total % shape.cluster != 0) die("a grid that clusters do not divide");
    total /= shape.cluster;
    const std::size_t most = std::max(1u, processors() / shape.cluster);
    int idle = 0;
    while (next < total || !clusters.empty()) {
      if (clusters.empty()) start_cluster();
      if (!copies.empty() && (ready.empty() || random() % 64 == 0)) {
        const std::size_t which = random() % std::min<std::size_t>(copies.size(), 4);
        auto copy = std::move(copies[which]);
        copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(which));
        copy(), progress = true;
        continue;
      }
      if (ready.empty()) {
        if (next < total && clusters.size() < most && (!spinning.empty() || clusters.empty())) {
          start_cluster();
          continue;
        }
        if (spinning.empty()) stuck("every thread waits");
        idle = progress ? 0 : idle + 1, progress = false;
        if (idle > 20000) stuck("threads look at memory that nobody changes");
        ready.assign(spinning.begin(), spinning.end()), spinning.clear();
      }
      Fiber* fiber = ready.front();
      ready.pop_front();
      go_on(fiber);
    }
  }

  void go_on(Fiber* fiber) {
    current = fiber, now = &fiber->thread;
    emulated_switch(&scheduler, fiber->stack);
    current = nullptr;
    if (!fiber->thread.block) {  // it has ended
      fiber->products.clear(), fiber->open_products.clear(), fiber->lines.clear(), fiber->open_lines.clear();
      pool().fibers.push_back(fiber);
      progress = true;
    }
  }

  [[noreturn]] void stuck(const char* why) {
    std::map<std::string, int> waits;
    const auto count = [&](Fiber* f) { ++waits[f->waits]; };
    for (Fiber* f : spinning) count(f);
    for (const auto& [barrier, fibers] : at_barriers)
      for (Fiber* f : fibers) count(f);
    for (const auto& cluster : clusters) {
      for (Fiber* f : cluster->meeting.waiting) count(f);
      for (const auto& block : cluster->blocks) {
        for (const Meeting& m : block->named)
          for (Fiber* f : m.waiting) count(f);
        for (const Warp& w : block->warps) {
          for (Fiber* f : w.all.meeting.waiting) count(f);
          for (Fiber* f : w.products.waiting) count(f);
          for (const auto& [mask, e] : w.some)
            for (Fiber* f : e.meeting.waiting) count(f);
        }
        for (const Warpgroup& w : block->warpgroups)
          for (Fiber* f : w.meeting.waiting) count(f);
      }
    }
    std::string text = std::string("deadlock: ") + why + ":";
    for (const auto& [what, number] : waits) text += " " + std::to_string(number) + " at " + what + ",";
    die(text + " " + std::to_string(clusters.size()) + " clusters of " + std::to_string(total) + " run, " +
        std::to_string(next) + " were started");
  }
};

void pause(const char* what) {  // somebody has a note of this fiber
  current->waits = what;
  Fiber* const me = current;
  emulated_switch(&me->stack, running->scheduler);
}
void wake(Meeting& meeting) {
  for (Fiber* fiber : meeting.waiting) running->ready.push_back(fiber);
  meeting.waiting.clear(), meeting.arrived = 0;
  running->progress = true;
}
void meet(Meeting& meeting, int wanted, const char* what) {
  if (++meeting.arrived >= wanted) return wake(meeting);
  meeting.waiting.push_back(current);
  pause(what);
}

Block& block() {
  return *current->thread.block;
}

void end_thread() {
  Fiber* const me = current;
  Block& b = block();
  if (!me->products.empty() || !me->open_products.empty()) die("a thread ended before its products did");
  --b.alive, --b.cluster->alive;
  // Who has ended is not waited for.
  if (b.alive > 0 && b.named[0].arrived > 0 && b.named[0].arrived >= b.alive) wake(b.named[0]);
  Cluster* const cluster = b.cluster;
  me->thread.block = nullptr;
  if (cluster->alive == 0) {
    if (!running->copies.empty() && running->clusters.size() == 1)
      die("a kernel ended before its copies did");
    running->end_cluster(cluster);
  } else if (cluster->meeting.arrived > 0 && cluster->meeting.arrived >= cluster->alive) {
    wake(cluster->meeting);
  }
}

void fiber_main() {
  running->body();
  end_thread();
  Fiber* const me = current;
  emulated_switch(&me->stack, running->scheduler);
  die("a thread that had ended went on");
}

Barrier* barrier_at(uint32_t address, unsigned rank) {
  if (address % 8 != 0) die("a barrier that is not aligned");
  return static_cast<Barrier*>(shared_memory(address, rank));
}
void look(Barrier* b) {  // whether its phase is over
  if (b->pending != 0 || b->bytes != 0) return;
  b->phase ^= 1, b->pending = b->expected;
  running->progress = true;
  const auto found = running->at_barriers.find(b);
  if (found == running->at_barriers.end()) return;
  for (Fiber* fiber : found->second) running->ready.push_back(fiber);
  running->at_barriers.erase(found);
}

float value_of(const uint8_t* p, Values values) {
  if (values == Values::bf16) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    const uint32_t wide = uint32_t{bits} << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
  if (values == Values::fp16) {
    __half h;
    std::memcpy(&h, p, 2);
    return __half2float(h);
  }
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t;
    for (int i = 0; i < 256; ++i) {
      __nv_fp8_e4m3 v;
      v.__x = static_cast<__nv_fp8_storage_t>(i);
      t[static_cast<std::size_t>(i)] = static_cast<float>(v);
    }
    return t;
  }();
  return table[*p];
}

// Row r of the matrix that a descriptor of a warpgroup's product names: rows of 128 bytes, 1024 bytes every
// eight, the 16-byte parts of a row exchanged by the row's number in its eight.
void matrix_row(const Block& b, uint64_t descriptor, int r, int count, Values values, float* out) {
  if (descriptor >> 62 != 1 || (descriptor >> 32 & 0x3fff) != 1024 / 16)
    die("a matrix of a layout that is not emulated");
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const int size = values == Values::e4m3 ? 1 : 2;
  for (int k = 0; k < count; ++k) {
    uint32_t at = start + static_cast<uint32_t>(r / 8 * 1024 + r % 8 * 128 + k * size);
    at ^= (at >> 7 & 7) << 4;
    out[k] = value_of(b.arena + at, values);
  }
}

constexpr int kMostColumns = 256, kMostInputs = 32;

struct Accumulators {
  alignas(64) float values[64][kMostColumns];
  float* held[128] = {};
  int columns = 0;

  void visit(bool store) {
    for (int t = 0; t < 128; ++t)
      for (int j = 0; j < columns / 8; ++j)
        for (int i = 0; i < 4; ++i) {
          float& here = values[16 * (t / 32) + t / 4 % 8 + (i >= 2 ? 8 : 0)][8 * j + 2 * (t % 4) + i % 2];
          float& there = held[t][4 * j + i];
          (store ? there : here) = store ? here : there;
        }
  }
};

__attribute__((optimize("O3"))) void add_products(float (*c)[kMostColumns], const float* a,
                                                  const float (*b)[kMostColumns], int inputs, int columns) {
  for (int k = 0; k < inputs; ++k)
    for (int n = 0; n < columns; ++n) (*c)[n] += a[k] * b[k][n];
}

void multiply(Block& b, const std::vector<Fiber*>& group, std::size_t groups) {
  // Products with the same accumulators follow each other in their order; those of others do not touch them.
  std::vector<std::vector<Product>> mine;
  for (std::size_t g = 0; g < groups; ++g)
    for (const Product& p : group[0]->products[g]) {
      const auto same = [&](const auto& list) { return list[0].d == p.d; };
      const auto found = std::find_if(mine.begin(), mine.end(), same);
      (found == mine.end() ? mine.emplace_back() : *found).push_back(p);
    }
  static thread_local Accumulators acc;
  static thread_local float w[kMostInputs][kMostColumns], a[kMostInputs], row[kMostInputs];
  std::map<const float*, std::array<float*, 128>> held;  // by the first thread's
  for (int t = 0; t < 128; ++t) {
    if (group[static_cast<std::size_t>(t)]->products.size() != group[0]->products.size())
      die("threads of a warpgroup disagree about groups of products");
    for (std::size_t g = 0; g < groups; ++g) {
      const auto &theirs = group[static_cast<std::size_t>(t)]->products[g], &first = group[0]->products[g];
      if (theirs.size() != first.size()) die("threads of a warpgroup disagree about products");
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        if (theirs[i].a != first[i].a || theirs[i].b != first[i].b || theirs[i].keep != first[i].keep)
          die("threads of a warpgroup disagree about a product");
        held[first[i].d][static_cast<std::size_t>(t)] = theirs[i].d;
      }
    }
  }
  for (const auto& list : mine) {
    acc.columns = list[0].columns;
    std::copy(held[list[0].d].begin(), held[list[0].d].end(), acc.held);
    acc.visit(false);
    for (const Product& p : list) {
      const int inputs = p.values == Values::e4m3 ? 32 : 16;
      if (!p.keep) std::memset(acc.values, 0, sizeof acc.values);
      for (int n = 0; n < p.columns; ++n) {
        matrix_row(b, p.b, n, inputs, p.values, row);
        for (int k = 0; k < inputs; ++k) w[k][n] = row[k];
      }
      for (int m = 0; m < 64; ++m) {
        matrix_row(b, p.a, m, inputs, p.values, a);
        add_products(&acc.values[m], a, w, inputs, p.columns);
      }
    }
    acc.visit(true);
  }
}

}  // namespace

// ---- places ----

const uint3& block_index() {
  return block().index;
}
const dim3& block_size() {
  return running->shape.block;
}
const dim3& grid_size() {
  return running->shape.grid;
}
unsigned cluster_rank() {
  return block().rank;
}
int lane() {
  return current->thread.number % 32;
}

void* dynamic_shared() {
  return block().arena + kDynamic;
}
void* static_shared(const void* declaration, std::size_t bytes) {
  Block& b = block();
  const auto [found, fresh] = b.statics.try_emplace(declaration, b.next_static);
  if (fresh) {
    std::memset(b.arena + b.next_static, 0xff, bytes);
    b.next_static += static_cast<uint32_t>((bytes + 127) / 128 * 128);
    if (b.next_static > kArena) die("more static shared memory than there is");
  }
  return b.arena + found->second;
}
uint32_t shared_address(const void* p) {
  const auto distance = static_cast<const uint8_t*>(p) - block().arena;
  if (distance < 0 || distance >= static_cast<std::ptrdiff_t>(kArena))
    die("an address that is not in this block's shared memory");
  return static_cast<uint32_t>(distance);
}
void* shared_memory(uint32_t address) {
  return shared_memory(address, block().rank);
}
void* shared_memory(uint32_t address, unsigned rank) {
  if (address >= kArena) die("an address beyond shared memory");
  Cluster& c = *block().cluster;
  if (rank >= c.blocks.size()) die("a block that the cluster does not have");
  return c.blocks[rank]->arena + address;
}

// ---- waiting ----

void sync_block(int barrier, int threads) {
  Block& b = block();
  if (barrier < 0 || barrier >= kNamed) die("a named barrier that there is not");
  meet(b.named[barrier], threads == 0 ? b.alive : threads,
       barrier == 0 ? "__syncthreads" : "a named barrier");
}
void arrive_block(int barrier, int threads) {
  Meeting& m = block().named[barrier];
  if (++m.arrived >= threads) wake(m);
}
uint64_t exchange(unsigned mask, uint64_t value, int from) {
  const int lane = current->thread.number % 32;
  if (!(mask >> lane & 1)) die("a lane that its own mask leaves out");
  Warp& w = block().warps[static_cast<std::size_t>(current->thread.number / 32)];
  Exchange& e = mask == 0xffffffffu ? w.all : w.some[mask];
  uint64_t(&values)[32] = e.values[e.turn & 1];
  values[lane] = value;
  if (e.meeting.arrived + 1 == __builtin_popcount(mask)) ++e.turn;
  meet(e.meeting, __builtin_popcount(mask), "a warp's exchange");
  return from >= 0 && from < 32 && mask >> from & 1 ? values[from] : value;
}
void sync_warp(unsigned mask) {
  exchange(mask, 0, 32);
}
void sync_cluster() {
  Cluster& c = *block().cluster;
  meet(c.meeting, c.alive, "a cluster's barrier");
}
void yield() {
  running->spinning.push_back(current);
  pause("memory");
}

// ---- barriers in shared memory ----

void barrier_init(uint32_t address, uint32_t arrivals) {
  if (arrivals == 0 || arrivals > 1023) die("a barrier of no arrivals or too many");
  Barrier* b = barrier_at(address, block().rank);
  b->phase = 0, b->expected = b->pending = arrivals, b->bytes = 0;
}
void barrier_arrive(uint32_t address, unsigned rank, int64_t expected_bytes) {
  Barrier* b = barrier_at(address, rank);
  if (b->pending == 0) die("more arrivals at a barrier than it was initialised for");
  b->pending = b->pending - 1, b->bytes = b->bytes + expected_bytes;
  look(b);
}
void barrier_complete(uint32_t address, unsigned rank, int64_t bytes) {
  Barrier* b = barrier_at(address, rank);
  b->bytes = b->bytes - bytes;
  look(b);
}
void barrier_wait(uint32_t address, uint32_t parity) {
  Barrier* b = barrier_at(address, block().rank);
  while (b->phase == (parity & 1)) {
    running->at_barriers[b].push_back(current);
    pause("a barrier in shared memory");
  }
}

// ---- copies ----

namespace {

// As if the copying thread still ran: it may have ended.
void complete(Block* to, uint32_t barrier, int64_t bytes) {
  Barrier* b = reinterpret_cast<Barrier*>(to->arena + barrier);
  b->bytes = b->bytes - bytes;
  look(b);
}

}  // namespace

void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    die("a bulk copy that is not aligned to 16 bytes");
  Block* const b = &block();
  running->copies.push_back([=] {
    std::memcpy(b->arena + to, from, bytes);
    complete(b, barrier, bytes);
  });
}

void copy_box(const Map& given, uint32_t to, uint32_t barrier, std::array<int, 5> at, unsigned blocks) {
  Cluster* const cluster = block().cluster;
  if (to % 128 != 0) die("a box to an address that is not aligned to 128 bytes");
  if (blocks >> cluster->blocks.size() != 0) die("a box for blocks that the cluster does not have");
  running->copies.push_back([cluster, map = given, to, barrier, at, blocks] {
    const uint64_t size = map.pitches[0];
    const uint32_t line = map.box[0] * static_cast<uint32_t>(size);
    uint32_t rows = 1;
    for (uint32_t i = 1; i < map.rank; ++i) rows *= map.box[i];
    std::vector<uint8_t> values(line);
    for (uint32_t r = 0; r < rows; ++r) {
      const uint8_t* from = map.base;
      bool inside = true;
      uint32_t rest = r;
      for (uint32_t i = 1; i < map.rank; ++i) {
        const int64_t c = at[i] + static_cast<int64_t>(rest % map.box[i]);
        rest /= map.box[i];
        inside = inside && c >= 0 && c < static_cast<int64_t>(map.sizes[i]);
        from += c * static_cast<int64_t>(map.pitches[i]);
      }
      for (uint32_t k = 0; k < map.box[0]; ++k) {
        const int64_t c = at[0] + static_cast<int64_t>(k);
        if (inside && c >= 0 && c < static_cast<int64_t>(map.sizes[0]))
          std::memcpy(values.data() + k * size, from + c * static_cast<int64_t>(size), size);
        else
          std::memset(values.data() + k * size, 0, size);
      }
      for (std::size_t rank = 0; rank < cluster->blocks.size(); ++rank) {
        if (!(blocks >> rank & 1)) continue;
        for (uint32_t part = 0; part < line; part += 16) {
          uint32_t address = to + r * line + part;
          if (map.swizzled) address ^= (address >> 7 & 7) << 4;
          std::memcpy(cluster->blocks[rank]->arena + address, values.data() + part,
                      std::min(16u, line - part));
        }
      }
    }
    for (std::size_t rank = 0; rank < cluster->blocks.size(); ++rank)
      if (blocks >> rank & 1)
        complete(cluster->blocks[rank].get(), barrier, static_cast<int64_t>(rows) * line);
  });
}

void copy_line(uint32_t to, const void* from, int bytes, int inside) {
  if (to % 16 != 0) die("cp.async to an address that is not aligned");
  current->open_lines.push_back({to, from, bytes, inside});
}
void commit_lines() {
  current->lines.push_back(std::move(current->open_lines));
  current->open_lines.clear();
}
void wait_lines(int pending) {
  while (current->lines.size() > static_cast<std::size_t>(pending)) {
    for (const Line& l : current->lines.front()) {
      uint8_t* to = block().arena + l.to;
      std::memset(to, 0, static_cast<std::size_t>(l.bytes));
      if (l.inside > 0) std::memcpy(to, l.from, static_cast<std::size_t>(l.inside));
    }
    current->lines.pop_front();
  }
}

// ---- products ----

void product(float* d, uint64_t a, uint64_t b, bool keep, int columns, Values values) {
  current->open_products.push_back({d, a, b, keep, columns, values});
}
void commit_products() {
  current->products.push_back(std::move(current->open_products));
  current->open_products.clear();
}
void wait_products(int pending) {
  const int number = current->thread.number;
  Warpgroup& w = block().warpgroups[static_cast<std::size_t>(number / 128)];
  std::vector<Fiber*>& waiting = w.meeting.waiting;
  if (w.meeting.arrived + 1 == 128) {
    std::vector<Fiber*> group(128);
    for (Fiber* f : waiting) group[static_cast<std::size_t>(f->thread.number % 128)] = f;
    group[static_cast<std::size_t>(number % 128)] = current;
    const std::size_t all = group[0]->products.size();
    if (all > static_cast<std::size_t>(pending)) {
      const std::size_t groups = all - static_cast<std::size_t>(pending);
      multiply(block(), group, groups);
      for (Fiber* f : group)
        f->products.erase(f->products.begin(), f->products.begin() + static_cast<std::ptrdiff_t>(groups));
    }
  }
  meet(w.meeting, 128, "a warpgroup's products");
}

void ptx::warp_product(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                       Values values) {
  Warp& w = block().warps[static_cast<std::size_t>(current->thread.number / 32)];
  Lane& mine = w.lanes[static_cast<std::size_t>(lane())];
  std::copy(a, a + 4, mine.a), std::copy(b, b + 2, mine.b), std::copy(c, c + 4, mine.c);
  if (w.products.arrived + 1 == 32) {  // the last one multiplies for all
    float A[16][16], B[16][8], D[16][8];
    const auto unpack = [&](uint32_t word, float& low, float& high) {
      low = value_of(reinterpret_cast<const uint8_t*>(&word), values);
      high = value_of(reinterpret_cast<const uint8_t*>(&word) + 2, values);
    };
    for (std::size_t l = 0; l < 32; ++l) {
      const std::size_t octet = l / 4, quad = l % 4;
      for (std::size_t part = 0; part < 4; ++part) {
        float* const to = &A[octet + 8 * (part % 2)][8 * (part / 2) + 2 * quad];
        unpack(w.lanes[l].a[part], to[0], to[1]);
      }
      for (std::size_t part = 0; part < 2; ++part)
        unpack(w.lanes[l].b[part], B[8 * part + 2 * quad][octet], B[8 * part + 2 * quad + 1][octet]);
      for (std::size_t i = 0; i < 4; ++i) D[octet + 8 * (i / 2)][2 * quad + i % 2] = w.lanes[l].c[i];
    }
    for (int m = 0; m < 16; ++m)
      for (int k = 0; k < 16; ++k)
        for (int n = 0; n < 8; ++n) D[m][n] += A[m][k] * B[k][n];
    for (std::size_t l = 0; l < 32; ++l)
      for (std::size_t i = 0; i < 4; ++i) w.lanes[l].c[i] = D[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
  }
  meet(w.products, 32, "a warp's product");
  std::copy(mine.c, mine.c + 4, d);
}

// ---- launching ----

unsigned processors() {
  static const unsigned count = from_environment("POM_EMULATED_SMS", 32);
  return count;
}

cudaError_t launch(const Shape& shape, std::function<void()> thread) {
  const dim3 &g = shape.grid, &b = shape.block;
  const uint64_t threads = static_cast<uint64_t>(b.x) * b.y * b.z;
  if (threads < 1 || threads > 1024 || g.x < 1 || g.y < 1 || g.z < 1 || g.y > 65535 || g.z > 65535 ||
      shape.shared > 227 * 1024 || g.x % shape.cluster != 0)
    return cudaErrorInvalidConfiguration;
  return submit(shape.stream, [shape, thread = std::move(thread)] {
    static std::mutex one;  // grid at a time
    const std::lock_guard lock(one);
    Grid grid;
    grid.shape = shape, grid.body = thread;
    running = &grid;
    grid.run();
    running = nullptr;
  });
}

}  // namespace emulated
