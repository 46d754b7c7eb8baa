// Scratch memory that outlives a call. The large buffers of the kernels are the same from call to call;
// asking the system for them anew each time costs page faults that take as long as a tenth of the work.
#pragma once

#include <cstddef>

namespace pom::ops::cpu {

// At least `bytes`, 64-byte aligned, given back to the pool (or the system, beyond kKeep bytes) at the end of
// scope.
class Workspace {
 public:
  static constexpr std::size_t kKeep = std::size_t{128} << 20;

  explicit Workspace(std::size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return data_; }

 private:
  void* data_;
  std::size_t bytes_;
};

void release_workspaces();  // gives everything kept back to the system

}  // namespace pom::ops::cpu
