// The whole layer on one tile of tokens: the three products with everything between them done while the
// features are in cache, and the six products of the backward pass. Features are taken in groups of `group`
// of each degree, so that what a thread holds at a time is (k * group) x T numbers, never (k * D) x N.
//
// Scratch holds, lanes being tokens: z[k*F][T], panels of x, of the gated features, and out[d][T].
#pragma once

#include "pom/ops/cpu/row_panels.h"
#include "pom/ops/cpu/walk.h"

namespace pom::ops::cpu {
namespace {

POM_INLINE std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

template <class P>
class LayerTile {
  using Store = typename P::Store;
  using Acc = typename P::Acc;
  using Word = typename P::Word;
  static constexpr int L = kLanes<Acc>;

 public:
  LayerTile(const LayerArgs& args, void* scratch) : a_(args), T_(args.tile), kD_(args.order * args.D) {
    base_ = static_cast<char*>(scratch);
    const std::int64_t kF = round_up(a_.order * a_.group + kRows, kRows), wide = round_up(a_.d, kPanel<P>);
    take(x_, T_ * words_of<P>(a_.d));
    take(out_, round_up(a_.d, kStrips * kRows) * T_);
    take(z_, kF * T_);
    take(gated_, a_.order * words_of<P>(a_.group) * T_);
    take(weights_, maximum(weights_scratch<P>(1, a_.d), weights_scratch<P>(a_.order, a_.group)));
    take(row_, T_);
    take(scale_, a_.stream ? T_ : 0);
    take(shift_, a_.stream ? T_ : 0);
    take(prepared_, a_.stream ? prepared_scratch<P>(a_.d) : 0);
    const std::int64_t line = T_ + L;  // a spread row may run over its end by a vector
    take(spread_, line);
    take(visible_, line);
    take(inverse_, line);
    take(pair_even_, line);
    take(pair_odd_, line);
    take(bias_ho_, kF);
    take(bias_se_, kF);
    take(walk_, T_ * L);
    const bool scan = a_.scan.block != 0, backward = a_.backward;
    take(z2_, scan ? kF * T_ : 0);
    take(x2_, scan && !backward ? T_ * words_of<P>(a_.d) : 0);
    take(out2_, scan && backward ? round_up(a_.d, kStrips * kRows) * T_ : 0);
    take(strips_,
         backward ? maximum(transposed_scratch<P>(1, a_.d), transposed_scratch<P>(a_.order, a_.group)) : 0);
    take(rows_a_, backward ? kF * T_ : 0);
    take(rows_b_, backward ? kF * T_ : 0);
    take(columns_a_, backward ? words_of<P>(T_) * wide : 0);
    take(columns_b_, backward ? words_of<P>(T_) * wide : 0);
    take(columns_c_, scan && backward ? words_of<P>(T_) * wide : 0);
  }
  std::size_t scratch_bytes() const { return used_; }

  // The partial sums of a tile of context tokens, for the feature groups g0 .. g1.
  void context(std::int64_t tile, std::int64_t g0, std::int64_t g1) {
    open(a_.ctiles[tile], a_.cpieces);
    pack(a_.xc, x_);
    for (std::int64_t g = g0; g < g1; ++g) {
      set_group(g);
      project(a_.w_ho, x_, z_);
      powers(z_, true);
      sum_tokens(z_);
    }
  }

  // Queries against a known H.
  void select(std::int64_t tile) {
    open(a_.tiles[tile], a_.pieces);
    pack(a_.xq, x_);
    for (std::int64_t g = 0; g < a_.groups; ++g) {
      set_group(g);
      project(a_.w_se, x_, z_);
      gate(z_, nullptr);
      aggregate();
    }
    unpack(0, a_.d);
  }

