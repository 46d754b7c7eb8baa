#include "pom/parallel/ranks.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/parallel/absent.h"

// Newer torch calls some of these by other names, older torch has no others.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace pom::parallel {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

GroupMaker& group_maker() {
  static GroupMaker maker;
  return maker;
}

Ranks& joined() {
  static Ranks ranks;
  return ranks;
}

// Torch's messages have a stack below them; their first line says it.
std::string first_line(const std::string& text) {
  return shown(text.substr(0, text.find('\n')), 300);
}

}  // namespace

struct Ranks::Impl {
  Group group;
  std::string name;
  std::chrono::milliseconds limit = c10d::kUnsetTimeout;
  // Of a part: the group that it was split from, whose numbers people know, and who of that is in it.
  Group whole;
  std::vector<int> members;
  std::atomic<std::int64_t> calls = 0, numbers = 0, bytes = 0;

  void count(const at::Tensor& t) {
    ++calls;
    numbers += t.numel();
    bytes += static_cast<std::int64_t>(t.nbytes());
  }

  template <class Options>
  Options limited(Options options = {}) const {
    options.timeout = limit;
    return options;
  }

  [[noreturn]] void failed(const char* what, const std::exception& error) const {
    c10d::ProcessGroup& known = whole ? *whole : *group;
    std::vector<int> all = members;
    if (!whole)
      for (int r = 0; r < group->getSize(); ++r) all.push_back(r);
    fail(what, " of ", group->getSize(), " ranks failed on rank ", known.getRank(), ": ",
         who_is_absent(known, all), first_line(error.what()));
  }

  Pending pending(const char* what, const std::shared_ptr<Impl>& self,
                  const std::function<c10::intrusive_ptr<c10d::Work>()>& start,
                  std::vector<at::Tensor> kept) const {
    try {
      c10::intrusive_ptr<c10d::Work> work = start();
      return Pending([self, what, work = std::move(work), kept = std::move(kept)] {
        try {
          work->wait();
        } catch (const std::exception& error) {
          self->failed(what, error);
        }
      });
    } catch (const std::exception& error) {
      failed(what, error);
    }
  }
};

Ranks Ranks::of_group(const std::string& name) {
  static std::mutex guard;
  static std::map<std::string, std::shared_ptr<Impl>> known;  // one for each group, with its counts
  Group group;
  try {
    group = c10d::resolve_process_group(name);
  } catch (const std::exception& error) {
    fail("parallel: group: expected the name of a process group of torch.distributed, got \"", shown(name),
         "\" (", first_line(error.what()), ")");
  }
  const std::lock_guard lock(guard);
  std::shared_ptr<Impl>& impl = known[name];
  if (!impl || impl->group != group) {  // of a name that another group had before
    impl = std::make_shared<Impl>();
    impl->group = std::move(group);
    impl->name = name;
  }
  return Ranks(impl);
}

int Ranks::rank() const {
  return impl_ ? impl_->group->getRank() : 0;
}

int Ranks::size() const {
  return impl_ ? impl_->group->getSize() : 1;
}

std::string Ranks::backend(c10::DeviceType device) const {
  return impl_ ? impl_->group->getBackend(device)->getBackendName() : "";
}

Ranks Ranks::split(const std::function<int(int rank)>& colour) const {
  std::map<int, std::vector<int>> groups;
  for (int r = 0; r < size(); ++r) groups[colour(r)].push_back(r);
  if (groups.at(colour(rank())).size() == 1 &&
      std::ranges::all_of(groups, [](const auto& g) { return g.second.size() == 1; }))
    return {};
  check(static_cast<bool>(group_maker()), "parallel: parts of a group: expected a program started by ",
        "torchrun -m libpom, or libpom.parallel.join(), got a group without a maker");
  std::string lists;
  for (const auto& [_, members] : groups) {
    if (!lists.empty()) lists += ';';
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i > 0) lists += ',';
      lists += std::to_string(members[i]);
    }
  }
  Ranks part = of_group(group_maker()(lists));
  part.impl_->limit = impl_->limit;
  part.impl_->whole = impl_->group;
  part.impl_->members = groups.at(colour(rank()));
  return part;
}

Pending Ranks::start_sum(at::Tensor& t) const {
  if (!impl_) return {};
  impl_->count(t);
  return impl_->pending("the sum", impl_,
                        [&] {
                          std::vector<at::Tensor> list = {t};
                          return impl_->group->allreduce(list, impl_->limited<c10d::AllreduceOptions>());
                        },
                        {t});
}

at::Tensor Ranks::gather(const at::Tensor& mine) const {
  if (!impl_) return mine.unsqueeze(0).clone();
  at::Tensor all = at::empty({size() * mine.numel()}, mine.options());
  start_gather(all, mine.contiguous().flatten()).wait();
  std::vector<std::int64_t> shape = mine.sizes().vec();
  shape.insert(shape.begin(), size());
  return all.view(shape);
}

