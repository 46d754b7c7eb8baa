// Stands for torch where the parsers are fuzzed: their headers mention tensors, their sources have none.
#pragma once

namespace at {
class Tensor {};
}  // namespace at
namespace c10 {
enum class DeviceType : signed char;
}  // namespace c10