  // select() in two steps, for fewer tiles than threads: the gated features of the groups g0 .. g1 to shared
  // memory,
  void select_gate(std::int64_t tile, std::int64_t g0, std::int64_t g1) {
    open(a_.tiles[tile], a_.pieces);
    pack(a_.xq, x_);
    for (std::int64_t g = g0; g < g1; ++g) {
      set_group(g);
      gated_ = shared_gated(tile);
      project(a_.w_se, x_, z_);
      gate(z_, nullptr);
    }
  }
  // then the output channels c0 .. c1 (c0 a multiple of the vector's lanes) from all groups.
  void select_aggregate(std::int64_t tile, std::int64_t c0, std::int64_t c1) {
    open(a_.tiles[tile], a_.pieces);
    for (std::int64_t g = 0; g < a_.groups; ++g) {
      set_group(g);
      gated_ = shared_gated(tile);
      aggregate(c0, c1);
    }
    unpack(c0, c1);
  }
  static std::size_t shared_words(const LayerArgs& a) {
    return static_cast<std::size_t>(a.groups * a.order * words_of<P>(a.group) * a.tile);
  }

  // Both at once under a causal mask: the running sum goes from tile to tile, group by group.
  void scan(std::int64_t tile) {
    open(a_.tiles[tile], a_.pieces);
    pack(a_.xc, x_);
    const bool self = a_.xc.data == a_.xq.data && a_.xc.row == a_.xq.row && a_.xc.sequence == a_.xq.sequence;
    if (!self) pack(a_.xq, x2_);
    visible_counts();
    for (std::int64_t g = 0; g < a_.groups; ++g) {
      set_group(g);
      project(a_.w_ho, x_, z_);
      powers(z_, true);
      wait_for(g, tile);
      walk(z_, false, inverse_);
      pass_on(g);
      project(a_.w_se, self ? x_ : x2_, z2_);
      gate(z2_, z_);
      aggregate();
    }
    unpack(0, a_.d);
  }

  // H of every token again, from the saved projections.
  void rescan(std::int64_t tile) {
    open(a_.tiles[tile], a_.pieces);
    visible_counts();
    for (std::int64_t g = 0; g < a_.groups; ++g) {
      set_group(g);
      for (std::int64_t r = 0; r < a_.order * F_; ++r)
        for (int t = 0; t < tile_->count; t += L)
          store(z_ + r * T_ + t, load_some(saved(a_.ho, r) + t, tile_->count - t));
      powers(z_, false);
      wait_for(g, tile);
      walk(z_, false, inverse_);
      pass_on(g);
      for (std::int64_t r = 0; r < a_.order * F_; ++r)
        for (int t = 0; t < tile_->count; t += L)
          store_some(saved_acc(a_.Hrows, r) + t, load(z_ + r * T_ + t), tile_->count - t);
    }
  }

  // Gradients of what belongs to the queries; leaves sum over tokens of dL/dH in `sums`.
  void backward_query(std::int64_t tile) {
    open(a_.tiles[tile], a_.pieces);
    open_backward_query();
    for (std::int64_t g = 0; g < a_.groups; ++g) {
      set_group(g);
      unproject_output();
      backward_gate(nullptr);
      sum_tokens(z_);
      if (a_.need_x) unproject(a_.w_se, out_);
      if (a_.need_w) {
        wait_for(g, tile);
        query_weights(tile, a_.tile_count);
        pass_on(g);
      }
    }
    if (a_.need_x) unpack_tokens<P>(out_, T_, a_.d, nullptr, rows_of(a_.dxq), tile_->count);
  }

  // Gradients of what belongs to the context, dL/dsum being known.
  void backward_context(std::int64_t tile) {
    open(a_.ctiles[tile], a_.cpieces);
    if (a_.need_w) pack_columns<P>(rows_of(a_.xc), tile_->count, a_.d, columns_a_);
    for (std::int64_t g = 0; g < a_.groups; ++g) {
      set_group(g);
      backward_powers(nullptr);
      if (a_.need_x) unproject(a_.w_ho, out_);
      if (a_.need_w) {
        wait_for(g, tile);
        context_weights(columns_a_, tile, a_.ctile_count);
        pass_on(g);
      }
    }
    if (a_.need_x) unpack_tokens<P>(out_, T_, a_.d, nullptr, rows_of(a_.dxc), tile_->count);
  }

