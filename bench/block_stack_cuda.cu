// The blocks of a network as one kernel beside the kernels of its products. A program of its own, without
// torch:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. bench/block_stack_cuda.cu
//   pom/kernels/sm90/{gemm,network}/*.cu
//   pom/kernels/portable/residual_norm.cu -o block_stack_bench
//   ./block_stack_bench [tokens ...]
// 28 blocks of 1152, order 2, expansion 2, feed-forward 4, bf16 and e4m3, four sequences (one of 65536).
#include "bench/block_stack_network.cuh"
#include <cmath>
#include <cstdlib>

namespace {

std::vector<float> values_of(const float* x, int64_t count) {
  std::vector<float> v(static_cast<size_t>(count));
  bench_must(cudaMemcpy(v.data(), x, static_cast<size_t>(4 * count), cudaMemcpyDeviceToHost), "a copy");
  return v;
}
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0, errors = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += b[i] * b[i], errors += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(errors / squares);
}

template <class T>
void measure(int64_t tokens, Dtype dtype, const char* name) {
  NetworkSizes n;
  n.tokens = tokens, n.batch = tokens >= 65536 ? 1 : 4, n.dtype = dtype;
  Network<T> network(n);
  std::vector<BenchCandidate> all;
  all.push_back({"apart", [&] { return network.apart(); }});
  for (const int splits : {1, 2, 4})
    if (splits == 1 || n.rows() <= 4096)
      all.push_back({"block stack, " + std::to_string(splits) + (splits > 1 ? " parts" : " part"),
                     network.prepared(splits)});
  std::vector<float> first;
  for (BenchCandidate& c : all) {
    network.restart();
    bench_must(c.run(), c.name.c_str());
    bench_wait(c.name.c_str());
    const std::vector<float> now = values_of(network.x, n.rows() * n.width);
    if (first.empty()) first = now;
    std::printf("%6lld tokens  %s  %-16s differs by %.2e\n", static_cast<long long>(tokens), name,
                c.name.c_str(), difference(now, first));
  }
  bench_in_turns(all, 15);
  double flops = 2.0 * static_cast<double>(n.rows() * n.width) *
                 static_cast<double>(3 * n.features + 2 * n.hidden) * n.blocks;
  for (BenchCandidate& c : all)
    std::printf("%6lld tokens  %s  %-16s %9.2f us a block  %6.1f TFLOP/s  %.3f of apart\n",
                static_cast<long long>(tokens), name, c.name.c_str(), c.median() / n.blocks,
                flops / c.median() / 1e6, c.median() / all[0].median());
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    return std::printf("skipped: needs a GPU\n"), 77;
  std::vector<int64_t> all{256, 1024, 2304, 4096};
  if (count > 1) all.clear();
  for (int i = 1; i < count; ++i) all.push_back(std::atoll(arguments[i]));
  for (const int64_t tokens : all) {
    measure<__nv_bfloat16>(tokens, Dtype::bf16, "bf16");
    measure<__nv_fp8_e4m3>(tokens, Dtype::e4m3, "e4m3");
  }
}
