// For tests of kernels by themselves: counting, values between guards of not-a-number on the device, and the
// comparison with what was computed in fp64 on the host.
#pragma once

#include "tests/kernels/watchdog.cuh"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <map>
#include <string>
#include <vector>

#include "pom/kernels/common/dtype.h"

namespace {

using namespace pom::kernels;

// ---- counting ----

struct Group {
  int checks = 0, failed = 0;
  double worst = 0;  // error over its bound
};
std::map<std::string, Group> groups;
std::string filter;
bool quick = false;

[[noreturn]] void finish() {
  int checks = 0, failed = 0;
  for (const auto& [name, g] : groups) {
    std::printf("%-22s %7d checks, %d failed, worst %.3f of the bound\n", name.c_str(), g.checks, g.failed,
                g.worst);
    checks += g.checks, failed += g.failed;
  }
  std::printf("%d checks, %d failed\n", checks, failed);
  std::exit(failed > 0 || checks == 0 ? 1 : 0);
}

void expect(bool ok, const std::string& group, const std::string& what) {
  static int shown = 0;
  ++groups[group].checks;
  if (ok) return;
  ++groups[group].failed;
  std::printf("FAILED: %s: %s\n", group.c_str(), what.c_str());
  if (++shown < 20) return;
  std::printf("stopped after 20 failures\n");
  finish();
}
const char* name_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? "fp32" : dtype == Dtype::bf16 ? "bf16" : "fp16";
}
bool wanted(const char* epilogue, Dtype dtype) {
  return (std::string(epilogue) + " " + name_of(dtype)).find(filter) != std::string::npos;
}

// ---- values ----

int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? 4 : 2;
}
float rounded(Dtype dtype, float x) {
  if (dtype == Dtype::bf16) return __bfloat162float(__float2bfloat16(x));
  if (dtype == Dtype::fp16) return __half2float(__float2half(x));
  return x;
}
double step_of(Dtype dtype, double magnitude) {  // half of the distance to the next value
  const int e = std::ilogb(std::max(magnitude, 1e-300));
  if (dtype == Dtype::fp32) return std::ldexp(1.0, std::max(e, -126) - 24);
  if (dtype == Dtype::bf16) return std::ldexp(1.0, std::max(e, -126) - 8);
  return std::ldexp(1.0, std::max(e, -14) - 11);
}

using Values = std::vector<float>;
Values draw(Dtype dtype, int64_t count, float scale, float offset = 0) {
  static uint64_t state = 1;
  const auto uniform = [] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (static_cast<double>(state >> 33) + 0.5) / 2147483648.0;
  };
  Values v(count);
  for (float& x : v)
    x = rounded(dtype, offset + scale * static_cast<float>(std::sqrt(-2 * std::log(uniform())) *
                                                           std::cos(6.283185307 * uniform())));
  return v;
}

