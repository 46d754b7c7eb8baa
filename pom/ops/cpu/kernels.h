// The CPU kernels as the rest of the library sees them: no torch, no instruction set. One table of functions
// per instruction set and dtype; kernel_table() picks the best this machine runs.
//
// Letters: B sequences, N tokens of a sequence, d width, k order, D features of one degree (k*D in all), T
// tokens of a tile, F features of a group. A *tile* is what one thread works on: up to T tokens, made of
// *pieces* (runs of tokens of one sequence). A *segment* is a run of tokens that share one H: a sequence, or
// a block of a block-causal mask. Sums over tokens are kept for every *sub*: kSub tokens, counted from the
// start of their segment, so that neither tiles nor neighbours in the batch change the order of an addition.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pom::ops::cpu {

struct BF16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

enum class DType { f32, f64, bf16, f16 };
constexpr int kDTypes = 4;

constexpr int kSub = 64;       // tokens of one partial sum
constexpr int kMaxTile = 256;  // tokens of a tile at most; a multiple of kSub
constexpr int kMaxOrder = 16;  // higher degrees take the composed path

struct Piece {
  std::int64_t sequence;
  std::int64_t start;    // first token, within the sequence
  std::int64_t segment;  // which H it reads or adds to
  std::int64_t sub;      // its first partial sum
  int offset;            // first lane in the tile
  int count;             // tokens
};

struct Tile {
  std::int64_t first_piece;
  int pieces;
  int count;           // tokens
  std::int64_t saved;  // tokens in all tiles before it: where its share of a saved buffer begins
};

// Tokens as rows in memory: row t of sequence s starts at data + offset(s) + t * row. Packed sequences have
// starts.
struct Rows {
  void* data = nullptr;
  std::int64_t sequence = 0;             // elements between sequences
  std::int64_t row = 0;                  // elements between rows
  const std::int64_t* starts = nullptr;  // packed: first row of each sequence
  std::int64_t at(std::int64_t s, std::int64_t t) const {
    return (starts ? starts[s] * row : s * sequence) + t * row;
  }
};

struct Matrix {
  const void* data = nullptr;
  std::int64_t ld = 0;  // elements between rows
};

// One row of values for each sequence, arithmetic type.
struct PerSequence {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

// A running sum that walks blocks in order (or backwards): the causal masks, with or without a window.
struct ScanRule {
  std::int64_t block = 0;   // tokens of a block
  std::int64_t window = 0;  // blocks seen, 0 for all
  std::int64_t state_rows() const { return window ? 1 + 2 * window : 2; }
  std::int64_t blocks(std::int64_t tokens) const { return (tokens + block - 1) / block; }
};

// A window that a whole sequence fits into is none: decided for each sequence, so that neighbours change no
// bit.
inline std::int64_t window_within(std::int64_t window, std::int64_t blocks) {
  return window < blocks ? window : 0;
}

struct LayerArgs {
  std::int64_t d = 0, D = 0, order = 0;  // D features of one degree; k*D = order * D
  std::int64_t group = 0, groups = 0;    // features of one degree taken together; how many such groups
  int tile = 0;                          // T
  Rows xq, xc, out;
  Matrix w_ho, w_se, w_ag;
  const void *b_ho = nullptr, *b_se = nullptr, *b_ag = nullptr;  // in the dtype of x, or null

  const Tile* tiles = nullptr;  // of queries
  const Piece* pieces = nullptr;
  const Tile* ctiles = nullptr;  // of context tokens
  std::int64_t tile_count = 0, ctile_count = 0;
  const Piece* cpieces = nullptr;
  const std::uint8_t* keys = nullptr;  // 1 visible: B rows of `keys_stride`
  std::int64_t keys_stride = 0;

  void* sums = nullptr;               // arithmetic type, one row of k*D per sub
  const void* H = nullptr;            // arithmetic type, one row of k*D per segment
  void *ho = nullptr, *se = nullptr;  // saved projections, tile by tile [feature][token]; null at inference

  // Within a network: xq and xc are the residual stream (arithmetic type), normalised and modulated as they
  // are read; the result is added to `out`, which is that stream, through a gate.
  bool stream = false;
  PerSequence scale, shift, gate;
  double eps = 0;

