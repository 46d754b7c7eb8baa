// Compiled once for each instruction set, with POM_ISA naming it; dispatch.cpp picks one at run time.
#include "pom/ops/cpu/panels.h"
#include "pom/ops/cpu/winograd.h"

#define POM_JOIN2(a, b) a##b
#define POM_JOIN(a, b) POM_JOIN2(a, b)

namespace pom::ops::cpu {
namespace {

using FloatProduct = Operand<float>;
constexpr int kWide = kPanel<FloatProduct>;  // channels of a panel of weights
constexpr int kLong = kLanes<float>;
constexpr std::int64_t kGap = 16;     // so that rows of points do not share one cache set
constexpr std::int64_t kInner = 256;  // channels whose weights, kWide wide, stay in the first cache

// ---- weights: [point][panel of out][in][kWide] ----

// The points of one axis; an upsampled map has no third one, and its second value is twice a pixel.
int axis_points(bool upsampled, const float (&g)[3], float* u) {
  const float middle = (g[0] + g[2]) * 0.5f;
  int n = 0;
  u[n++] = g[0];
  u[n++] = middle + g[1] * 0.5f;
  if (!upsampled) u[n++] = middle - g[1] * 0.5f;
  u[n++] = g[2];
  return n;
}

void pack_weights(const WinogradArgs& a, const float* w, const std::int64_t* s, float* packed) {
  const int side = a.upsampled ? 3 : 4;
  for (std::int64_t o = 0; o < a.out; ++o)
    for (std::int64_t c = 0; c < a.in; ++c) {
      const float* kernel = w + o * s[0] + c * s[1];
      float rows[3][4], columns[4];
      for (int r = 0; r < 3; ++r)
        axis_points(a.upsampled, {kernel[r * s[2]], kernel[r * s[2] + s[3]], kernel[r * s[2] + 2 * s[3]]},
                    rows[r]);
      for (int j = 0; j < side; ++j) {
        axis_points(a.upsampled, {rows[0][j], rows[1][j], rows[2][j]}, columns);
        for (int i = 0; i < side; ++i)
          packed[(((i * side + j) * (a.out / kWide) + o / kWide) * a.in + c) * kWide + o % kWide] =
              columns[i];
      }
    }
}

// ---- a run of tiles ----

template <class S>
class WinogradTiles {
 public:
  WinogradTiles(const WinogradArgs& args, void* scratch) : a_(args), base_(static_cast<char*>(scratch)) {
    ld_in_ = a_.in + kGap, ld_out_ = a_.out + kGap;
    take(v_, static_cast<std::size_t>(a_.points() * kMaxWinogradTiles * ld_in_));
    take(m_, static_cast<std::size_t>(a_.points() * kMaxWinogradTiles * ld_out_));
    take(zeros_, static_cast<std::size_t>(a_.in));
  }
  std::size_t scratch_bytes() const { return used_; }

  void run(std::int64_t begin, std::int64_t end) {
    std::memset(static_cast<void*>(zeros_), 0, static_cast<std::size_t>(a_.in) * sizeof(S));
    const std::int64_t count = end - begin;
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t row = (begin + t) / a_.tile_columns(), column = (begin + t) % a_.tile_columns();
      a_.upsampled ? take_doubled(row, column, v_ + t * ld_in_)
                   : take_plain(2 * row - 1, 2 * column - 1, v_ + t * ld_in_);
    }
    for (int p = 0; p < a_.points(); ++p) multiply(p, count);
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t row = (begin + t) / a_.tile_columns(), column = (begin + t) % a_.tile_columns();
      a_.upsampled ? give<3>(2 * row, 2 * column, m_ + t * ld_out_)
                   : give<4>(2 * row, 2 * column, m_ + t * ld_out_);
    }
  }

 private:
  using Vec = V<float>;

  template <class X>
  void take(X*& pointer, std::size_t count) {
    pointer = base_ ? reinterpret_cast<X*>(base_ + used_) : nullptr;
    used_ += (count * sizeof(X) + 127) / 64 * 64;
  }

  const S* pixel(std::int64_t row, std::int64_t column, std::int64_t height, std::int64_t width) const {
    return row >= 0 && row < height && column >= 0 && column < width
               ? static_cast<const S*>(a_.x) + (row * width + column) * a_.in
               : zeros_;
  }