// Values on the device between guards, `shift` elements off an address of 256 bytes.
class Buffer {
 public:
  Buffer(Dtype dtype, int64_t count, int shift = 0)
      : dtype_(dtype), count_(count), front_(kGuard + shift * bytes_of(dtype)) {
    must(cudaMalloc(&memory_, total()), "cudaMalloc");
    must(cudaMemset(memory_, 0xFF, total()), "cudaMemset");
  }
  Buffer(Dtype dtype, const Values& values, int shift = 0)
      : Buffer(dtype, static_cast<int64_t>(values.size()), shift) {
    put(values);
  }
  ~Buffer() { cudaFree(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return memory_ + front_; }
  float* floats() const { return static_cast<float*>(data()); }
  void clear() const { must(cudaMemset(memory_, 0xFF, total()), "cudaMemset"); }
  void put(const Values& values) const {
    std::vector<uint8_t> bytes(count_ * bytes_of(dtype_));
    for (int64_t i = 0; i < count_; ++i) {
      const float x = values[i];
      const __nv_bfloat16 b = __float2bfloat16(x);
      const __half h = __float2half(x);
      const void* from = dtype_ == Dtype::fp32   ? static_cast<const void*>(&x)
                         : dtype_ == Dtype::bf16 ? static_cast<const void*>(&b)
                                                 : static_cast<const void*>(&h);
      std::memcpy(bytes.data() + i * bytes_of(dtype_), from, bytes_of(dtype_));
    }
    must(cudaMemcpy(data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "copy to the device");
  }
  std::vector<uint8_t> all() const {
    std::vector<uint8_t> bytes(total());
    must(cudaMemcpy(bytes.data(), memory_, bytes.size(), cudaMemcpyDeviceToHost), "copy to the host");
    return bytes;
  }
  bool guards_stand(const std::vector<uint8_t>& bytes) const {
    const auto stands = [](uint8_t b) { return b == 0xFF; };
    const auto back = bytes.begin() + front_ + count_ * bytes_of(dtype_);
    return std::all_of(bytes.begin(), bytes.begin() + front_, stands) &&
           std::all_of(back, bytes.end(), stands);
  }
  double value(const std::vector<uint8_t>& bytes, int64_t i) const {
    const uint8_t* p = bytes.data() + front_ + i * bytes_of(dtype_);
    if (dtype_ == Dtype::fp32) return *reinterpret_cast<const float*>(p);
    if (dtype_ == Dtype::bf16) return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(p));
    return __half2float(*reinterpret_cast<const __half*>(p));
  }
  Dtype dtype() const { return dtype_; }
  int64_t count() const { return count_; }

 private:
  static constexpr int64_t kGuard = 256;
  int64_t total() const { return front_ + count_ * bytes_of(dtype_) + kGuard; }
  Dtype dtype_;
  int64_t count_, front_;
  uint8_t* memory_ = nullptr;
};

struct Expected {
  double value, error;  // before the last rounding
};
struct Output {
  const char* name;
  const Buffer& buffer;
  std::vector<Expected> want;
  Values before;  // what is there first, else not-a-number
};

// run(settled): twice, and once more with the weights read ahead.
template <class Run>
void check(const std::string& group, const std::string& what, const Run& run,
           const std::vector<Output>& outputs) {
  std::vector<std::vector<uint8_t>> first(outputs.size());
  for (int turn = 0; turn < 3; ++turn) {
    for (const Output& o : outputs) {
      o.buffer.clear();
      if (!o.before.empty()) o.buffer.put(o.before);
    }
    const cudaError_t status = run(turn == 2);
    expect(status == cudaSuccess, group, what + ": " + cudaGetErrorString(status));
    if (status != cudaSuccess) return void(cudaGetLastError());
    finish_within(5, group + ": " + what);
    for (size_t n = 0; n < outputs.size(); ++n) {
      const Output& o = outputs[n];
      const std::string where = what + " " + o.name;
      const std::vector<uint8_t> bytes = o.buffer.all();
      if (turn > 0) {
        expect(bytes == first[n], group,
               where + (turn == 1 ? ": differs from run to run" : ": differs ahead"));
        continue;
      }
      first[n] = bytes;
      expect(o.buffer.guards_stand(bytes), group, where + ": written outside");
      double worst = 0;
      int64_t at = 0;
      for (int64_t i = 0; i < o.buffer.count(); ++i) {
        const Expected& e = o.want[i];
        const double bound = 1.001 * (e.error + step_of(o.buffer.dtype(), std::abs(e.value) + e.error));
        const double off = std::abs(o.buffer.value(bytes, i) - e.value) / bound;
        if (!(off <= worst)) worst = off, at = i;
        if (!(off <= 1)) break;
      }
      groups[group].worst = std::max(groups[group].worst, worst);
      expect(worst <= 1, group,
             where + text(" [%lld]: expected %.9g, got %.9g, %.3g of the bound", static_cast<long long>(at),
                          o.want[at].value, o.buffer.value(bytes, at), worst));
    }
  }
}

double gelu_of(double x) {
  return 0.5 * x * std::erfc(-x * 0.70710678118654752);
}

// [--quick] [filter]; whether there is a GPU.
inline bool begin(int count, char** arguments) {
  for (int i = 1; i < count; ++i)
    if (std::string(arguments[i]) == "--quick")
      quick = true;
    else
      filter = arguments[i];
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

}  // namespace
