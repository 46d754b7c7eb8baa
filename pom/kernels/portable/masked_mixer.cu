// The passes of the masked mixer one after another, and the plan that they follow.
#include <algorithm>

#include "pom/kernels/portable/masked_cut.cuh"
#include "pom/kernels/portable/masked_mixer.h"
#include "pom/kernels/portable/masked_parts.h"
#include "pom/kernels/portable/mixer.h"

namespace pom::kernels {
namespace {

using namespace masked;
using Lengths = std::vector<int64_t>;

// ---- the plan ----

Cut cut_equal(int64_t sequences, int64_t length, int64_t run, int64_t piece) {
  Cut c;
  c.sequences = sequences, c.length = length, c.rows = sequences * length;
  c.run = std::max<int64_t>(std::min(run, length), 1), c.piece = piece;
  c.runs = sequences * runs_of(length, c.run), c.pieces = sequences * pieces_of(length, c.run, piece);
  return c;
}

// With its table at the end of `table`, and in the meantime the place there as the table's address.
Cut cut_packed(const Lengths& lengths, int64_t run, int64_t piece, std::vector<int32_t>& table) {
  Cut c;
  int64_t longest = 1;
  for (const int64_t length : lengths) longest = std::max(longest, length);
  c.sequences = static_cast<int64_t>(lengths.size());
  c.run = std::min(run, longest), c.piece = piece;
  std::vector<int32_t> rows{0}, runs{0}, pieces{0}, of_runs, of_pieces;
  for (int64_t s = 0; s < c.sequences; ++s) {
    const int64_t here = runs_of(lengths[s], c.run), cut = pieces_of(lengths[s], c.run, piece);
    c.rows += lengths[s], c.runs += here, c.pieces += cut;
    rows.push_back(static_cast<int32_t>(c.rows)), runs.push_back(static_cast<int32_t>(c.runs));
    pieces.push_back(static_cast<int32_t>(c.pieces));
    of_runs.insert(of_runs.end(), here, static_cast<int32_t>(s));
    of_pieces.insert(of_pieces.end(), cut, static_cast<int32_t>(s));
  }
  for (const auto& part : {rows, runs, pieces, of_runs, of_pieces})
    table.insert(table.end(), part.begin(), part.end());
  return c;
}
int64_t table_size(const Cut& c) {
  return 3 * (c.sequences + 1) + c.runs + c.pieces;
}

constexpr int64_t kAll = int64_t{1} << 30;  // more than any sequence has

int64_t or_all(int64_t n) {
  return n > 0 ? std::min(n, kAll) : kAll;
}
// Of the rows of keys and of queries, and of slots.
struct Steps {
  int64_t run, piece, slots;
};
Steps steps_of(const MaskedSizes& s) {
  if (s.block == 1) return {or_all(s.window), kScanPiece, 0};
  return {or_all(s.block), kSlotPiece, s.block > 0 ? or_all(s.window) : 0};
}

bool valid(const MaskedPlan& p) {
  const MaskedSizes& s = p.sizes;
  const bool placed = p.table.empty() || p.keys.table;
  return s.D >= 1 && s.order >= 1 && s.order <= kMaxMixerOrder && placed &&
         std::max(p.keys.rows, p.queries.rows) < kAll;
}
Sizes sizes_of(const MaskedPlan& p) {
  return {p.sizes.dtype, p.sizes.D, p.sizes.order};
}

// ---- scratch: floats taken one stretch after another ----

class Scratch {
 public:
  Scratch(float* memory, int64_t columns) : memory_(memory), columns_(columns) {}
  float* rows(int64_t count) {
    float* here = memory_ ? memory_ + taken_ : nullptr;
    taken_ += count * columns_;
    return here;
  }
  int64_t taken() const { return taken_; }