  // The two together under a causal mask; tiles go backwards: `order` counts from the last one.
  void backward_scan(std::int64_t order, std::int64_t tiles) {
    open(a_.tiles[tiles - 1 - order], a_.pieces);
    open_backward_query();
    if (a_.need_w) pack_columns<P>(rows_of(a_.xc), tile_->count, a_.d, columns_c_);
    visible_counts();
    for (std::int64_t g = 0; g < a_.groups; ++g) {
      set_group(g);
      for (std::int64_t r = 0; r < a_.order * F_; ++r)
        for (int t = 0; t < tile_->count; t += L)
          store(z2_ + r * T_ + t, load_some(saved_acc(a_.Hrows, r) + t, tile_->count - t));
      unproject_output();
      backward_gate(z2_);
      if (a_.need_x) unproject(a_.w_se, out_);
      wait_for(g, order);
      scale_lanes(z_, inverse_);
      walk(z_, true, nullptr);
      if (a_.need_w) query_weights(order, tiles);
      backward_powers(z_);
      if (a_.need_w) context_weights(columns_c_, order, tiles);
      pass_on(g);
      if (a_.need_x) unproject(a_.w_ho, out2_);
    }
    if (!a_.need_x) return;
    unpack_tokens<P>(out_, T_, a_.d, nullptr, rows_of(a_.dxq), tile_->count);
    unpack_tokens<P>(out2_, T_, a_.d, nullptr, rows_of(a_.dxc), tile_->count);
  }

 private:
  static std::size_t maximum(std::size_t a, std::size_t b) { return a > b ? a : b; }

  template <class X>
  void take(X*& pointer, std::size_t count) {
    pointer = base_ ? reinterpret_cast<X*>(base_ + used_) : nullptr;
    used_ += (count * sizeof(X) + 127) / 64 * 64;
  }

  void open(const Tile& tile, const Piece* pieces) {
    tile_ = &tile;
    pieces_ = pieces + tile.first_piece;
    lanes_ = static_cast<int>(round_up(tile.count, L));
  }
  void set_group(std::int64_t g) {
    g_ = g;
    f0_ = g * a_.group;
    F_ = a_.D - f0_ < a_.group ? a_.D - f0_ : a_.group;
    read_bias(a_.b_ho, bias_ho_);
    read_bias(a_.b_se, bias_se_);
  }
  void read_bias(const void* b, Acc* target) {
    for (std::int64_t c = 0; c < a_.order; ++c)
      for (std::int64_t f = 0; f < F_; f += L)
        store_some(target + c * F_ + f,
                   b ? load_some(static_cast<const Store*>(b) + c * a_.D + f0_ + f, F_ - f) : V<Acc>{},
                   F_ - f);
  }
  // Row r of the group is feature `feature(r)` of all k*D.
  std::int64_t feature(std::int64_t r) const { return r / F_ * a_.D + f0_ + r % F_; }

  template <class X = Store>
  X** rows_of(const Rows& x) {
    X** row = reinterpret_cast<X**>(row_);
    for (int p = 0; p < tile_->pieces; ++p)
      for (int t = 0; t < pieces_[p].count; ++t)
        row[pieces_[p].offset + t] =
            static_cast<X*>(x.data) + x.at(pieces_[p].sequence, pieces_[p].start + t);
    return row;
  }
  const Acc** rows_of(const PerSequence& values, const Acc** row) {
    for (int p = 0; p < tile_->pieces; ++p)
      for (int t = 0; t < pieces_[p].count; ++t)
        row[pieces_[p].offset + t] =
            static_cast<const Acc*>(values.data) + pieces_[p].sequence * values.stride;
    return row;
  }
  // The tile's tokens to panels.
  void pack(const Rows& x, Word* panels) {
    if (!a_.stream) return pack_tokens<P>(rows_of(x), tile_->count, a_.d, panels);
    pack_normalised<P>(rows_of<Acc>(x), rows_of(a_.scale, scale_), rows_of(a_.shift, shift_), tile_->count,
                       a_.d, a_.eps, prepared_, panels);
  }
  // Channels c0 .. c1 of the result, which are the first of out_.
  void unpack(std::int64_t c0, std::int64_t c1) {
    const Store* b = a_.b_ag ? bias(a_.b_ag) + c0 : nullptr;
    if (!a_.stream) {
      Store** row = rows_of(a_.out);
      for (int t = 0; t < tile_->count; ++t) row[t] += c0;
      return unpack_tokens<P>(out_, T_, c1 - c0, b, row, tile_->count);
    }
    Acc** row = rows_of<Acc>(a_.out);
    const Acc** gate = rows_of(a_.gate, scale_);
    for (int t = 0; t < tile_->count; ++t) row[t] += c0, gate[t] += c0;
    unpack_residual<P>(out_, T_, c1 - c0, b, row, gate, tile_->count);
  }
  static const Store* bias(const void* b) { return static_cast<const Store*>(b); }
  Store* saved(void* buffer, std::int64_t r) const {
    return static_cast<Store*>(buffer) + tile_->saved * kD_ + feature(r) * tile_->count;
  }
  Acc* saved_acc(void* buffer, std::int64_t r) const {
    return static_cast<Acc*>(buffer) + tile_->saved * kD_ + feature(r) * tile_->count;
  }

