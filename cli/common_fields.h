// Flags that several commands have in the same words.
#pragma once

#include <string_view>

#include "pom/base/fields.h"

namespace pom::cli {

inline Field threads_field(std::string_view group) {
  return {.name = "threads",
          .help = "CPU threads (default: one per core)",
          .value = "N",
          .group = group,
          .least = 1,
          .most = 1024};
}

inline Field gpus_field(std::string_view group) {
  return {
      .name = "gpus",
      .help = "work on N GPUs of this machine, one process each (on several machines: torchrun -m libpom)",
      .value = "N",
      .group = group,
      .least = 1,
      .most = 4096};
}

inline Field json_field(std::string_view group) {
  return {.name = "json", .help = "the result as one JSON object", .group = group};
}

inline Field quiet_field(std::string_view group) {
  return {.name = "quiet", .help = "no progress, no notes", .group = group};
}

inline Field yes_field(std::string_view group) {
  return {.name = "yes", .help = "overwrite files that exist", .group = group};
}

}  // namespace pom::cli
