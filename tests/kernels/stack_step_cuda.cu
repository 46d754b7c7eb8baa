// A recurrent step of a whole stack in one kernel against fp64 on the host. A program of its own, so that it
// needs nvcc and a GPU but neither torch nor GoogleTest:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. tests/kernels/stack_step_cuda.cu
//   pom/kernels/sm90/decode/stack_step.cu -o stack_step_cuda
//   ./stack_step_cuda [--quick] [filter]      a part of a group's name: "step bf16", "often", "graph",
//   "nan", "refusals"
// Letters as in stack_step.h. The reference rounds where the kernel does; what a value may be off by is
// followed as a deviation, because a difference of 1e-7 before a rounding can be a whole step behind it.
// Every case runs twice, and again with a workspace of not-a-number, and must give the same bits.
#include "tests/kernels/host_check.cuh"
#include <memory>

#include "pom/kernels/sm90/decode/stack_step.h"

namespace {

using namespace pom::kernels;

struct Case {
  int64_t rows, width, features;
  int order;
  int64_t hidden, layers;
  bool bias;
  int64_t all() const { return order * features; }
};

// ---- the reference ----

struct Off {
  double v, s;  // a value and its deviation
};
using Offs = std::vector<Off>;

double square(double x) {
  return x * x;
}

// Where a value is near the middle of two, it may be rounded to the other: of K of them a few always are.
Off narrowed(Dtype dtype, Off a, int64_t K) {
  const double step = 2 * step_of(dtype, std::abs(a.v)), d = std::max(a.s, 3 * step / static_cast<double>(K));
  return {rounded(dtype, static_cast<float>(a.v)), std::sqrt(d * std::max(step, d))};
}

Offs normed(Dtype dtype, const Offs& x, const float* scale, const float* shift) {
  const auto K = static_cast<double>(x.size());
  double mean = 0, squares = 0, off = 0;
  for (const Off a : x) mean += a.v / K, off += square(a.s) / K;
  for (const Off a : x) squares += square(a.v - mean) / K;
  const double rstd = 1 / std::sqrt(squares + 1e-6);
  Offs y;
  for (size_t k = 0; k < x.size(); ++k) {
    const double hat = (x[k].v - mean) * rstd, factor = 1.0 + scale[k];
    const double s = std::abs(factor) * rstd * (x[k].s + std::sqrt(off) * (1 + std::abs(hat)));
    const double v = hat * factor + shift[k];
    y.push_back(narrowed(dtype, {v, s + 1e-6 * (std::abs(hat * factor) + std::abs(shift[k]))},
                         static_cast<int64_t>(x.size())));
  }
  return y;
}

Offs gemm(const Offs& x, const Values& w, const Values& bias, bool biased, int64_t outputs) {
  const auto K = static_cast<int64_t>(x.size());
  Offs y;
  for (int64_t n = 0; n < outputs; ++n) {
    double sum = 0, size = 0, off = 0;
    for (int64_t k = 0; k < K; ++k) {
      const double weight = w[n * K + k];
      sum += x[k].v * weight, size += std::abs(x[k].v * weight), off += square(x[k].s * weight);
    }
    y.push_back({sum + (biased ? bias[n] : 0), std::sqrt(off) + 1e-6 * size + 1e-8});
  }
  return y;
}

Off gelu_of(Off a) {
  return {gelu_of(a.v), 1.13 * a.s + 1e-6};
}

// ---- a stack ----

struct Matrix {
  Matrix(Dtype dtype, int64_t outputs, int64_t inputs, float size)
      : values(draw(dtype, outputs * inputs, size / std::sqrt(static_cast<float>(inputs)))),
        bias_values(draw(Dtype::fp32, outputs, 0.5f)),
        on(dtype, values),
        bias(Dtype::fp32, bias_values) {}
  Values values, bias_values;
  Buffer on, bias;
};

struct Layer {
  Layer(Dtype dtype, const Case& c)
      : context(dtype, c.all(), c.width, 1.5f),
        gate(dtype, c.all(), c.width, 1.5f),
        out(dtype, c.width, c.all(), 1),
        up(dtype, c.hidden, c.width, 1),
        down(dtype, c.width, c.hidden, 1),
        m_values(draw(Dtype::fp32, c.rows * stride(c), 0.4f)),
        sum_values(draw(Dtype::fp32, c.rows * c.all(), 2)),
        modulation(Dtype::fp32, m_values),
        sum(Dtype::fp32, sum_values) {}
  static int64_t stride(const Case& c) { return 6 * c.width + 8; }
  Matrix context, gate, out, up, down;
  Values m_values, sum_values;
  Buffer modulation, sum;
};

class Stack {
 public:
  Stack(Dtype dtype_, const Case& c_)
      : dtype(dtype_), c(c_), x_values(draw(Dtype::fp32, c.rows * c.width, 1.5f, 0.7f)) {
    for (int64_t l = 0; l < c.layers; ++l) layers.push_back(std::make_unique<Layer>(dtype, c));
    x = std::make_unique<Buffer>(Dtype::fp32, x_values);
    must(cudaMalloc(&counts, 8 * c.layers * c.rows), "cudaMalloc");
    step.dtype = dtype, step.rows = c.rows, step.width = c.width, step.features = c.features;
    step.hidden = c.hidden, step.order = c.order, step.eps = 1e-6f, step.x = x->floats();
    step.modulation_stride = Layer::stride(c);
    for (int64_t l = 0; l < c.layers; ++l) described.push_back(describe(l));
    step.layers = described.data(), step.layer_count = c.layers;
    workspace = std::make_unique<Buffer>(Dtype::fp32, stack_step_workspace(step) / 4);
    step.workspace = workspace->data();
    reset_counts();
  }
  ~Stack() { cudaFree(counts); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  int64_t count_of(int64_t layer, int64_t row) const { return (3 * layer + 5 * row) % 11; }
  void reset_counts() const {
    std::vector<int64_t> first;
    for (int64_t i = 0; i < c.layers * c.rows; ++i) first.push_back(count_of(i / c.rows, i % c.rows));
    must(cudaMemcpy(counts, first.data(), 8 * first.size(), cudaMemcpyHostToDevice), "counts");
  }
  void reset() const {
    reset_counts(), x->put(x_values);
    for (const auto& l : layers) l->sum.put(l->sum_values);
  }
  bool counted(int64_t steps) const {
    std::vector<int64_t> now(c.layers * c.rows);
    must(cudaMemcpy(now.data(), counts, 8 * now.size(), cudaMemcpyDeviceToHost), "counts");
    for (int64_t i = 0; i < c.layers * c.rows; ++i)
      if (now[i] != count_of(i / c.rows, i % c.rows) + steps) return false;
    return true;
  }
  std::string name() const {
    return text("%lld rows, d %lld, D %lld, order %d, h %lld, %lld layers, bias %d,",
                static_cast<long long>(c.rows), static_cast<long long>(c.width),
                static_cast<long long>(c.features), c.order, static_cast<long long>(c.hidden),
                static_cast<long long>(c.layers), c.bias);
  }

  // x and then the sums of all layers, after a step
  std::vector<std::vector<Expected>> expected() const {
    std::vector<std::vector<Expected>> want(1 + c.layers);
    for (int64_t r = 0; r < c.rows; ++r) {
      Offs now;
      for (int64_t k = 0; k < c.width; ++k) now.push_back({x_values[r * c.width + k], 0});
      for (int64_t l = 0; l < c.layers; ++l) block(l, r, now, want[1 + l]);
      for (const Off a : now) want[0].push_back(bound(a));
    }
    return want;
  }
  std::vector<Output> outputs() const {
    std::vector<std::vector<Expected>> want = expected();
    std::vector<Output> all{{"x", *x, want[0], x_values}};
    for (int64_t l = 0; l < c.layers; ++l)
      all.push_back({"sum", layers[l]->sum, want[1 + l], layers[l]->sum_values});
    return all;
  }

  const Dtype dtype;
  const Case c;
  StackStep step;
  std::unique_ptr<Buffer> x, workspace;
  std::vector<std::unique_ptr<Layer>> layers;

 private:
  static Expected bound(Off a) { return {a.v, 2 * a.s + 1e-6 * std::abs(a.v)}; }
  StackLayer describe(int64_t l) const {
    const Layer& layer = *layers[l];
    StackLayer d;
    d.context = layer.context.on.data(), d.gate = layer.gate.on.data(), d.out = layer.out.on.data();
    d.up = layer.up.on.data(), d.down = layer.down.on.data();
    if (c.bias) {
      d.context_bias = layer.context.bias.floats(), d.gate_bias = layer.gate.bias.floats();
      d.out_bias = layer.out.bias.floats(), d.up_bias = layer.up.bias.floats();
      d.down_bias = layer.down.bias.floats();
    }
    d.modulation = layer.modulation.floats(), d.sum = layer.sum.floats();
    d.count = d.next_count = counts + l * c.rows;
    return d;
  }
  Offs multiplied(const Offs& x_, const Matrix& m, int64_t outputs) const {
    return gemm(x_, m.values, m.bias_values, c.bias, outputs);
  }
  void add(Offs& now, const Offs& y, const float* gate) const {
    for (int64_t k = 0; k < c.width; ++k) {
      const double v = now[k].v + gate[k] * y[k].v;
      now[k] = {v, std::hypot(now[k].s, gate[k] * y[k].s) + 1e-7 * std::abs(v)};
    }
  }
  void block(int64_t l, int64_t r, Offs& now, std::vector<Expected>& sums) const {
    const Layer& layer = *layers[l];
    const int64_t d = c.width, D = c.features;
    const float* m = layer.m_values.data() + r * Layer::stride(c);
    const Offs y = normed(dtype, now, m, m + d);
    const Offs context = multiplied(y, layer.context, c.all()), gates = multiplied(y, layer.gate, c.all());
    const double count = 1e-7 + 1 + static_cast<double>(count_of(l, r));
    Offs o(c.all());
    sums.resize(c.rows * c.all());
    for (int64_t j = 0; j < D; ++j) {
      Off p{1, 0};
      for (int64_t i = 0; i < c.order; ++i) {
        const Off g = gelu_of(context[i * D + j]);
        p = {p.v * g.v, std::abs(p.v) * g.s + std::abs(g.v) * p.s + p.s * g.s + 1e-7 * std::abs(p.v * g.v)};
        const double before = layer.sum_values[r * c.all() + i * D + j], sum = before + p.v;
        sums[r * c.all() + i * D + j] = bound({sum, p.s + 1e-7 * std::abs(sum)});
        const double open = 1 / (1 + std::exp(-gates[i * D + j].v)), H = sum / count;
        o[i * D + j] =
            narrowed(dtype, {open * H, open * p.s / count + std::abs(H) * (0.25 * gates[i * D + j].s + 1e-6)},
                     c.all());
      }
    }
    add(now, multiplied(o, layer.out, d), m + 2 * d);
    Offs h = multiplied(normed(dtype, now, m + 3 * d, m + 4 * d), layer.up, c.hidden);
    for (Off& a : h) a = narrowed(dtype, gelu_of(a), c.hidden);
    add(now, multiplied(h, layer.down, d), m + 5 * d);
  }
  Values x_values;
  std::vector<StackLayer> described;
  int64_t* counts = nullptr;
};

// ---- what is checked ----

void check_step(Dtype dtype, const Case& c) {
  const std::string group = std::string("step ") + name_of(dtype);
  if (!wanted("step", dtype)) return;
  const Stack stack(dtype, c);
  expect(stack_step_supported(stack.step), group, stack.name() + " is not supported");
  check(
      group, stack.name(),
      [&](bool last) {
        stack.reset_counts();
        if (last) stack.workspace->clear();
        return stack_step(stack.step, nullptr);
      },
      stack.outputs());
  expect(stack.counted(1), group, stack.name() + " the counts are not one more");
  expect(stack.workspace->guards_stand(stack.workspace->all()), group,
         stack.name() + " workspace: written outside");
}

void drain(cudaStream_t stream, const std::string& what) {
  const auto start = std::chrono::steady_clock::now();
  while (cudaStreamQuery(stream) == cudaErrorNotReady)
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(5))
      must(cudaErrorLaunchTimeout, what);
  must(cudaStreamSynchronize(stream), what);
}

// All that a step changes.
std::vector<std::vector<uint8_t>> state_of(const Stack& stack) {
  std::vector<std::vector<uint8_t>> all{stack.x->all()};
  for (const auto& l : stack.layers) all.push_back(l->sum.all());
  return all;
}

// What a race spoils now and then: many times the same step.
void check_often(Dtype dtype) {
  const std::string group = std::string("often ") + name_of(dtype);
  if (!wanted("often", dtype)) return;
  constexpr int kTimes = kEmulated ? 2 : 100;
  const std::vector<Case> all{{1, 1152, 2304, 2, 4608, 2, true},
                              {4, 1152, 2304, 2, 4608, 2, true},
                              {8, 1152, 2304, 2, 4608, 2, true},
                              {8, 1160, 1160, 1, 1176, 2, true}};
  const std::vector<Case> few{{4, 384, 192, 2, 768, 2, true}};
  for (const Case& c : kEmulated ? few : all) {
    const Stack stack(dtype, c);
    std::vector<std::vector<uint8_t>> first;
    int different = 0;
    for (int i = 0; i < kTimes; ++i) {
      stack.reset();
      must(stack_step(stack.step, nullptr), group);
      drain(nullptr, group);
      if (i == 0)
        first = state_of(stack);
      else
        different += state_of(stack) != first;
    }
    expect(different == 0, group, stack.name() + text(" %d of %d steps differ", different, kTimes));
  }
}

// Steps one after the other, and as a graph that is replayed: the same bits.
void check_graph(Dtype dtype) {
  const std::string group = std::string("graph ") + name_of(dtype);
  if (!wanted("graph", dtype)) return;
  constexpr int kSteps = 5;
  const Stack stack(dtype, {2, 384, 384, 2, 1536, 6, true});
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  must(cudaStreamCreate(&stream), group);
  for (int i = 0; i < kSteps; ++i) must(stack_step(stack.step, stream), group);
  drain(stream, group);
  expect(stack.counted(kSteps), group, "the counts after some steps");
  const auto first = state_of(stack);
  stack.reset();
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), group);
  must(stack_step(stack.step, stream), group);
  must(cudaStreamEndCapture(stream, &graph), group);
  must(cudaGraphInstantiate(&replay, graph, 0), group);
  for (int i = 0; i < kSteps; ++i) must(cudaGraphLaunch(replay, stream), group);
  drain(stream, group);
  expect(stack.counted(kSteps), group, "the counts after replays");
  expect(state_of(stack) == first, group, "replays differ");
  must(cudaGraphExecDestroy(replay), group), must(cudaGraphDestroy(graph), group);
  must(cudaStreamDestroy(stream), group);
}

