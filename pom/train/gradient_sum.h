// The gradients of a batch that is computed in parts, by several ranks: added up over all of them while the
// backward pass of the last part still runs.
//
// A bucket of the flat memory is on its way as soon as the gradients in it are complete: on a CPU from a
// thread of its own, on a GPU on a stream of its own. All ranks send the buckets in the same order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "pom/parallel/ranks.h"
#include "pom/train/division.h"
#include "pom/train/parameters.h"
#include "pom/train/shares.h"

namespace pom::train {

struct GradientSumOptions {
  bool exact = false;      // the tree of division.h over all ranks; else in the order of the backend
  bool narrow = false;     // sent as bf16
  bool own_alone = false;  // only the own parts are kept (shares divided), and parts of ranks are interleaved
  bool overlap = true;     // else everything is sent after the backward pass: for comparisons
};

class GradientSum {
 public:
  GradientSum(Parameters& parameters, const Shares& shares, const parallel::Ranks& ranks,
              const GradientSumOptions& options);
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // A batch of so many parts on this rank: begin, then for each part before() and after() its backward pass,
  // then finish(), after which result() has the sum: where shares are divided, in the own parts alone.
  void begin(std::int64_t parts);
  void before(std::int64_t part);
  void after(std::int64_t part);
  void finish();
  const at::Tensor& result() const;  // like the parameters, or own parts (own_alone)

  double waited() const { return waited_; }  // seconds in finish(), on a CPU, so far

 private:
  struct Hook;
  void ready(std::size_t parameter);
  void start_what_is_complete();  // with the lock
  void start(std::size_t bucket);
  void send(std::size_t bucket);  // until it is done, in the thread or on the stream of communication
  void send_all(at::Tensor& sum, const Bucket& bucket);
  void send_own(at::Tensor& sum, const Bucket& bucket);
  at::Tensor buffer_of(std::size_t bucket);
  void work(const std::stop_token& stop);
  void drain();

  Parameters& parameters_;
  const Shares& shares_;
  parallel::Ranks ranks_;
  GradientSumOptions options_;
  std::vector<TreeStep> steps_;
  std::vector<at::Tensor> aside_;  // sums of earlier parts
  std::size_t depth_ = 0;          // of them that are in use
  at::Tensor own_, round_;         // own parts: the sum, and that of the parts computed at the same time
  std::vector<at::Tensor> buffers_;
  std::vector<std::vector<std::size_t>> buckets_of_;  // of each parameter
  std::vector<std::int64_t> members_, missing_;       // parameters of each bucket, and those not ready
  std::int64_t parts_ = 0;
  bool sends_ = false;  // the part under way is one after which sums are sent
  double waited_ = 0;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::size_t next_ = 0, started_ = 0, sent_ = 0;  // buckets
  std::exception_ptr error_;
  std::optional<c10::Stream> stream_;  // of communication, on a GPU
  std::jthread thread_;                // last, so that it ends before what it uses
};

// The sum of squares of each flat_piece elements, fp64; of own parts, in their places, zeros elsewhere.
at::Tensor squares_of_pieces(const at::Tensor& gradients, const Shares& shares, std::int64_t total);

}  // namespace pom::train
