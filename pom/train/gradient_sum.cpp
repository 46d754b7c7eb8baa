#include "pom/train/gradient_sum.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "pom/base/error.h"
#include "pom/base/failpoint.h"
#include "pom/train/adamw_cpu.h"

namespace pom::train {
namespace {

double steady() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

c10::Stream current_stream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// `later` does not overtake what `earlier` has been given.
void follow(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

// (p0 + p1) + (p2 + p3) …, into the first; a number of rows that is no power of two in order.
void sum_rows(const at::Tensor& rows) {
  const std::int64_t n = rows.size(0);
  if ((n & (n - 1)) != 0) {
    for (std::int64_t i = 1; i < n; ++i) rows[0].add_(rows[i]);
    return;
  }
  for (std::int64_t width = 1; width < n; width *= 2)
    for (std::int64_t i = 0; i < n; i += 2 * width) rows[i].add_(rows[i + width]);
}

}  // namespace

struct GradientSum::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(GradientSum& sum, std::size_t parameter) : sum(sum), parameter(parameter) {}
  void operator()(const at::Tensor&) override { sum.ready(parameter); }

  GradientSum& sum;
  std::size_t parameter;
};

GradientSum::GradientSum(Parameters& parameters, const Shares& shares, const parallel::Ranks& ranks,
                         const GradientSumOptions& options)
    : parameters_(parameters), shares_(shares), ranks_(ranks), options_(options) {
  options_.own_alone = options.own_alone && shares.divided();
  const std::vector<Bucket>& buckets = shares_.buckets();
  members_.resize(buckets.size());
  buffers_.resize(buckets.size());
  const std::vector<Slice>& slices = parameters_.slices();
  buckets_of_.resize(slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i)
    for (std::size_t b = 0; b < buckets.size(); ++b)
      if (slices[i].begin < buckets[b].begin() + buckets[b].count() &&
          slices[i].begin + slices[i].count > buckets[b].begin()) {
        buckets_of_[i].push_back(b);
        ++members_[b];
      }
  if (ranks_.alone()) return;
  for (std::size_t i = 0; i < slices.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_.tensors()[i],
                                                   std::make_unique<Hook>(*this, i));
  const at::Device device = parameters_.values().device();
  if (options_.own_alone) {
    own_ = at::zeros({shares_.own_count()}, parameters_.values().options());
    round_ = at::zeros_like(own_);
    parameters_.drop_gradients();
  }
  if (device.is_cpu())
    thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  else
    stream_ =
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

GradientSum::~GradientSum() {
  thread_ = {};  // asked to stop, and waited for
  if (ranks_.alone()) return;
  for (const at::Tensor& tensor : parameters_.tensors())
    torch::autograd::impl::set_post_acc_grad_hooks(tensor, nullptr);
}

const at::Tensor& GradientSum::result() const {
  return options_.own_alone ? own_ : parameters_.gradients();
}

void GradientSum::begin(std::int64_t parts) {
  c10::NoGradGuard no_grad;
  parts_ = parts;
  steps_ = tree_steps(parts);
  const auto deepest = static_cast<std::size_t>(tree_depth(steps_));
  while (aside_.size() < deepest) aside_.push_back(at::empty_like(result()));
  depth_ = 0;
  if (!options_.own_alone) parameters_.gradients().zero_();
}

void GradientSum::before(std::int64_t part) {
  sends_ = !ranks_.alone() && (options_.own_alone || part + 1 == parts_);
  if (!sends_) return;
  const std::lock_guard lock(mutex_);
  missing_ = members_;
  next_ = started_ = sent_ = 0;
}

// After a part that is not sent, sums go aside as the tree says; the last one's are added bucket by bucket.
void GradientSum::after(std::int64_t part) {
  c10::NoGradGuard no_grad;
  const TreeStep& step = steps_[static_cast<std::size_t>(part)];
  const bool last = part + 1 == parts_;
  if (options_.own_alone) {
    drain();
    // The sum of this round goes on top of the one before, where two add up where they are.
    const bool fresh = part == 0 || steps_[static_cast<std::size_t>(part - 1)].push;
    fresh ? own_.copy_(round_) : own_.add_(round_);
  } else if (last && !ranks_.alone()) {
    return;
  }
  const at::Tensor& sum = result();
  for (int i = 0; i < step.pops; ++i) sum.add_(aside_[--depth_]);
  if (!step.push) return;
  aside_[depth_++].copy_(sum);
  if (!options_.own_alone) parameters_.gradients().zero_();
}

void GradientSum::ready(std::size_t parameter) {
  if (!sends_) return;
  c10::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  if (options_.own_alone) {  // the gradient moves into what is sent, and its own memory is free
    const at::Tensor& tensor = parameters_.tensors()[parameter];
    const Slice& slice = parameters_.slices()[parameter];
    const at::Tensor gradient = tensor.grad().flatten();
    for (const std::size_t b : buckets_of_[parameter]) {
      const Bucket& bucket = shares_.buckets()[b];
      const std::int64_t from = std::max(slice.begin, bucket.begin()),
                         to = std::min(slice.begin + slice.count, bucket.begin() + bucket.count());
      buffer_of(b)
          .narrow(0, from - bucket.begin(), to - from)
          .copy_(gradient.narrow(0, from - slice.begin, to - from));
    }
    tensor.mutable_grad() = at::Tensor();
  }
  for (const std::size_t b : buckets_of_[parameter]) --missing_[b];
  if (options_.overlap) start_what_is_complete();
}

at::Tensor GradientSum::buffer_of(std::size_t bucket) {
  if (!buffers_[bucket].defined())
    buffers_[bucket] = at::zeros({shares_.buckets()[bucket].count()}, parameters_.values().options());
  return buffers_[bucket];
}

// In their order, whatever order they become complete in.
void GradientSum::start_what_is_complete() {
  while (next_ < missing_.size() && missing_[next_] == 0) start(next_++);
}

void GradientSum::start(std::size_t bucket) {
  if (!stream_) {
    ++started_;
    changed_.notify_all();
    return;
  }
  const at::Device device = parameters_.values().device();
  follow(*stream_, current_stream(device));
  const c10::StreamGuard guard(*stream_);
  send(bucket);
}

// The thread of communication.
void GradientSum::work(const std::stop_token& stop) {
  c10::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return sent_ < started_; })) {
    const std::size_t bucket = sent_;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (!error_) send(bucket);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) error_ = error;
    ++sent_;
    changed_.notify_all();
  }
}