// The NaN that stands for "not written yet" between blocks: it is a NaN like others, and the step ends.
void check_nan(Dtype dtype) {
  const std::string group = std::string("nan ") + name_of(dtype);
  if (!wanted("nan", dtype)) return;
  const Stack stack(dtype, {2, 32, 16, 2, 64, 2, true});
  const uint32_t bits = 0xffffffffu;
  float first[2] = {};
  must(cudaMemcpy(stack.x->floats() + 5, &bits, sizeof(bits), cudaMemcpyHostToDevice), group);
  must(stack_step(stack.step, nullptr), group);
  drain(nullptr, group);
  for (int row = 0; row < 2; ++row)
    must(cudaMemcpy(first + row, stack.x->floats() + row * 32, sizeof(float), cudaMemcpyDeviceToHost), group);
  expect(std::isnan(first[0]), group, "the row with a NaN has none any more");
  expect(!std::isnan(first[1]), group, "the other row has one");
}

void check_refusals() {
  const std::string group = "refusals";
  if (group.find(filter) == std::string::npos) return;
  const Stack stack(Dtype::bf16, {1, 32, 16, 2, 64, 1, true});
  const auto refused = [&](const char* what, auto change) {
    StackStep s = stack.step;
    StackLayer layer = s.layers[0];
    s.layers = &layer;
    change(s, layer);
    expect(!stack_step_supported(s), group, std::string(what) + " is supported");
    expect(stack_step(s, nullptr) != cudaSuccess, group, std::string(what) + " was taken");
    cudaGetLastError();
  };
  expect(stack_step_supported(stack.step), group, "a small stack is not supported");
  refused("no rows", [](StackStep& s, StackLayer&) { s.rows = 0; });
  refused("9 rows", [](StackStep& s, StackLayer&) { s.rows = 9; });
  refused("fp32", [](StackStep& s, StackLayer&) { s.dtype = Dtype::fp32; });
  refused("a width of 36", [](StackStep& s, StackLayer&) { s.width = 36; });
  refused("a width of 2312", [](StackStep& s, StackLayer&) { s.width = 2312; });
  refused("30 features", [](StackStep& s, StackLayer&) { s.features = 15; });
  refused("9224 between", [](StackStep& s, StackLayer&) { s.hidden = 9224; });
  refused("order 5", [](StackStep& s, StackLayer&) { s.order = 5; });
  refused("order 0", [](StackStep& s, StackLayer&) { s.order = 0; });
  refused("no layers", [](StackStep& s, StackLayer&) { s.layer_count = 0; });
  refused("no x", [](StackStep& s, StackLayer&) { s.x = nullptr; });
  refused("no workspace", [](StackStep& s, StackLayer&) { s.workspace = nullptr; });
  refused("no weights", [](StackStep&, StackLayer& l) { l.up = nullptr; });
  refused("no state", [](StackStep&, StackLayer& l) { l.sum = nullptr; });
  refused("weights at an odd place",
          [](StackStep&, StackLayer& l) { l.down = static_cast<const char*>(l.down) + 2; });
}

