// Fuzzes the reader of config.json. A config that is accepted must come back equal when it is written and
// read again.
#include "tests/fuzz/fuzz.h"
#include <cstdint>

#include "pom/generate/folder.h"
#include "pom/io/json_fields.h"

namespace {

using namespace pom::generate;

void parse(std::string_view text) {
  static const fuzz::Folder folder;
  folder.put(config_file, text);
  ModelConfig config;
  if (!fuzz::accepted([&] { config = read_config(folder.path()); })) return;
  const std::string written = pom::io::write_json(config, pom::io::JsonStyle::pages);
  folder.put(config_file, written);
  ModelConfig again = read_config(folder.path());
  fuzz::require(pom::io::write_json(again, pom::io::JsonStyle::pages) == written, "the same config");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parse(fuzz::text_of(data, size));
  return 0;
}