void GradientSum::send(std::size_t b) {
  if (failpoint("gradient_sum.send") != 0) return;  // for a test that sees the difference
  const Bucket& bucket = shares_.buckets()[b];
  if (options_.own_alone) {
    at::Tensor sum = buffer_of(b);
    if (stream_) sum.record_stream(*stream_);
    send_own(sum, bucket);
    buffers_[b] = at::Tensor();
    return;
  }
  at::Tensor sum = parameters_.gradients().narrow(0, bucket.begin(), bucket.count());
  for (std::size_t i = depth_; i > 0; --i) sum.add_(aside_[i - 1].narrow(0, bucket.begin(), bucket.count()));
  if (shares_.divided())
    send_own(sum, bucket);
  else
    send_all(sum, bucket);
}

// Everyone gets all of it.
void GradientSum::send_all(at::Tensor& sum, const Bucket& bucket) {
  if (!options_.exact) {
    at::Tensor sent = options_.narrow ? sum.to(at::kBFloat16) : sum;
    ranks_.start_sum(sent).wait();
    if (options_.narrow) sum.copy_(sent);
    return;
  }
  send_own(sum, bucket);
  at::Tensor all = sum;
  ranks_
      .start_gather(all, sum.narrow(0, bucket.cuts[static_cast<std::size_t>(ranks_.rank())] - bucket.begin(),
                                    bucket.count_of(ranks_.rank()))
                             .clone())
      .wait();
}

// This rank gets its own part, in its place or in the sum of the round.
void GradientSum::send_own(at::Tensor& sum, const Bucket& bucket) {
  const int ranks = ranks_.size(), rank = ranks_.rank();
  const std::int64_t mine = bucket.count_of(rank);
  at::Tensor sent = options_.narrow ? sum.to(at::kBFloat16) : sum;
  at::Tensor parts = at::empty({ranks * mine}, sent.options());
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(bucket.count_of(r));
  ranks_.start_exchange(parts, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), mine), sent, counts)
      .wait();
  if (mine == 0) return;
  const at::Tensor rows = parts.to(sum.scalar_type()).view({ranks, mine});
  sum_rows(rows);
  const std::int64_t begin = bucket.cuts[static_cast<std::size_t>(rank)];
  if (!options_.own_alone) {
    sum.narrow(0, begin - bucket.begin(), mine).copy_(rows[0]);
    return;
  }
  const auto own = std::ranges::find(shares_.own(), begin, &OwnRange::begin);
  own->of_own(round_).copy_(rows[0]);
}

// Everything of this part that is to be sent has been.
void GradientSum::drain() {
  const double began = steady();
  std::unique_lock lock(mutex_);
  std::ranges::fill(missing_, 0);  // also of parameters that have no gradient this time
  start_what_is_complete();
  if (stream_) {
    follow(current_stream(parameters_.values().device()), *stream_);
    return;
  }
  changed_.wait(lock, [this] { return sent_ == missing_.size(); });
  waited_ += steady() - began;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void GradientSum::finish() {
  c10::NoGradGuard no_grad;
  if (!ranks_.alone() && !options_.own_alone) drain();
  sends_ = false;
}

// ---- the norm ----

namespace {

template <class Real>
void squares_cpu(const at::Tensor& values, double* sums) {
  const Real* x = values.const_data_ptr<Real>();
  at::parallel_for(0, values.numel() / flat_piece, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) sums[i] = square_sum(x + i * flat_piece, flat_piece);
  });
}

void squares_into(const at::Tensor& sums, const at::Tensor& values) {
  if (!values.is_cpu()) {
    const at::Tensor norms = at::linalg_vector_norm(values.view({-1, flat_piece}), 2, at::IntArrayRef({1}));
    sums.copy_(norms.to(at::kDouble).square_());
  } else if (values.scalar_type() == at::kDouble) {
    squares_cpu<double>(values, sums.data_ptr<double>());
  } else {
    squares_cpu<float>(values, sums.data_ptr<double>());
  }
}

}  // namespace

at::Tensor squares_of_pieces(const at::Tensor& gradients, const Shares& shares, std::int64_t total) {
  c10::NoGradGuard no_grad;
  const at::Tensor sums = at::zeros({total / flat_piece}, gradients.options().dtype(at::kDouble));
  for (const OwnRange& range : shares.own())
    squares_into(sums.narrow(0, range.begin / flat_piece, range.count / flat_piece),
                 shares.view(gradients, range));
  return sums;
}

}  // namespace pom::train