  void* shared =
      nullptr;  // gated features of all groups of all tiles, where a tile is shared between threads

  // Causal masks of small blocks: tiles run in order, feature group by feature group.
  ScanRule scan;
  std::atomic<std::int64_t>* done = nullptr;  // per group: tiles finished
  void* carry = nullptr;                      // scan.state_rows() rows of k*D
  const std::int64_t* scan_length = nullptr;  // tokens of each sequence
  const void* init_sum = nullptr;             // per sequence, k*D; may be null
  const std::int64_t* init_count = nullptr;
  void* final_sum = nullptr;

  // Backward.
  Rows dout, dxq, dxc;
  void *dw_ho = nullptr, *dw_se = nullptr, *dw_ag_t = nullptr;  // arithmetic type, k*D rows of dw_ld
  std::int64_t dw_ld = 0;
  void *gw_ho = nullptr, *gw_se = nullptr,
       *gw_ag = nullptr;  // the finished gradients, dtype and shape of the weights
  void *db_ho = nullptr, *db_se = nullptr, *db_ag = nullptr;  // arithmetic type
  void* Hrows = nullptr;     // scan masks: H of every token, laid out like ho
  const void* dp = nullptr;  // dense masks: gradient of the sum, one row of k*D per segment
  bool backward = false;     // scratch for it is wanted
  bool need_x = false, need_w = false;
};

// The projected form: rows of k*D features in, rows of k*D features out.
struct MixArgs {
  std::int64_t D = 0, order = 0, sequences = 0;
  const std::int64_t *queries = nullptr, *keys_count = nullptr;  // tokens of each sequence
  Rows ho, se, out, dout, dho, dse;
  const std::uint8_t* keys = nullptr;
  std::int64_t keys_stride = 0;
  ScanRule scan;           // block 0: one H per sequence
  bool plain_mean = true;  // H = sum / n, not sum / (1e-7 + n)
};

struct Kernels {
  const char* isa;
  int features_per_vector;  // lanes of the arithmetic type
  std::size_t (*layer_scratch)(const LayerArgs&);
  void (*context)(const LayerArgs&, void* scratch, std::int64_t tile, std::int64_t g0, std::int64_t g1);
  void (*select)(const LayerArgs&, void* scratch, std::int64_t tile);
  std::size_t (*shared_bytes)(const LayerArgs&);  // of one tile
  void (*select_gate)(const LayerArgs&, void* scratch, std::int64_t tile, std::int64_t g0, std::int64_t g1);
  void (*select_aggregate)(const LayerArgs&, void* scratch, std::int64_t tile, std::int64_t c0,
                           std::int64_t c1);
  void (*scan)(const LayerArgs&, void* scratch, std::int64_t tile);
  void (*fold)(const LayerArgs&, const std::int64_t* sub_begin, std::int64_t segments, const double* scale,
               void* H, std::int64_t f0, std::int64_t f1);
  void (*walk)(const LayerArgs&, const std::int64_t* segment_begin, std::int64_t sequences,
               const double* scale, void* H, void* state, bool backwards, std::int64_t f0, std::int64_t f1);
  void (*rescan)(const LayerArgs&, void* scratch, std::int64_t tile);
  void (*backward_query)(const LayerArgs&, void* scratch, std::int64_t tile);
  void (*backward_context)(const LayerArgs&, void* scratch, std::int64_t tile);
  void (*backward_scan)(const LayerArgs&, void* scratch, std::int64_t order, std::int64_t tiles);
  std::size_t (*mix_scratch)(const MixArgs&);
  void (*mix)(const MixArgs&, void* scratch, std::int64_t sequence, std::int64_t f0, std::int64_t f1);
  void (*mix_backward)(const MixArgs&, void* scratch, std::int64_t sequence, std::int64_t f0,
                       std::int64_t f1);
};

// Gives the processor away while another thread works (the kernels themselves call no library).
void yield_thread();

// The fastest table this processor runs. POM_CPU_ISA=base|avx2|avx512|avx512bf16 in the environment lowers
// it.
const Kernels& kernel_table(DType dtype);

}  // namespace pom::ops::cpu