 private:
  float* memory_;
  int64_t columns_, taken_ = 0;
};

// Of a scan: null what it does not need. Two for p, and for g, whose sums are read again by the last rows
// under a window.
bool several_pieces(const Cut& c) {
  return c.pieces_of_run() > 1;
}
bool several_runs(const Cut& c) {
  return c.runs > c.sequences;
}
struct Ends {
  float *sums = nullptr, *before = nullptr, *after = nullptr;
};
Ends ends_of(const Cut& c, Scratch& scratch) {
  Ends e;
  if (!several_pieces(c)) return e;
  e.sums = scratch.rows(c.pieces), e.before = scratch.rows(c.pieces);
  if (several_runs(c)) e.after = scratch.rows(c.pieces);
  return e;
}

// Of slots: those of pieces, of runs, and two for walks.
struct Sums {
  float *pieces, *runs, *seen, *other;
};
Sums sums_of(const MaskedPlan& p, const Cut& c, Scratch& scratch) {
  Sums s{scratch.rows(c.pieces), scratch.rows(c.runs), nullptr, nullptr};
  if (p.sizes.block == 0) return s;
  s.seen = scratch.rows(c.runs);
  if (several_runs(p.slots)) s.other = scratch.rows(c.runs);
  return s;
}

// ---- the passes ----

#define POM_TRY(call)                           \
  do {                                          \
    const cudaError_t status_ = call;           \
    if (status_ != cudaSuccess) return status_; \
  } while (false)

cudaError_t scan_ends(const MaskedPlan& p, const void* ho, const Ends& e, cudaStream_t stream) {
  if (!e.sums) return cudaSuccess;
  const Sizes s = sizes_of(p);
  POM_TRY(sum_powers(p.keys, s, ho, e.sums, stream));
  POM_TRY(walk_pieces(p.keys, s.columns(), {}, e.sums, e.before, stream));
  if (!e.after) return cudaSuccess;
  return walk_pieces(p.keys, s.columns(), {.backward = true}, e.sums, e.after, stream);
}

// Sums over the slots of each slot's range: those up to it, or for gradients those from it on.
cudaError_t walk_slots(const MaskedPlan& p, bool backward, const float* in, float* other, float* out,
                       cudaStream_t stream) {
  const int64_t columns = p.sizes.features();
  if (other) POM_TRY(walk_pieces(p.slots, columns, {!backward, true, nullptr}, in, other, stream));
  return walk_pieces(p.slots, columns, {backward, true, other}, in, out, stream);
}

// What each slot's queries see, in s.seen or, of whole sequences, s.runs; or in `wanted`.
cudaError_t slot_sums(const MaskedPlan& p, const void* ho, const Sums& s, float* wanted, const float*& found,
                      cudaStream_t stream) {
  const bool walks = p.sizes.block > 0;
  float* own = !walks && wanted ? wanted : s.runs;
  POM_TRY(sum_powers(p.keys, sizes_of(p), ho, s.pieces, stream));
  POM_TRY(add_pieces(p.keys, p.sizes.features(), s.pieces, own, stream));
  found = own;
  if (!walks) return cudaSuccess;
  float* seen = wanted ? wanted : s.seen;
  found = seen;
  return walk_slots(p, false, own, s.other, seen, stream);
}

Seen seen_of(const MaskedPlan& p) {
  return {p.keys, p.sizes.window, p.sizes.block > 0};
}

Sums forward_sums(const MaskedPlan& p, Scratch& scratch) {
  return sums_of(p, p.keys, scratch);
}

cudaError_t slots_forward(const MaskedPlan& p, const MaskedForward& f, Scratch scratch, cudaStream_t stream) {
  const Sums s = forward_sums(p, scratch);
  const float* seen = nullptr;
  POM_TRY(slot_sums(p, f.ho, s, f.sums, seen, stream));
  return slot_gate(p.queries, sizes_of(p), seen_of(p), {f.se, seen, f.out}, stream);
}

cudaError_t slots_backward(const MaskedPlan& p, const MaskedBackward& b, Scratch scratch,
                           cudaStream_t stream) {
  const Sums s = forward_sums(p, scratch), g = sums_of(p, p.queries, scratch);
  const float* seen = b.sums;
  if (!seen) POM_TRY(slot_sums(p, b.ho, s, nullptr, seen, stream));
  POM_TRY(slot_gate_backward(p.queries, sizes_of(p), seen_of(p),
                             {b.dout, b.se, seen, b.dse, b.gated, g.pieces, b.dse_sums}, stream));
  POM_TRY(add_pieces(p.queries, p.sizes.features(), g.pieces, g.runs, stream));
  if (g.seen) POM_TRY(walk_slots(p, true, g.runs, g.other, g.seen, stream));
  return slot_context_backward(p.keys, sizes_of(p), {b.ho, g.seen ? g.seen : g.runs, b.dho, b.dho_sums},
                               stream);
}

cudaError_t scans_forward(const MaskedPlan& p, const MaskedForward& f, Scratch scratch, cudaStream_t stream) {
  const Ends e = ends_of(p.keys, scratch);
  POM_TRY(scan_ends(p, f.ho, e, stream));
  return scan_forward(p.keys, sizes_of(p), {f.ho, f.se, e.before, e.after, f.out}, stream);
}

cudaError_t scans_backward(const MaskedPlan& p, const MaskedBackward& b, Scratch scratch,
                           cudaStream_t stream) {
  const Sizes s = sizes_of(p);
  const Ends e = ends_of(p.keys, scratch);
  Ends g = ends_of(p.keys, scratch);
  if (!several_runs(p.keys)) std::swap(g.before, g.after);  // rows are seen by what comes after them
  POM_TRY(scan_ends(p, b.ho, e, stream));
  if (g.sums) POM_TRY(scan_gate_sums(p.keys, s, b.dout, b.se, g.sums, stream));
  if (g.after) POM_TRY(walk_pieces(p.keys, s.columns(), {.backward = true}, g.sums, g.after, stream));
  if (g.before) POM_TRY(walk_pieces(p.keys, s.columns(), {}, g.sums, g.before, stream));
  return scan_backward(p.keys, s,
                       {b.dout, b.ho, b.se, e.before, e.after, g.sums, g.before, g.after, b.dho, b.dse,
                        b.gated, b.dho_sums, b.dse_sums},
                       stream);
}

#undef POM_TRY

}  // namespace

MaskedPlan masked_plan(const MaskedSizes& sizes, int64_t sequences, int64_t queries, int64_t keys) {
  const Steps s = steps_of(sizes);
  MaskedPlan p;
  p.sizes = sizes;
  p.keys = cut_equal(sequences, keys, s.run, s.piece);
  p.queries = cut_equal(sequences, queries, s.run, s.piece);
  if (s.slots > 0) p.slots = cut_equal(sequences, runs_of(keys, p.keys.run), s.slots, 1);
  return p;
}

MaskedPlan masked_plan(const MaskedSizes& sizes, const Lengths& queries, const Lengths& keys) {
  const Steps s = steps_of(sizes);
  MaskedPlan p;
  p.sizes = sizes;
  p.keys = cut_packed(keys, s.run, s.piece, p.table);
  p.queries = sizes.block > 0 ? p.keys : cut_packed(queries, s.run, s.piece, p.table);
  if (s.slots == 0) return p;
  Lengths slots;
  for (const int64_t length : keys) slots.push_back(runs_of(length, p.keys.run));
  p.slots = cut_packed(slots, s.slots, 1, p.table);
  return p;
}

void MaskedPlan::place(const int32_t* on_device) {
  if (table.empty()) return;
  keys.table = on_device;
  queries.table = sizes.block > 0 ? on_device : on_device + table_size(keys);
  slots.table = on_device + table_size(keys);
}

int64_t masked_forward_scratch(const MaskedPlan& p) {
  Scratch scratch(nullptr, p.sizes.features());
  if (p.scans())
    ends_of(p.keys, scratch);
  else
    forward_sums(p, scratch);
  return scratch.taken();
}

int64_t masked_backward_scratch(const MaskedPlan& p) {
  Scratch scratch(nullptr, p.sizes.features());
  if (p.scans()) {
    ends_of(p.keys, scratch);
    ends_of(p.keys, scratch);
  } else {
    forward_sums(p, scratch);
    sums_of(p, p.queries, scratch);
  }
  return scratch.taken();
}

cudaError_t masked_mixer(const MaskedPlan& p, const MaskedForward& f, cudaStream_t stream) {
  if (!valid(p)) return cudaErrorInvalidValue;
  const Scratch scratch(f.scratch, p.sizes.features());
  return p.scans() ? scans_forward(p, f, scratch, stream) : slots_forward(p, f, scratch, stream);
}

cudaError_t masked_mixer_backward(const MaskedPlan& p, const MaskedBackward& b, cudaStream_t stream) {
  if (!valid(p)) return cudaErrorInvalidValue;
  const Scratch scratch(b.scratch, p.sizes.features());
  return p.scans() ? scans_backward(p, b, scratch, stream) : slots_backward(p, b, scratch, stream);
}

}  // namespace pom::kernels
