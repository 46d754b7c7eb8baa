// `--gpus N`: the same command once more, as N processes that torchrun starts and watches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pom::cli {

// What the program was started with, for on_ranks().
void remember_command(int argc, char** argv);

// Nothing where no number was asked for (0), or where this process is one of several already. Else it does
// not return: this process becomes torchrun, with the words of the command but for --gpus.
void on_ranks(std::int64_t gpus);

// The words of a command without --gpus and its number.
std::vector<std::string> without_gpus(std::vector<std::string> words);

}  // namespace pom::cli
