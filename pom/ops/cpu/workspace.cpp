#include "pom/ops/cpu/workspace.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "pom/base/error.h"

namespace pom::ops::cpu {
namespace {

struct Block {
  void* data;
  std::size_t bytes;
};

struct Pool {
  std::mutex mutex;
  std::vector<Block> kept;
  std::size_t total = 0;
};

Pool& pool() {
  static Pool* instance = new Pool;  // never destroyed: threads may end after static destructors have run
  return *instance;
}

}  // namespace

Workspace::Workspace(std::size_t bytes) : data_(nullptr), bytes_((bytes + 4095) / 4096 * 4096 + 4096) {
  {
    Pool& p = pool();
    const std::lock_guard lock(p.mutex);
    // The smallest that fits; one much larger than asked for is left to those who need it.
    auto best = p.kept.end();
    for (auto it = p.kept.begin(); it != p.kept.end(); ++it)
      if (it->bytes >= bytes_ && it->bytes <= 4 * bytes_ && (best == p.kept.end() || it->bytes < best->bytes))
        best = it;
    if (best != p.kept.end()) {
      data_ = best->data;
      bytes_ = best->bytes;
      p.total -= best->bytes;
      p.kept.erase(best);
      return;
    }
  }
  data_ = std::aligned_alloc(64, bytes_);
  check(data_ != nullptr, "workspace: expected ", bytes_, " bytes of memory, got none: out of memory");
}

Workspace::~Workspace() {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  while (!p.kept.empty() && p.total + bytes_ > kKeep) {  // the oldest go first
    p.total -= p.kept.front().bytes;
    std::free(p.kept.front().data);
    p.kept.erase(p.kept.begin());
  }
  if (bytes_ > kKeep) {
    std::free(data_);
    return;
  }
  p.kept.push_back({data_, bytes_});
  p.total += bytes_;
}

void release_workspaces() {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  for (const Block& block : p.kept) std::free(block.data);
  p.kept.clear();
  p.total = 0;
}

}  // namespace pom::ops::cpu
