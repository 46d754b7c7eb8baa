// The processes that work on one thing, seen from one of them. All of a group make the same calls in the same
// order; a group of one makes none of them. N ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace c10d {
class ProcessGroup;
}

namespace pom::parallel {

// A collective that is under way. wait() throws a pom::Error that names what failed and who is gone.
class Pending {
 public:
  Pending() = default;  // nothing to wait for
  explicit Pending(std::function<void()> wait) : wait_(std::move(wait)) {}
  void wait() {
    if (wait_) std::exchange(wait_, {})();
  }

 private:
  std::function<void()> wait_;
};

// What has gone through a group so far, for tests and reports. `numbers` counts elements that a rank hands
// in.
struct Traffic {
  std::int64_t calls = 0, numbers = 0, bytes = 0;
};

class Ranks {
 public:
  Ranks() = default;  // one alone
  // As torch registers it: "0" is the group of all. An error where there is no such group.
  static Ranks of_group(const std::string& name);

  int rank() const;
  int size() const;
  bool alone() const { return impl_ == nullptr; }     // a group of one is not: it goes the way of groups
  std::string backend(c10::DeviceType device) const;  // "gloo", "nccl"; empty where alone
  bool first() const { return rank() == 0; }
  // Those who are told apart by `colour`, in the order of ranks: all call it with the same number of colours.
  Ranks split(const std::function<int(int rank)>& colour) const;

  // Of tensors on any device that the group has a backend for; contiguous. Alone, each is a copy or nothing.
  void sum(at::Tensor& t) const { start_sum(t).wait(); }
  Pending start_sum(at::Tensor& t) const;                               // in place
  at::Tensor gather(const at::Tensor& mine) const;                      // (N, ...) in the order of ranks
  Pending start_gather(at::Tensor& all, const at::Tensor& mine) const;  // all is (N·n), mine (n)
  Pending start_reduce_scatter(at::Tensor& mine, const at::Tensor& all) const;
  void broadcast(at::Tensor& t, int from) const { start_broadcast(t, from).wait(); }
  Pending start_broadcast(at::Tensor& t, int from) const;
  // Flat tensors: `counts_in[r]` numbers of `in` go to rank r, `counts_out[r]` of `out` come from it.
  Pending start_exchange(at::Tensor& out, std::vector<std::int64_t> counts_out, const at::Tensor& in,
                         std::vector<std::int64_t> counts_in) const;

  // Small things of the host.
  std::vector<std::int64_t> largest(std::vector<std::int64_t> values) const;  // of each, over all ranks
  std::vector<std::string> gather_text(const std::string& mine) const;
  // All are here; waits for as long as `limit`, for one of them may be busy with something that takes long.
  void meet(std::chrono::milliseconds limit) const;
  // Ranks whose text differs from the first one's, with both, are an error of all: "what: expected …".
  void require_same(const std::string& what, const std::string& mine) const;

  // How long a collective may take before it is an error; what the group was made with, else.
  void set_limit(std::chrono::milliseconds limit) const;

  // For the others to say, when this one leaves with an error: why it did.
  void note_failure(const std::string& why) const;

  Traffic traffic() const;

 private:
  struct Impl;
  explicit Ranks(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;  // none: alone
};

// The group that this process was started in: alone, unless join() has been called.
const Ranks& world();
void join(const std::string& group);

// The number of this process among those of its machine; 0 where it was started alone.
int local_rank();

// Groups are made by who made the first one (Python): given a list of lists of ranks ("0,1;2,3"), on all
// ranks alike, returns the name of the one that this rank is in.
using GroupMaker = std::function<std::string(const std::string& lists)>;
void set_group_maker(GroupMaker maker);

}  // namespace pom::parallel