  // ---- order between threads: group g of a tile follows group g of the tile before ----
  void wait_for(std::int64_t g, std::int64_t turn) const {
    for (int spins = 0; a_.done[g].load(std::memory_order_acquire) != turn; ++spins) relax(spins);
  }
  void pass_on(std::int64_t g) const { a_.done[g].fetch_add(1, std::memory_order_release); }

  // ---- products ----

  // z[k*F][T] = rows of a projection times the tokens' panels (d inner).
  void project(const Matrix& w, const Word* x, Acc* z) {
    const Store* base = static_cast<const Store*>(w.data);
    for (std::int64_t c = 0; c < a_.order; ++c)
      multiply_weights<P>(base + (c * a_.D + f0_) * w.ld, w.ld, F_, 1, a_.d, 0, x,
                          words_of<P>(a_.d) * kPanel<P>, tile_->count, z + c * F_ * T_, T_, false, weights_);
  }
  std::int64_t gated_step() const { return a_.order * words_of<P>(F_) * kPanel<P>; }
  Word* shared_gated(std::int64_t tile) const {
    return static_cast<Word*>(a_.shared) + tile * shared_words(a_) +
           g_ * a_.order * words_of<P>(a_.group) * T_;
  }
  // out[d][T] += ag_proj of the gated group; or only its channels c0 .. c1.
  void aggregate() { aggregate(0, a_.d); }
  void aggregate(std::int64_t c0, std::int64_t c1) {
    multiply_weights<P>(static_cast<const Store*>(a_.w_ag.data) + c0 * a_.w_ag.ld + f0_, a_.w_ag.ld, c1 - c0,
                        a_.order, F_, a_.D, gated_, gated_step(), tile_->count, out_, T_, g_ != 0, weights_);
  }
  // z[k*F][T] = gradient of the gated features.
  void unproject_output() {
    const Store* base = static_cast<const Store*>(a_.w_ag.data);
    for (std::int64_t c = 0; c < a_.order; ++c)
      multiply_transposed<P>(base + c * a_.D + f0_, a_.w_ag.ld, F_, 1, a_.d, 0, x_,
                             words_of<P>(a_.d) * kPanel<P>, tile_->count, z_ + c * F_ * T_, T_, false,
                             strips_);
  }
  // out[d][T] += gradient of the tokens through a projection, from the panels in gated_.
  void unproject(const Matrix& w, Acc* out) {
    multiply_transposed<P>(static_cast<const Store*>(w.data) + f0_ * w.ld, w.ld, a_.d, a_.order, F_, a_.D,
                           gated_, gated_step(), tile_->count, out, T_, g_ != 0, strips_);
  }
  // dw[features of the group][d] += rows (features x tokens) times columns (tokens x d).
  void accumulate(void* dw, const Word* rows, const Word* columns, bool first) {
    const std::int64_t k = words_of<P>(tile_->count);
    for (std::int64_t c = 0; c < a_.order; ++c)
      multiply_rows<P>(Extent{1, k, 0, 0}, rows + c * F_ * (T_ / P::kPair), T_ / P::kPair, F_, columns,
                       k * kPanel<P>, static_cast<int>(a_.d),
                       static_cast<Acc*>(dw) + (c * a_.D + f0_) * a_.dw_ld, a_.dw_ld, !first);
  }

  // ---- between the products ----