void check_all(Dtype dtype) {
  const int64_t widths[] = {8, 24, 40, 200, 384, 768};
  int n = 0;
  for (int order = 1; order <= 4; ++order)
    for (int64_t rows = 1; rows <= 8; ++rows)
      for (const int64_t width : widths) {
        ++n;
        if (quick && n % (7 * kSpread) != 0) continue;
        const int64_t features = 8 * (1 + n % 5) + (order == 4 ? 2 * (n % 3) : 0), hidden = 8 * (1 + n % 61);
        check_step(dtype, {rows, width, features, order, hidden, 1 + n % 3, n % 2 == 0});
      }
  if (kEmulated) {  // whose few SMs have no room for more
    for (const int64_t rows : {1, 3, 6}) check_step(dtype, {rows, 384, 192, 2, 768, 2, true});
    check_step(dtype, {1, 16, 8, 1, 8, 70, false});  // more layers than a launch takes
    return;
  }
  for (const int64_t rows : {1, 2, 3, 4, 6, 8})  // as in the paper
    if (rows < 5 || !quick) check_step(dtype, {rows, 1152, 2304, 2, 4608, 2, true});
  for (const int64_t rows : {1, 4, 7})  // half as many inputs of the narrow phases
    check_step(dtype, {rows, 1152, 576, 4, 2304, 3, rows > 1});
  check_step(dtype, {5, 1152, 768, 3, 3072, 1, true});
  check_step(dtype, {1, 16, 8, 1, 8, 70, false});        // more layers than a launch takes
  check_step(dtype, {1, 1160, 1160, 1, 1176, 2, true});  // a second chunk of few inputs
  check_step(dtype, {3, 2304, 400, 4, 9216, 1, true});   // the widest
  if (quick) return;
  check_step(dtype, {2, 1536, 2304, 4, 6144, 2, true});
  check_step(dtype, {8, 2304, 2304, 4, 9216, 1, true});  // the most that is taken
}

}  // namespace

int main(int count, char** arguments) {
  if (!begin(count, arguments)) return std::printf("skipped: needs a GPU\n"), 77;
  int device = 0, major = 0;
  must(cudaGetDevice(&device), "a device");
  must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "a device");
  if (major != 9) return std::printf("skipped: needs compute capability 9.0\n"), 77;
  check_refusals();
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    check_graph(dtype), check_nan(dtype), check_all(dtype), check_often(dtype);
  }
  finish();
}
