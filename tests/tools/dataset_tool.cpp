// The examples of a data set as bytes, for the referees of python/tests/test_dataset.py:
//   dataset_tool KIND PATH WIDTH HEIGHT SEED VISIT COUNT
// writes COUNT examples of training, each after a line "LABEL BYTES".
#include <cstdlib>
#include <iostream>

#include "pom/data/dataset.h"

int main(int argc, char** argv) try {
  if (argc != 8) return 2;
  const auto number = [&](int i) { return static_cast<std::int64_t>(std::atoll(argv[i])); };
  const pom::data::DataConfig config{
      .kind = argv[1], .path = argv[2], .size = {number(3), number(4)}, .validation = 0};
  const pom::data::Split split = pom::data::open_dataset(config, static_cast<std::uint64_t>(number(5)));
  for (std::int64_t i = 0; i < number(7); ++i) {
    const pom::data::Example example = split.training->get(i, number(6));
    const auto bytes = static_cast<std::streamsize>(example.picture.nbytes());
    std::cout << example.label << " " << bytes << "\n";
    std::cout.write(static_cast<const char*>(example.picture.data_ptr()), bytes);
  }
  return std::cout.flush() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
