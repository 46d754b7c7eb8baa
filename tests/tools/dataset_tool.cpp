// The examples of a data set as bytes, for the referees of python/tests/test_dataset.py and test_clips.py:
//   dataset_tool KIND PATH WIDTH HEIGHT SEED VISIT COUNT
// writes COUNT examples of training, each after a line "LABEL BYTES";
//   dataset_tool KIND PATH WIDTH HEIGHT SEED VISIT COUNT FRAMES FPS
// one batch of clips as the loader gives it, each after a line "BYTES CAPTION"; the files it passed over on
// stderr.
#include <cstdlib>
#include <iostream>

#include "pom/data/dataset.h"
#include "pom/data/loader.h"

namespace {

using namespace pom::data;

void write(const at::Tensor& tensor) {
  std::cout.write(static_cast<const char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
}

void write_examples(const Split& split, std::int64_t count, std::int64_t visit) {
  for (std::int64_t i = 0; i < count; ++i) {
    const Example example = split.training->get(i, visit);
    std::cout << example.label << " " << example.picture.nbytes() << "\n";
    write(example.picture);
  }
}

void write_batch(const Split& split, std::int64_t count) {
  const auto tell = [](const std::string& name, const std::string& why) {
    std::cerr << "passed over " << name << ": " << why << "\n";
  };
  Loader loader(split.training, {.batch = count, .workers = 1, .on_broken = tell});
  const Batch batch = loader.next();
  for (std::int64_t i = 0; i < count; ++i) {
    std::cout << batch.pictures[i].nbytes() << " " << batch.captions[static_cast<std::size_t>(i)] << "\n";
    write(batch.pictures[i]);
  }
  std::cerr << loader.broken() << " passed over\n";
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 8 && argc != 10) return 2;
  const auto number = [&](int i) { return static_cast<std::int64_t>(std::atoll(argv[i])); };
  DataConfig config{.kind = argv[1], .path = argv[2], .size = {number(3), number(4)}, .validation = 0};
  if (argc == 10) {
    config.frames = number(8);
    config.fps = std::atof(argv[9]);
  }
  const Split split = open_dataset(config, static_cast<std::uint64_t>(number(5)));
  if (argc == 10)
    write_batch(split, number(7));
  else
    write_examples(split, number(7), number(6));
  return std::cout.flush() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