  // z becomes the running products of gelu(z + bias); the projection itself is saved for the backward pass.
  void powers(Acc* z, bool projected) {
    const bool save = projected && a_.ho != nullptr;
    if (a_.keys) visible_lanes();
    for (std::int64_t f = 0; f < F_; ++f)
      for (int t = 0; t < lanes_; t += L) {
        V<Acc> run = {};
        for (std::int64_t c = 0; c < a_.order; ++c) {
          const std::int64_t r = c * F_ + f;
          V<Acc> x = load(z + r * T_ + t);
          if (projected) x += splat(bias_ho_[r]);
          if (save) store_some(saved(a_.ho, r) + t, x, tile_->count - t);
          const V<Acc> h = gelu<Acc>(x);
          run = c == 0 ? h : run * h;
          store(z + r * T_ + t, a_.keys ? (load(visible_ + t) != 0 ? run : V<Acc>{}) : run);
        }
      }
  }

  void visible_lanes() {
    for (int p = 0; p < tile_->pieces; ++p)
      for (int t = 0; t < pieces_[p].count; ++t)
        visible_[pieces_[p].offset + t] =
            a_.keys[pieces_[p].sequence * a_.keys_stride + pieces_[p].start + t] ? Acc(1) : Acc(0);
    for (int t = tile_->count; t < lanes_; ++t) visible_[t] = 0;
  }

  // 1 / (1e-7 + how many tokens each token sees) under a causal mask.
  void visible_counts() {
    for (int p = 0; p < tile_->pieces; ++p) {
      const Piece& piece = pieces_[p];
      const std::int64_t n = a_.scan_length[piece.sequence], block = a_.scan.block;
      const double before = a_.init_count ? static_cast<double>(a_.init_count[piece.sequence]) : 0.0;
      for (int t = 0; t < piece.count; ++t) {
        const std::int64_t b = (piece.start + t) / block;
        const std::int64_t end = (b + 1) * block < n ? (b + 1) * block : n;
        const std::int64_t begin =
            a_.scan.window && b >= a_.scan.window ? (b - a_.scan.window + 1) * block : 0;
        inverse_[piece.offset + t] =
            static_cast<Acc>(1.0 / (1e-7 + before + static_cast<double>(end - begin)));
      }
    }
    for (int t = tile_->count; t < lanes_; ++t) inverse_[t] = 0;
  }

  // Partial sums of rows z, one for each sub of each piece.
  void sum_tokens(const Acc* z) {
    Acc* sums = static_cast<Acc*>(a_.sums);
    for (int p = 0; p < tile_->pieces; ++p)
      for (int s = 0; s * kSub < pieces_[p].count; ++s) {
        const int begin = pieces_[p].offset + s * kSub, left = pieces_[p].count - s * kSub;
        const int count = left < kSub ? left : kSub;
        add_rows(
            sums + (pieces_[p].sub + s) * kD_, true,
            [&](std::int64_t r, int t) { return load_some(z + r * T_ + begin + t, count - t); }, count);
      }
  }
  // target[feature] (+)= sum over t < count of value(row, t), for every row of the group; a vector of rows at
  // a time.
  template <class Value>
  POM_INLINE void add_rows(Acc* target, bool first, Value value, int count) {
    for (std::int64_t c = 0; c < a_.order; ++c)
      for (std::int64_t f = 0; f < F_; f += L) {
        V<Acc> total[L];
        for (int i = 0; i < L; ++i) {
          total[i] = V<Acc>{};
          for (int t = 0; f + i < F_ && t < count; t += L) total[i] += value(c * F_ + f + i, t);
        }
        transpose(total);
        for (int half = L / 2; half > 0; half /= 2)
          for (int i = 0; i < half; ++i) total[i] += total[i + half];
        Acc* place = target + c * a_.D + f0_ + f;
        store_some(place, first ? total[0] : load_some(place, F_ - f) + total[0], F_ - f);
      }
  }

  // A row of per-segment values spread over the tile's lanes.
  const Acc* spread(const void* values, std::int64_t f) {
    for (int p = 0; p < tile_->pieces; ++p) {
      const V<Acc> value = splat(static_cast<const Acc*>(values)[pieces_[p].segment * kD_ + f]);
      for (int t = 0; t < pieces_[p].count; t += L) store(spread_ + pieces_[p].offset + t, value);
    }
    for (int t = tile_->count; t < lanes_; ++t) spread_[t] = 0;
    return spread_;
  }

