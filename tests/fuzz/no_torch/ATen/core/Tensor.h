// Stands for torch where the parsers are fuzzed: their headers mention tensors, their sources have none.
#pragma once

namespace at {
class Tensor {};
}  // namespace at