Pending Ranks::start_gather(at::Tensor& all, const at::Tensor& mine) const {
  if (!impl_) {
    if (all.data_ptr() != mine.data_ptr()) all.copy_(mine);
    return {};
  }
  impl_->count(mine);
  at::Tensor input = mine;
  return impl_->pending(
      "the gathering", impl_,
      [&] { return impl_->group->_allgather_base(all, input, impl_->limited<c10d::AllgatherOptions>()); },
      {all, mine});
}

Pending Ranks::start_reduce_scatter(at::Tensor& mine, const at::Tensor& all) const {
  if (!impl_) {
    if (all.data_ptr() != mine.data_ptr()) mine.copy_(all);
    return {};
  }
  impl_->count(all);
  at::Tensor input = all;
  return impl_->pending("the sum in parts", impl_,
                        [&] {
                          return impl_->group->_reduce_scatter_base(
                              mine, input, impl_->limited<c10d::ReduceScatterOptions>());
                        },
                        {mine, all});
}

Pending Ranks::start_broadcast(at::Tensor& t, int from) const {
  if (!impl_) return {};
  impl_->count(t);
  auto options = impl_->limited<c10d::BroadcastOptions>();
  options.rootRank = from;
  return impl_->pending("the broadcast", impl_,
                        [&] {
                          std::vector<at::Tensor> list = {t};
                          return impl_->group->broadcast(list, options);
                        },
                        {t});
}

Pending Ranks::start_exchange(at::Tensor& out, std::vector<std::int64_t> counts_out, const at::Tensor& in,
                              std::vector<std::int64_t> counts_in) const {
  if (!impl_) {
    out.copy_(in);
    return {};
  }
  impl_->count(in);
  at::Tensor input = in;
  return impl_->pending("the exchange", impl_,
                        [&] {
                          return impl_->group->alltoall_base(out, input, counts_out, counts_in,
                                                             impl_->limited<c10d::AllToAllOptions>());
                        },
                        {out, in});
}

std::vector<std::int64_t> Ranks::largest(std::vector<std::int64_t> values) const {
  if (!impl_) return values;
  at::Tensor t = at::tensor(values, at::kLong);
  impl_->count(t);
  auto options = impl_->limited<c10d::AllreduceOptions>();
  options.reduceOp = c10d::ReduceOp::MAX;
  impl_
      ->pending("the agreement", impl_,
                [&] {
                  std::vector<at::Tensor> list = {t};
                  return impl_->group->allreduce(list, options);
                },
                {t})
      .wait();
  const std::int64_t* agreed = t.const_data_ptr<std::int64_t>();
  return {agreed, agreed + t.numel()};
}

std::vector<std::string> Ranks::gather_text(const std::string& mine) const {
  if (!impl_) return {mine};
  const std::int64_t longest = largest({static_cast<std::int64_t>(mine.size())})[0];
  // Each is as long as the longest, with its own length in front.
  at::Tensor bytes = at::empty({8 + longest}, at::kByte).zero_();
  auto* data = bytes.data_ptr<std::uint8_t>();
  const std::uint64_t length = mine.size();
  std::memcpy(data, &length, 8);
  std::memcpy(data + 8, mine.data(), mine.size());
  const at::Tensor all = gather(bytes);
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r) {
    const auto* row = all.const_data_ptr<std::uint8_t>() + r * (8 + longest);
    std::uint64_t count = 0;
    std::memcpy(&count, row, 8);
    texts.emplace_back(reinterpret_cast<const char*>(row + 8), std::min<std::uint64_t>(count, longest));
  }
  return texts;
}

void Ranks::meet(std::chrono::milliseconds limit) const {
  if (!impl_) return;
  at::Tensor t = at::empty({1}, at::kByte).zero_();
  impl_->count(t);
  c10d::AllreduceOptions options;
  options.timeout = limit;
  impl_
      ->pending("the meeting", impl_,
                [&] {
                  std::vector<at::Tensor> list = {t};
                  return impl_->group->allreduce(list, options);
                },
                {t})
      .wait();
}

void Ranks::require_same(const std::string& what, const std::string& mine) const {
  const std::vector<std::string> texts = gather_text(mine);
  std::string others;
  for (std::size_t r = 1; r < texts.size(); ++r)
    if (texts[r] != texts[0]) others += detail::concat("\n  rank ", r, ": ", shown(texts[r], 500));
  check(others.empty(), what, ": expected the same on all ranks, got\n  rank 0: ", shown(texts[0], 500),
        others);
}

void Ranks::set_limit(std::chrono::milliseconds limit) const {
  if (impl_) impl_->limit = limit;
}

void Ranks::note_failure(const std::string& why) const {
  if (impl_) leave_note(*impl_->group, first_line(why));
}

Traffic Ranks::traffic() const {
  if (!impl_) return {};
  return {impl_->calls, impl_->numbers, impl_->bytes};
}

const Ranks& world() {
  return joined();
}

void join(const std::string& group) {
  joined() = Ranks::of_group(group);
}

int local_rank() {
  const char* text = world().alone() ? nullptr : std::getenv("LOCAL_RANK");
  return text ? std::max(0, std::atoi(text)) : 0;
}

void set_group_maker(GroupMaker maker) {
  group_maker() = std::move(maker);
}

}  // namespace pom::parallel
