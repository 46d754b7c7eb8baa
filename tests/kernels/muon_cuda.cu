// Muon's kernels against the same formulas in fp64 on the host, with a product in place of the batched GEMMs.
// A program of its own, so that it needs nvcc and a GPU but neither torch nor GoogleTest:
//   nvcc -std=c++20 -O3 -arch=native -I. tests/kernels/muon_cuda.cu pom/kernels/portable/muon.cu -o muon_cuda
//   ./muon_cuda
#include "tests/kernels/host_check.cuh"

#include "pom/kernels/portable/muon.h"

namespace {

constexpr double kMomentum = 0.9, kLeast = 1e-7;

struct Case {
  int64_t rows, columns;
  bool plain, transposed;
  int order;
  float zero = 1;  // 0: a matrix of zeros
};
// Several tiles and parts of tiles, standing and lying; odd sizes; one that is 0.
const std::vector<Case> cases{
    {128, 72, true, true, 2}, {72, 128, false, true, 0}, {64, 64, true, false, 0},
    {35, 7, true, true, 0},   {7, 33, false, true, 0},   {256, 130, true, true, 4},
    {1, 9, true, false, 0},   {40, 24, false, false, 0}, {12, 20, true, true, 0, 0}};

template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) {
    must(cudaMalloc(&memory_, host.size() * sizeof(T)), "cudaMalloc");
    must(cudaMemcpy(memory_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  const T* data() const { return memory_; }

 private:
  T* memory_ = nullptr;
};

struct Problem {
  explicit Problem(int shift) : shift(shift) {
    for (const Case& c : cases) {
      MuonMatrix m;
      m.rows = c.rows, m.columns = c.columns;
      m.p = p, m.g = g, m.own = own, m.x = x;
      m.size = 0.2f * std::sqrt(static_cast<float>(std::max(c.rows, c.columns)));
      const int64_t count = c.rows * c.columns;
      p += (count + 15) / 16 * 16 + 16, g += (count + 3) / 4 * 4 + 32, own += (count + 3) / 4 * 4, x += count;
      matrices.push_back(m);
    }
  }
  int shift;
  int64_t p = 0, g = 16, own = 0, x = 0;
  std::vector<MuonMatrix> matrices;
};

// Where the value at row r, column c stands in x.
int64_t place(const MuonMatrix& m, int64_t r, int64_t c) {
  return m.x + (m.rows > m.columns ? c * m.rows + r : r * m.columns + c);
}

void directions(int shift) {
  Problem s(shift);
  const Values gs = draw(Dtype::fp32, s.g, 0.1f), ms = draw(Dtype::fp32, s.own, 0.05f);
  Values g = gs, m = ms;
  for (size_t i = 0; i < cases.size(); ++i)
    for (int64_t k = 0; k < cases[i].rows * cases[i].columns; ++k)
      g[s.matrices[i].g + k] *= cases[i].zero, m[s.matrices[i].own + k] *= cases[i].zero;
  const float scale = 0.37f;
  const Buffer gradients(Dtype::fp32, g, shift), clip(Dtype::fp32, Values{scale});
  const Buffer moment(Dtype::fp32, s.own, shift), x(Dtype::bf16, s.x, shift);
  std::vector<Expected> want_m(s.own), want_x(s.x);
  for (int64_t i = 0; i < s.own; ++i) want_m[i] = {m[i], 0};
  for (const MuonMatrix& w : s.matrices) {
    std::vector<double> u(w.rows * w.columns);
    double sum = 0;
    for (size_t i = 0; i < u.size(); ++i) {
      const double scaled = static_cast<double>(g[w.g + i]) * scale;
      const double now = kMomentum * m[w.own + i] + (1 - kMomentum) * scaled;
      want_m[w.own + i] = {now, 4e-7 * (std::abs(now) + std::abs(scaled) + std::abs(m[w.own + i]))};
      u[i] = kMomentum * now + (1 - kMomentum) * scaled;
      sum += u[i] * u[i];
    }
    const double norm = std::max(std::sqrt(sum), kLeast);
    for (int64_t r = 0; r < w.rows; ++r)
      for (int64_t c = 0; c < w.columns; ++c) {
        const double value = u[r * w.columns + c] / norm;
        want_x[place(w, r, c)] = {value, 4e-6 * std::abs(value) + 1e-7 / std::max(norm, 1e-3)};
      }
  }
  const int64_t tiles = number_tiles(s.matrices);
  const OnDevice<MuonMatrix> table(s.matrices);
  const Buffer partial(Dtype::fp32, tiles), inverse(Dtype::fp32, static_cast<int64_t>(cases.size()));
  MuonDirectionParams p;
  p.table = {table.data(), static_cast<int>(cases.size()), tiles};
  p.g = gradients.floats(), p.m = moment.floats(), p.scale = clip.floats(), p.momentum = kMomentum;
  p.least_norm = kLeast, p.partial = partial.floats(), p.inverse = inverse.floats(), p.x = x.data();
  check("directions", text("shift %d", shift), [&](bool) { return muon_directions(p, nullptr); },
        {{"m", moment, want_m, m}, {"x", x, want_x, {}}});
}

void polynomial(const std::vector<std::pair<int64_t, int64_t>>& kinds, int shift) {  // n, how many
  constexpr double a = 3.4445, b = -4.775, c = 2.0315;
  std::vector<MuonGrams> grams;
  int64_t values = 0;
  bool eights = true;
  for (const auto& [n, count] : kinds)
    grams.push_back({values, n}), values += n * n * count, eights = eights && n % 8 == 0;
  const Values gram = draw(Dtype::bf16, values, 0.3f), square = draw(Dtype::bf16, values, 0.3f);
  std::vector<Expected> want;
  for (const auto& [n, count] : kinds)
    for (int64_t i = 0; i < n * n * count; ++i) {
      const size_t at = want.size();
      const double diagonal = i % (n * n) / n == i % n ? a : 0;
      want.push_back({b * gram[at] + c * square[at] + diagonal,
                      4e-7 * (std::abs(b * gram[at]) + std::abs(c * square[at]) + diagonal)});
    }
  const Buffer from(Dtype::bf16, gram, shift), squares(Dtype::bf16, values, shift);
  const OnDevice<MuonGrams> table(grams);
  const MuonPolynomialParams p{
      table.data(), static_cast<int>(grams.size()), values, eights, from.data(), squares.data(), a, b, c};
  check("polynomial", text("%zu kinds, shift %d", kinds.size(), shift),
        [&](bool) { return muon_polynomial(p, nullptr); }, {{"squares", squares, want, square}});
}

// A matrix's copies, and what they should be.
struct Copies {
  Copies(const Case& c, const MuonMatrix& m, const std::vector<Expected>& p) {
    const auto add = [&](const char* name, const auto& from) {
      buffers.push_back(std::make_unique<Buffer>(Dtype::bf16, c.rows * c.columns));
      std::vector<Expected> want;
      for (int64_t i = 0; i < c.rows * c.columns; ++i) want.push_back(p[m.p + from(i)]);
      outputs.push_back({name, *buffers.back(), want, {}});
      return buffers.back()->data();
    };
    if (c.plain) part.plain = add("plain", [](int64_t i) { return i; });
    if (c.transposed)
      part.transposed = add("transposed", [&](int64_t i) { return i % c.rows * c.columns + i / c.rows; });
    if (c.order == 0) return;
    part.order = c.order;
    part.context = add("context", [&](int64_t i) {  // of 32 features the first factors, the second ones, …
      const int64_t r = i / c.columns, unit = r / (32 * c.order), factor = r / 32 % c.order;
      return (factor * (c.rows / c.order) + unit * 32 + r % 32) * c.columns + i % c.columns;
    });
  }
  WeightPart part;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<Output> outputs;
};

void update(int shift, bool average) {
  Problem s(shift);
  const Values ps = draw(Dtype::fp32, s.p, 1), xs = draw(Dtype::bf16, s.x, 0.1f);
  const Values es = draw(Dtype::fp32, s.own, 1);
  const float kept = 0.999f, rate = -0.03f, weight = 0.2f;
  std::vector<Expected> want_p(s.p), want_e(s.own);
  for (int64_t i = 0; i < s.p; ++i) want_p[i] = {ps[i], 0};
  for (int64_t i = 0; i < s.own; ++i) want_e[i] = {es[i], 0};
  for (const MuonMatrix& w : s.matrices)
    for (int64_t r = 0; r < w.rows; ++r)
      for (int64_t c = 0; c < w.columns; ++c) {
        const int64_t i = r * w.columns + c;
        const double step = static_cast<double>(rate) * w.size * xs[place(w, r, c)];
        const double now = static_cast<double>(kept) * ps[w.p + i] + step, e = es[w.own + i];
        want_p[w.p + i] = {now, 4e-7 * (std::abs(now) + std::abs(step))};
        if (average) want_e[w.own + i] = {e + weight * (now - e), 4e-7 * (std::abs(now) + std::abs(e))};
      }
  std::vector<std::unique_ptr<Copies>> copies;
  for (size_t i = 0; i < cases.size(); ++i) {
    copies.push_back(std::make_unique<Copies>(cases[i], s.matrices[i], want_p));
    s.matrices[i].copies = copies.back()->part;
  }
  const int64_t tiles = number_tiles(s.matrices);
  const OnDevice<MuonMatrix> table(s.matrices);
  const Buffer p(Dtype::fp32, s.p, shift), e(Dtype::fp32, s.own, shift), x(Dtype::bf16, xs, shift);
  const Buffer numbers(Dtype::fp32, Values{kept, rate, weight});
  const MuonUpdateParams u{{table.data(), static_cast<int>(cases.size()), tiles},
                           p.floats(),
                           x.data(),
                           average ? e.floats() : nullptr,
                           numbers.floats()};
  std::vector<Output> outputs{{"p", p, want_p, ps}, {"average", e, want_e, es}};
  for (const auto& each : copies) outputs.insert(outputs.end(), each->outputs.begin(), each->outputs.end());
  check(
      "update", text("shift %d%s", shift, average ? ", average" : ""),
      [&](bool) { return muon_update(u, nullptr); }, outputs);
}

void refusals() {
  MuonDirectionParams p;
  p.table.count = 1;
  expect(muon_directions(p, nullptr) == cudaErrorInvalidValue, "refusals", "directions without memory");
  MuonUpdateParams u;
  u.table.count = 1;
  expect(muon_update(u, nullptr) == cudaErrorInvalidValue, "refusals", "update without memory");
  MuonPolynomialParams q;
  q.values = 1;
  expect(muon_polynomial(q, nullptr) == cudaErrorInvalidValue, "refusals", "polynomial without memory");
}

}  // namespace

int main(int count, char** arguments) {
  if (!begin(count, arguments)) return std::printf("skipped: needs a GPU\n"), 77;
  for (const int shift : {0, 1}) {
    directions(shift);
    polynomial({{64, 2}, {24, 3}, {8, 1}}, shift);
    polynomial({{7, 5}, {64, 1}, {1, 2}, {35, 2}}, shift);
    for (const bool average : {true, false}) update(shift, average);
  }
  refusals();
  finish();
}
