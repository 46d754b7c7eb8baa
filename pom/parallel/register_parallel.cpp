// torch.ops.pom.join: what `torchrun -m libpom` calls once the group of processes is there.
#include <torch/library.h>

#include "pom/parallel/ranks.h"

TORCH_LIBRARY_FRAGMENT(pom, library) {
  library.def("join(str group) -> ()", [](const std::string& group) { pom::parallel::join(group); });
}

// For ctypes: a function that makes groups, which writes their name into a buffer of 256 bytes.
extern "C" __attribute__((visibility("default"))) void pom_set_group_maker(void (*make)(const char* lists,
                                                                                        char* name)) {
  pom::parallel::set_group_maker([make](const std::string& lists) {
    char name[256] = {};
    make(lists.c_str(), name);
    return std::string(name);
  });
}
