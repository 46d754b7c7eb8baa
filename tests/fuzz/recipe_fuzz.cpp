// Fuzzes the reader of recipes and of `--set`: the text before the first NUL is the recipe, each one after it
// an assignment. A recipe that is accepted must come back equal when it is written and read again.
#include "tests/fuzz/fuzz.h"
#include <cstdint>

#include "pom/train/recipe.h"

namespace {

using namespace pom::train;

void parse(std::string_view input) {
  std::vector<std::string> sets;
  const std::string_view toml = input.substr(0, input.find('\0'));
  for (std::size_t at = toml.size(); at < input.size();) {
    const std::size_t end = std::min(input.find('\0', at + 1), input.size());
    sets.emplace_back(input.substr(at + 1, end - at - 1));
    at = end;
  }
  Recipe recipe;
  const bool right = fuzz::accepted([&] {
    recipe = parse_recipe(toml, "fuzz.toml", sets);
    check_recipe(recipe, "fuzz.toml");
  });
  if (!right) return;
  std::string written;
  if (!fuzz::accepted([&] { written = recipe_text(recipe); })) return;  // a text of --set may be no UTF-8
  Recipe again;
  // A recipe whose classes and channels the data has not told yet is no file.
  if (!fuzz::accepted([&] { again = parse_recipe(written, "again.toml"); })) {
    fuzz::require(recipe.network.classes == 0 || recipe.network.channels == 0, "what is written can be read");
    return;
  }
  fuzz::require(changes(recipe, again).empty(), "the same recipe");
}

}  // namespace

// Draws tensors, which are not here.
pom::data::Split pom::data::open_dataset(const DataConfig&, std::uint64_t) {
  return {};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parse(fuzz::text_of(data, size));
  return 0;
}