  Word* panel_at(std::int64_t c, std::int64_t f, int t) {
    return gated_ + t / kPanel<P> * gated_step() + (c * words_of<P>(F_) + f / P::kPair) * kPanel<P> +
           t % kPanel<P>;
  }
  // Two rows of the group as words of the panels (one where words are single numbers).
  void put_panel(std::int64_t c, std::int64_t f, int t, V<Acc> even, V<Acc> odd) {
    const V<Word> w = P::words(even, odd);
    std::memcpy(panel_at(c, f, t), &w, sizeof(w));
  }
  void put_row(Word* rows, std::int64_t r, int t, V<Acc> v) {
    if constexpr (P::kPair == 2)
      store(reinterpret_cast<Store*>(rows) + r * T_ + t, v);
    else
      store(rows + r * T_ + t, v);
  }

  // The gated features sigmoid(z + bias) * H as panels. H is per segment, or rows under a causal mask.
  void gate(Acc* z, const Acc* H) {
    for (std::int64_t c = 0; c < a_.order; ++c)
      for (std::int64_t f = 0; f < F_; ++f) {
        const std::int64_t r = c * F_ + f;
        const Acc* h = H ? H + r * T_ : spread(a_.H, feature(r));
        const V<Acc> b = splat(bias_se_[r]);
        Acc* row = z + r * T_;
        for (int t = 0; t < lanes_; t += L) {
          const V<Acc> x = load(row + t) + b;
          if (a_.se) store_some(saved(a_.se, r) + t, x, tile_->count - t);
          store(row + t, sigmoid<Acc>(x) * load(h + t));
        }
        emit_panel(z, c, f);
      }
  }
  // Row f of degree c of z goes to the panels; with pairs, once its partner is there too.
  void emit_panel(const Acc* z, std::int64_t c, std::int64_t f) {
    if (f % P::kPair != P::kPair - 1 && f != F_ - 1) return;
    const std::int64_t even = f - f % P::kPair;
    const bool whole = even + P::kPair - 1 < F_;
    for (int t = 0; t < lanes_; t += L)
      put_panel(c, even, t, load(z + (c * F_ + even) * T_ + t),
                P::kPair == 2 && whole ? load(z + (c * F_ + even + 1) * T_ + t) : V<Acc>{});
  }

  void open_backward_query() {
    pack_tokens<P>(rows_of(a_.dout), tile_->count, a_.d, x_);
    if (!a_.need_w) return;
    pack_columns<P>(rows_of(a_.dout), tile_->count, a_.d, columns_b_);
    pack_columns<P>(rows_of(a_.xq), tile_->count, a_.d, columns_a_);
  }

  // z: gradient of the gated features in, gradient of H (per token) out; gradient of se to panels and rows_a,
  // the gated features themselves to rows_b.
  void backward_gate(const Acc* H) {
    const V<Acc> one = splat(Acc(1));
    for (std::int64_t c = 0; c < a_.order; ++c)
      for (std::int64_t f = 0; f < F_; ++f) {
        const std::int64_t r = c * F_ + f;
        const Acc* h = H ? H + r * T_ : spread(a_.H, feature(r));
        const Store* se = saved(a_.se, r);
        Acc* slope = f % 2 == 0 ? pair_even_ : pair_odd_;
        for (int t = 0; t < lanes_; t += L) {
          const V<Acc> s = sigmoid<Acc>(load_some(se + t, tile_->count - t));
          const V<Acc> dG = load(z_ + r * T_ + t), hv = load(h + t);
          const V<Acc> dse = dG * hv * s * (one - s);
          store(slope + t, dse);
          put_row(rows_a_, r, t, dse);
          put_row(rows_b_, r, t, s * hv);
          store(z_ + r * T_ + t, dG * s);
        }
        emit_pair(c, f);
      }
  }
  void emit_pair(std::int64_t c, std::int64_t f) {
    if constexpr (P::kPair == 1) {
      const Acc* row = f % 2 == 0 ? pair_even_ : pair_odd_;
      for (int t = 0; t < lanes_; t += L) put_panel(c, f, t, load(row + t), V<Acc>{});
    } else {
      if (f % 2 == 0 && f != F_ - 1) return;
      for (int t = 0; t < lanes_; t += L)
        put_panel(c, f - f % 2, t, load(pair_even_ + t), f % 2 ? load(pair_odd_ + t) : V<Acc>{});
    }
  }

