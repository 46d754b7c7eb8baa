// Tests of how people name devices, and what they are told where there is none.
#include "pom/generate/device.h"

#include <gtest/gtest.h>

#include <ATen/Context.h>

#include "pom/base/error.h"

namespace pom::generate {
namespace {

std::string refusal(const std::string& text) {
  try {
    device_named(text, "sample");
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no pom::Error was thrown for " << text;
  return "";
}

TEST(Device, KnowsItsNames) {
  EXPECT_TRUE(device_named("cpu", "sample").is_cpu());
  EXPECT_EQ(device_named("auto", "sample").is_cuda(), at::hasCUDA());
  for (const char* text : {"", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda0"})
    EXPECT_EQ(refusal(text),
              "sample: device: expected cpu, cuda, cuda:N or auto, got \"" + std::string(text) + "\"");
}

TEST(Device, SaysWhatThereIs) {
  const std::string message = refusal("cuda:120");
  EXPECT_NE(message.find("no such device, \"cuda:120\": "), std::string::npos) << message;
  if (!at::Context::hasCUDART())
    EXPECT_NE(message.find("one without CUDA"), std::string::npos) << message;
  else if (!at::hasCUDA())
    EXPECT_NE(message.find("no GPU on this machine"), std::string::npos) << message;
  else
    EXPECT_NE(message.find("cuda:0"), std::string::npos) << message;
}

TEST(Device, FirstGpuUnlessTold) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  EXPECT_EQ(device_named("cuda", "sample").str(), "cuda:0");
}

}  // namespace
}  // namespace pom::generate
