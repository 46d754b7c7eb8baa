// Steps of training on demand, for bench/train.py, which times them in turn with PyTorch's: each line of the
// input asks for something, and one line of the output answers when it is done.
//
//   train_step_tool RECIPE [A.B=C …]
//     step      one step on the loader's next batch: its loss
//     load      the loader's next batch alone: its pictures
//     memory    what the process holds: bytes
#include <fstream>
#include <iostream>
#include <string>
#include <unistd.h>

#include "pom/base/error.h"
#include "pom/train/learner.h"

namespace {

using namespace pom;

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

void serve(const char* path, const std::vector<std::string>& sets) {
  train::Recipe recipe = train::read_recipe(path, sets);
  const data::Split data = data::open_dataset(recipe.data, static_cast<std::uint64_t>(recipe.run.seed));
  train::complete_recipe(recipe, *data.training);
  train::Learner learner(recipe, at::kCPU);
  data::Loader loader(data.training, {.batch = recipe.batch.size,
                                      .workers = recipe.data.workers,
                                      .seed = static_cast<std::uint64_t>(recipe.run.seed)});
  train::State state;
  for (std::string order; std::getline(std::cin, order);) {
    if (order == "step")
      std::cout << learner.step(loader.next(), state).loss << std::endl;
    else if (order == "load")
      std::cout << loader.next().pictures.size(0) << std::endl;
    else if (order == "memory")
      std::cout << resident_bytes() << std::endl;
    else
      fail("train_step_tool: expected step, load or memory, got \"", order, "\"");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: train_step_tool RECIPE [A.B=C ...]\n";
    return 2;
  }
  try {
    serve(argv[1], {argv + 2, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "train_step_tool: " << error.what() << "\n";
    return 1;
  }
}
