// torch on the emulated GPU: what other tests rely on. Tensors share memory as they do on a GPU, what a GPU
// refuses is refused, unwritten memory is NaN, and a graph does what was captured, at the addresses of the
// capture.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/autograd/autograd.h>

namespace emulated {
namespace {

const auto on_gpu = at::TensorOptions(at::kCUDA);

TEST(EmulatedTorch, HasADevice) {
  EXPECT_TRUE(at::hasCUDA());
  EXPECT_EQ(at::getNumGPUs(), 1);
  const at::Tensor x = at::randn({4, 8}), there = x.cuda();
  EXPECT_EQ(there.device(), c10::Device(at::kCUDA, 0));
  EXPECT_NE(there.data_ptr(), x.data_ptr());
  EXPECT_TRUE(at::equal(there.cpu(), x));
  EXPECT_FALSE(there.cpu().is_cuda());
}

TEST(EmulatedTorch, ViewsShareMemory) {
  const at::Tensor x = at::zeros({4, 8}, on_gpu);
  at::Tensor part = x.narrow(0, 1, 2).transpose(0, 1);
  part.add_(1);
  EXPECT_EQ(x.sum().item<float>(), 16);
  EXPECT_EQ(part.storage().unsafeGetStorageImpl(), x.storage().unsafeGetStorageImpl());
  EXPECT_EQ(x.reshape({32}).data_ptr(), x.data_ptr());
  at::Tensor same = x.add_(1);
  EXPECT_TRUE(same.is_same(x));
}

TEST(EmulatedTorch, InputsThatChangeTheirSize) {
  at::Tensor x = at::ones({2}, on_gpu);
  const at::Tensor same = x;
  x.resize_({100});
  x.fill_(3);
  EXPECT_EQ(same.sum().item<float>(), 300);
  at::Tensor out = at::empty({0}, on_gpu);
  at::mm_out(out, at::ones({2, 3}, on_gpu), at::ones({3, 5}, on_gpu));
  EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 5}));
  EXPECT_EQ(out.sum().item<float>(), 30);
  x.set_(out);
  x.zero_();
  EXPECT_EQ(out.sum().item<float>(), 0);
}

TEST(EmulatedTorch, GradientsAndAutocast) {
  const at::Tensor x = at::randn({4, 8}), w = at::randn({8, 8});
  const auto slope = [&](c10::DeviceType device) {
    const at::Tensor weight = w.to(device).detach().requires_grad_();
    const at::Tensor y = at::gelu(at::linear(x.to(device), weight)).sum();
    return torch::autograd::grad({y}, {weight})[0];
  };
  EXPECT_TRUE(slope(at::kCUDA).is_cuda());
  EXPECT_TRUE(at::equal(slope(at::kCUDA).cpu(), slope(at::kCPU)));
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  EXPECT_EQ(at::linear(x.cuda(), w.cuda()).scalar_type(), at::kBFloat16);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCUDA, false);
}

TEST(EmulatedTorch, RefusesTensorsOfTheHost) {
  const at::Tensor x = at::ones({4}, on_gpu);
  EXPECT_THROW(x.add(at::ones({4})), c10::Error);
  EXPECT_THROW(at::cat({x, at::ones({4})}), c10::Error);
  EXPECT_EQ(x.add(at::scalar_tensor(2)).sum().item<float>(), 12);
}

TEST(EmulatedTorch, UnwrittenMemoryIsNaN) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kFloat8_e4m3fn})
    EXPECT_TRUE(at::empty({300}, on_gpu.dtype(type)).to(at::kFloat).isnan().all().item<bool>()) << type;
  EXPECT_FALSE(at::empty_like(at::ones({3}, on_gpu)).to(at::kFloat).eq(1).any().item<bool>());
}

TEST(EmulatedTorch, CountsItsMemory) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  const auto bytes = [] { return allocator::getDeviceStats(0).allocated_bytes[0].current; };
  const std::int64_t before = bytes();
  {
    const at::Tensor x = at::zeros({1000}, on_gpu), y = x + 1;
    EXPECT_EQ(bytes() - before, 2 * 4096);
  }
  EXPECT_EQ(bytes(), before);
  EXPECT_TRUE(at::empty({8}, at::TensorOptions().pinned_memory(true)).is_pinned());
  EXPECT_FALSE(at::empty({8}).is_pinned());
}

class Captured : public testing::Test {
 protected:
  c10::cuda::CUDAStreamGuard on_side{c10::cuda::getStreamFromPool()};
  at::NoGradGuard no_gradients;
  at::cuda::CUDAGraph graph;
};

TEST_F(Captured, GraphsRunAtTheirAddresses) {
  const at::Tensor in = at::ones({4}, on_gpu), sum = at::zeros({4}, on_gpu);
  at::Tensor out;
  graph.capture_begin();
  {
    at::Tensor a = in * 2;
    const at::Tensor b = a + 1;
    a.reset();
    out = b.square();
    sum.add_(out);
  }
  graph.capture_end();
  EXPECT_EQ(sum.sum().item<float>(), 0);                 // a capture runs nothing
  const at::Tensor others = at::randn({64, 4}, on_gpu);  // the graph's memory is not given to them
  const at::Tensor kept = others.clone();
  in.fill_(2);
  graph.replay();
  in.fill_(3);
  graph.replay();
  EXPECT_EQ(out[0].item<float>(), 49);
  EXPECT_EQ(sum[0].item<float>(), 25 + 49);
  EXPECT_TRUE(at::equal(others, kept));
}

TEST_F(Captured, WhatWaitsIsRefused) {
  const at::Tensor x = at::ones({4}, on_gpu), host = at::ones({4});
  graph.capture_begin();
  EXPECT_THROW(x.sum().item<float>(), c10::Error);
  EXPECT_THROW(x.cpu(), c10::Error);
  EXPECT_THROW(host.cuda(), c10::Error);
  EXPECT_THROW(x.clone().copy_(host), c10::Error);
  graph.capture_end();
  EXPECT_EQ(x.sum().item<float>(), 4);
}

}  // namespace
}  // namespace emulated