  void scale_lanes(Acc* z, const Acc* factor) {
    for (std::int64_t r = 0; r < a_.order * F_; ++r)
      for (int t = 0; t < lanes_; t += L) store(z + r * T_ + t, load(z + r * T_ + t) * load(factor + t));
  }

  // Gradient of the context projection to panels and rows_a, from the gradient of the sum (per segment, or
  // rows).
  void backward_powers(const Acc* dp) {
    if (a_.keys) visible_lanes();
    for (std::int64_t f = 0; f < F_; ++f) {
      for (std::int64_t c = 0; !dp && c < a_.order; ++c) {
        const Acc* row = spread(a_.dp, feature(c * F_ + f));
        for (int t = 0; t < lanes_; t += L) store(z_ + (c * F_ + f) * T_ + t, load(row + t));
      }
      for (int t = 0; t < lanes_; t += L) backward_powers_at(f, t);
    }
    for (std::int64_t c = 0; c < a_.order; ++c)
      for (std::int64_t f = 0; f < F_; ++f) emit_panel(z_, c, f);
  }
  // z: dL/d(running product) in, dL/d(projection) out, for one vector of tokens and one feature of every
  // degree.
  void backward_powers_at(std::int64_t f, int t) {
    V<Acc> h[kMaxOrder], slope[kMaxOrder], run[kMaxOrder];
    for (std::int64_t c = 0; c < a_.order; ++c) {
      gelu_with_slope<Acc>(load_some(saved(a_.ho, c * F_ + f) + t, tile_->count - t), h[c], slope[c]);
      run[c] = c == 0 ? h[0] : run[c - 1] * h[c];
    }
    V<Acc> through = {};
    for (std::int64_t c = a_.order - 1; c >= 0; --c) {
      Acc* z = z_ + (c * F_ + f) * T_ + t;
      V<Acc> direct = load(z);
      if (a_.keys) direct = load(visible_ + t) != 0 ? direct : V<Acc>{};
      through = c + 1 < a_.order ? direct + through * h[c + 1] : direct;
      const V<Acc> gradient = (c == 0 ? through : through * run[c - 1]) * slope[c];
      store(z, gradient);
      put_row(rows_a_, c * F_ + f, t, gradient);
    }
  }

  // The running sum over the tokens of the tile, in place; lanes become features for it.
  void walk(Acc* z, bool backwards, const Acc* factor) {
    Acc* carry = static_cast<Acc*>(a_.carry);
    for (std::int64_t c = 0; c < a_.order; ++c)
      for (std::int64_t f = 0; f < F_; f += L) {
        const std::int64_t some = F_ - f < L ? F_ - f : L, at = c * a_.D + f0_ + f;
        Acc* rows = z + (c * F_ + f) * T_;
        turn(rows, some, true);
        for (int i = 0; i < tile_->pieces; ++i) {
          const Piece& piece = pieces_[backwards ? tile_->pieces - 1 - i : i];
          const std::int64_t n = a_.scan_length[piece.sequence];
          const std::int64_t blocks = a_.scan.blocks(n);
          const Walker<Acc> walker{carry + at, kD_, window_within(a_.scan.window, blocks), some};
          const std::int64_t offset = piece.sequence * kD_ + at;
          const V<Acc> first =
              a_.init_sum ? load_some(static_cast<const Acc*>(a_.init_sum) + offset, some) : V<Acc>{};
          const V<Acc> seen =
              walk_tokens<Acc>(walker, a_.scan, walk_ + piece.offset * L, piece.start, piece.count, blocks,
                               factor ? factor + piece.offset : nullptr, backwards, first);
          if (a_.final_sum && piece.start + piece.count == n)
            store_some(static_cast<Acc*>(a_.final_sum) + offset, seen, some);
        }
        turn(rows, some, false);
      }
  }
  // rows[L][T] to walk_[T][L], or back.
  void turn(Acc* rows, std::int64_t some, bool to_tokens) {
    for (int t = 0; t < lanes_; t += L) {
      V<Acc> block[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i)
        block[i] = to_tokens ? (i < some ? load(rows + i * T_ + t) : V<Acc>{}) : load(walk_ + (t + i) * L);
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) {
        if (to_tokens)
          store(walk_ + (t + i) * L, block[i]);
        else if (i < some)
          store(rows + i * T_ + t, block[i]);
      }
    }
  }