  // The points of 4x4 values from (row, column) on.
  void take_plain(std::int64_t row, std::int64_t column, float* v) const {
    const S* d[4][4];
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) d[i][j] = pixel(row + i, column + j, a_.height, a_.width);
    const std::int64_t step = kMaxWinogradTiles * ld_in_;
    const auto put = [&](int j, std::int64_t c, Vec(&t)[4]) {
      store(v + j * step + c, t[0] - t[2]);
      store(v + (4 + j) * step + c, t[1] + t[2]);
      store(v + (8 + j) * step + c, t[2] - t[1]);
      store(v + (12 + j) * step + c, t[1] - t[3]);
    };
    for (std::int64_t c = 0; c < a_.in; c += kLong) {
      Vec first[4], second[4], third[4], fourth[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Vec d0 = load(d[i][0] + c), d1 = load(d[i][1] + c), d2 = load(d[i][2] + c),
                  d3 = load(d[i][3] + c);
        first[i] = d0 - d2, second[i] = d1 + d2, third[i] = d2 - d1, fourth[i] = d1 - d3;
      }
      put(0, c, first), put(1, c, second), put(2, c, third), put(3, c, fourth);
    }
  }

  // Of the doubled map at the pixel (row, column): a, b, b, c in each axis gives a - b, 2 b, b - c.
  void take_doubled(std::int64_t row, std::int64_t column, float* v) const {
    const S* d[3][3];
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j) d[i][j] = pixel(row - 1 + i, column - 1 + j, a_.height / 2, a_.width / 2);
    const std::int64_t step = kMaxWinogradTiles * ld_in_;
    const auto put = [&](int j, std::int64_t c, Vec(&t)[3]) {
      store(v + j * step + c, t[0] - t[1]);
      store(v + (3 + j) * step + c, t[1] + t[1]);
      store(v + (6 + j) * step + c, t[1] - t[2]);
    };
    for (std::int64_t c = 0; c < a_.in; c += kLong) {
      Vec first[3], second[3], third[3];
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i) {
        const Vec d0 = load(d[i][0] + c), d1 = load(d[i][1] + c), d2 = load(d[i][2] + c);
        first[i] = d0 - d1, second[i] = d1 + d1, third[i] = d1 - d2;
      }
      put(0, c, first), put(1, c, second), put(2, c, third);
    }
  }

  // M of one point: a panel of weights stays near while all tiles pass.
  void multiply(int point, std::int64_t count) {
    const float* v = v_ + point * kMaxWinogradTiles * ld_in_;
    float* m = m_ + point * kMaxWinogradTiles * ld_out_;
    const float* panel = a_.weights + point * a_.in * a_.out;
    for (std::int64_t o = 0; o < a_.out; o += kWide, panel += a_.in * kWide)
      for (std::int64_t c = 0; c < a_.in; c += kInner) {
        const Extent e{1, a_.in - c < kInner ? a_.in - c : kInner, 0, 0};
        rows(e, v + c, count, panel + c * kWide, m + o, c != 0);
      }
  }
  void rows(const Extent& e, const float* v, std::int64_t count, const float* panel, float* m, bool add) {
    std::int64_t t = 0;
    for (; t + kRows <= count; t += kRows)
      micro<FloatProduct, kRows, 2, false>(e, v + t * ld_in_, ld_in_, panel, m + t * ld_out_, ld_out_, add);
    for (; t + 4 <= count; t += 4)
      micro<FloatProduct, 4, 2, false>(e, v + t * ld_in_, ld_in_, panel, m + t * ld_out_, ld_out_, add);
    for (; t < count; ++t)
      micro<FloatProduct, 1, 2, false>(e, v + t * ld_in_, ld_in_, panel, m + t * ld_out_, ld_out_, add);
  }

  // One axis of a tile's results from its points; without the third point where there are three.
  template <int Side>
  static POM_INLINE void results(const Vec (&m)[Side], Vec& even, Vec& odd) {
    if constexpr (Side == 4)
      even = m[0] + m[1] + m[2], odd = m[1] - m[2] - m[3];
    else
      even = m[0] + m[1], odd = m[1] - m[2];
  }

  template <int Side>
  void give(std::int64_t row, std::int64_t column, const float* m) const {
    const std::int64_t step = kMaxWinogradTiles * ld_out_, at = (row * a_.width + column) * a_.out;
    const bool below = row + 1 < a_.height, right = column + 1 < a_.width;
    const std::int64_t next_row = a_.width * a_.out;
    for (std::int64_t o = 0; o < a_.out; o += kLong) {
      Vec even[Side], odd[Side];
#pragma GCC unroll 4
      for (int j = 0; j < Side; ++j) {
        Vec column_points[Side];
#pragma GCC unroll 4
        for (int i = 0; i < Side; ++i) column_points[i] = load(m + (i * Side + j) * step + o);
        results<Side>(column_points, even[j], odd[j]);
      }
      const Vec bias = a_.bias ? load(a_.bias + o) : Vec{};
      Vec left, second;
      results<Side>(even, left, second);
      put(at + o, left + bias);
      if (right) put(at + a_.out + o, second + bias);
      if (!below) continue;
      results<Side>(odd, left, second);
      put(at + next_row + o, left + bias);
      if (right) put(at + next_row + a_.out + o, second + bias);
    }
  }
  POM_INLINE void put(std::int64_t at, Vec value) const {
    if (a_.other) value += load(static_cast<const S*>(a_.other) + at);
    store(static_cast<S*>(a_.y) + at, value);
  }

  const WinogradArgs& a_;
  char* base_;
  std::size_t used_ = 0;
  std::int64_t ld_in_, ld_out_;
  float *v_, *m_;  // [point][tile][channel]
  S* zeros_;       // what lies outside the picture
};

template <class S>
struct WinogradTable {
  static std::size_t scratch(const WinogradArgs& a) { return WinogradTiles<S>(a, nullptr).scratch_bytes(); }
  static void run(const WinogradArgs& a, void* scratch, std::int64_t begin, std::int64_t end) {
    WinogradTiles<S>(a, scratch).run(begin, end);
  }
  static constexpr WinogradKernels kernels{.pack = pack_weights, .scratch = scratch, .run = run};
};

}  // namespace

const WinogradKernels* POM_JOIN(winograd_, POM_ISA)(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return &WinogradTable<float>::kernels;
    case DType::bf16:
      return &WinogradTable<BF16>::kernels;
    case DType::f16:
      return &WinogradTable<F16>::kernels;
    case DType::f64:
      break;
  }
  return nullptr;
}

}  // namespace pom::ops::cpu
