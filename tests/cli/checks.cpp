// Tests of what `pom doctor` says of GPUs, for machines unlike the one that tests.
#include "cli/checks.h"

#include <gtest/gtest.h>

namespace pom::cli {
namespace {

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST(CheckGpu, WithoutADriverAllIsWell) {
  EXPECT_EQ(check_gpu({}).state, State::ok);
  EXPECT_TRUE(has(check_gpu({}).text, "CPU only"));
}

TEST(CheckGpu, AGpuThatServesIsNamedWithItsFlag) {
  const Check one = check_gpu(
      {.driver = "580.1", .torch_has_cuda = true, .count = 1, .name = "NVIDIA H200", .kernels = true});
  EXPECT_EQ(one.state, State::ok);
  EXPECT_EQ(one.text, "NVIDIA H200, NVIDIA driver 580.1: --device cuda runs on it");
  const Check two = check_gpu(
      {.driver = "580.1", .torch_has_cuda = true, .count = 2, .name = "NVIDIA H200", .kernels = true});
  EXPECT_TRUE(two.text.starts_with("2 times NVIDIA H200")) << two.text;
}

TEST(CheckGpu, WhatKeepsItFromServingIsANoteWithTheFix) {
  const Check torch = check_gpu({.driver = "580.1"});
  EXPECT_TRUE(torch.state == State::note && has(torch.text, "CPU build") &&
              has(torch.fix, "torch with CUDA"));
  const Check none = check_gpu({.driver = "580.1", .torch_has_cuda = true});
  EXPECT_TRUE(none.state == State::note && has(none.text, "finds no GPU") && has(none.fix, "nvidia-smi"));
  const Check slow = check_gpu({.driver = "580.1", .torch_has_cuda = true, .count = 1});
  EXPECT_TRUE(slow.state == State::note && has(slow.text, "--device cuda") && has(slow.fix, "nvcc"));
}

}  // namespace
}  // namespace pom::cli
