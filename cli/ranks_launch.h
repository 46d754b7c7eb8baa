// `--gpus N`: the same command once more, as N processes that torchrun starts and watches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pom::cli {

// Does not return: this process becomes torchrun. `words` are those of the command, without --gpus.
[[noreturn]] void launch_ranks(std::int64_t ranks, const std::vector<std::string>& words);

}  // namespace pom::cli