  void query_weights(std::int64_t turn, std::int64_t turns) {
    accumulate(a_.dw_se, rows_a_, columns_a_, turn == 0);
    accumulate(a_.dw_ag_t, rows_b_, columns_b_, turn == 0);
    row_sums(a_.db_se, turn == 0);
    if (g_ == 0) output_bias(turn == 0);
    if (turn + 1 < turns) return;
    finish(a_.dw_se, a_.gw_se);
    finish_transposed(a_.dw_ag_t, a_.gw_ag);
  }
  void context_weights(const Word* columns, std::int64_t turn, std::int64_t turns) {
    accumulate(a_.dw_ho, rows_a_, columns, turn == 0);
    row_sums(a_.db_ho, turn == 0);
    if (turn + 1 == turns) finish(a_.dw_ho, a_.gw_ho);
  }
  // The group's rows of a weight's gradient, all tiles being in: from sums to the weight's own dtype.
  void finish(const void* dw, void* gw) {
    if (dw == gw) return;
    for (std::int64_t r = 0; r < a_.order * F_; ++r) {
      const Acc* from = static_cast<const Acc*>(dw) + feature(r) * a_.dw_ld;
      Store* to = static_cast<Store*>(gw) + feature(r) * a_.d;
      for (std::int64_t j = 0; j < a_.d; j += L) store_some(to + j, load(from + j), a_.d - j);
    }
  }
  void finish_transposed(const void* dw, void* gw) {
    for (std::int64_t j = 0; j < a_.d; j += L)
      for (std::int64_t c = 0; c < a_.order; ++c)
        for (std::int64_t f = 0; f < F_; f += L) {
          const std::int64_t at = c * a_.D + f0_ + f;
          V<Acc> block[L];
#pragma GCC unroll 16
          for (int i = 0; i < L; ++i)
            block[i] = f + i < F_ ? load(static_cast<const Acc*>(dw) + (at + i) * a_.dw_ld + j) : V<Acc>{};
          transpose(block);
          for (int i = 0; i < L && j + i < a_.d; ++i)
            store_some(static_cast<Store*>(gw) + (j + i) * kD_ + at, block[i], F_ - f);
        }
  }
  // db[feature] += sum over the tile's tokens of rows_a.
  void row_sums(void* db, bool first) {
    add_rows(
        static_cast<Acc*>(db), first, [&](std::int64_t r, int t) { return row_value(r, t); }, tile_->count);
  }
  V<Acc> row_value(std::int64_t r, int t) const {
    if constexpr (P::kPair == 2)
      return load_some(reinterpret_cast<const Store*>(rows_a_) + r * T_ + t, tile_->count - t);
    else
      return load_some(rows_a_ + r * T_ + t, tile_->count - t);
  }
  void output_bias(bool first) {
    Acc* target = static_cast<Acc*>(a_.db_ag);
    Store** row = rows_of(a_.dout);
    for (std::int64_t c = 0; c < a_.d; c += L) {
      V<Acc> total = {};
      for (int t0 = 0; t0 < tile_->count; t0 += 16) {
        V<Acc> part = {};
        for (int t = t0; t < t0 + 16 && t < tile_->count; ++t) part += load_some(row[t] + c, a_.d - c);
        total += part;
      }
      store_some(target + c, first ? total : load_some(target + c, a_.d - c) + total, a_.d - c);
    }
  }

  static POM_INLINE void relax(int spins) {
    if (spins > 4096) return yield_thread();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  const LayerArgs& a_;
  const std::int64_t T_, kD_;
  const Tile* tile_ = nullptr;
  const Piece* pieces_ = nullptr;
  int lanes_ = 0;
  std::int64_t g_ = 0, f0_ = 0, F_ = 0;
  char* base_;
  std::size_t used_ = 0;
  Word *x_, *x2_, *gated_, *weights_, *strips_, *rows_a_, *rows_b_, *columns_a_, *columns_b_, *columns_c_;
  Acc *out_, *out2_, *z_, *z2_, *walk_;
  Acc *spread_, *visible_, *inverse_, *pair_even_, *pair_odd_, *bias_ho_, *bias_se_;
  Store** row_;
  const Acc **scale_, **shift_;
  Acc* prepared_;
};

}  // namespace
}  // namespace pom::ops::cpu
