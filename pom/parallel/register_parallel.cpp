// torch.ops.pom.join: what `torchrun -m libpom` calls once the group of processes is there.
#include <string>
#include <tuple>

#include <torch/library.h>

#include "pom/parallel/ranks.h"
#include "pom/parallel/share.h"

TORCH_LIBRARY_FRAGMENT(pom, library) {
  library.def("join(str group) -> ()", [](const std::string& group) { pom::parallel::join(group); });
  library.def("share_counts(int total, int parts, int unit=1) -> int[]",
              [](std::int64_t total, std::int64_t parts, std::int64_t unit) {
                return pom::parallel::share_counts(total, parts, unit);
              });
  // Calls, numbers and bytes that this rank has handed in to a group so far.
  library.def("traffic(str group) -> (int, int, int)", [](const std::string& group) {
    const pom::parallel::Traffic t = pom::parallel::Ranks::of_group(group).traffic();
    return std::make_tuple(t.calls, t.numbers, t.bytes);
  });
  // The address of a function of ctypes, which makes groups and writes the name of the own one into a buffer
  // of 256 bytes.
  library.def("set_group_maker(int address) -> ()", [](std::int64_t address) {
    using Maker = void (*)(const char* lists, char* name);
    pom::parallel::set_group_maker([make = reinterpret_cast<Maker>(address)](const std::string& lists) {
      char name[256] = {};
      make(lists.c_str(), name);
      return std::string(name);
    });
  });
}
