// The one queue of all routes: who is next, what is made together, who may leave. All of it lives on the
// server's thread (`post` brings other threads there), so nothing here is locked, and a test can be that
// thread.
//
// Clients take turns by the work that they have had (multiply-adds), each client's jobs in their order. When
// a device is free, the client whose turn it is gives the settings, and waiting pictures of the same settings
// fill the batch, clients in turn. Nothing waits for more on a CPU; a GPU that has nothing to do lets a burst
// of requests come in whole, for a few hundredths of a second, before it begins with the first alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pom/base/progress.h"
#include "pom/serve/backend.h"
#include "pom/serve/job.h"
#include "pom/serve/worker.h"

namespace pom::serve {

using Post = std::function<void(std::function<void()>)>;
using PostAfter = std::function<void(std::chrono::milliseconds, std::function<void()>)>;

struct QueueLimits {
  std::int64_t waiting = 64, waiting_a_client = 8;  // jobs
  std::int64_t items = 10, steps = 250, pixels = 1024 * 1024, frames = 10'000, prompt_bytes = 2000;
  std::vector<std::int64_t> batch_sizes = {};  // in place of the device's own (batch_size.h)
  double gather = 0.03;                        // seconds that a free GPU waits for more at most
  double seconds = 600;                        // of a job, as forecast
  std::int64_t memory = 0;                     // bytes of what is made at one time, with the streams; 0: any
  std::size_t kept_jobs = 256;                 // that are over, to be asked about
};

// Jobs are told of on the server's thread.
struct QueueListener {
  std::function<void(const ServedJob&)> on_change = {};
  std::function<void(const ServedJob&, std::int64_t item, std::int64_t step, net::Bytes png)> on_preview = {};
  std::function<void(const ServedJob&, std::int64_t pictures, double seconds)> on_batch = {};
};

class Queue {
 public:
  // A backend and a worker for each device; all have the same models. They, pool and pictures outlive this.
  struct Device {
    Backend* backend;
    Worker* worker;
  };
  Queue(std::vector<Device> devices, Pool& pool, Pictures& pictures, Post post, QueueLimits limits,
        QueueListener listener);
  ~Queue();

  const QueueLimits& limits() const { return limits_; }
  const Backend& backend() const { return *devices_.front().device.backend; }

  // A job of this request, complete and within the limits, which waits for nothing yet. Throws ApiError.
  JobPointer check(std::size_t model, const generate::Request& request, const std::string& client) const;
  // In line. Throws ApiError: 429 where the client has too many, 503 where all have.
  void submit(const JobPointer& job, bool fresh = false);  // fresh: nothing that was made before will do
  // From now on no evaluation is made for it; one that is over stays as it is.
  void cancel(const JobPointer& job, const char* reason);

  void forget(const JobPointer& job);  // one that is over: nobody will ask about it

  JobPointer find(std::string_view id) const;
  std::vector<JobPointer> jobs_of(const std::string& client) const;  // newest first
  std::vector<JobPointer> all() const;
  std::int64_t position(const ServedJob& job) const;               // 1: the next one
  std::optional<double> seconds_left(const ServedJob& job) const;  // until it is done, by the speed so far
  std::optional<double> seconds_of(std::size_t model, double macs) const;
  void set_speed(std::size_t model, double seconds_a_mac);                       // until batches say better
  std::int64_t memory() const;                                                   // of the batches that run
  void set_timer(PostAfter post_after) { post_after_ = std::move(post_after); }  // without it nothing waits
  void set_others(std::function<std::int64_t()> memory) { others_ = std::move(memory); }  // of the streams

  std::int64_t waiting() const, running() const;
  // Whether a device that has something to do has not been heard of for ten times as long as is usual.
  bool stuck(double now) const;
  std::uint64_t evaluations() const { return evaluations_; }
  void check_request(const generate::Request& request) const { check_length(request); }  // of a stream
  void drain();  // nothing more is taken; what waits is told so
  bool draining() const { return draining_; }

 private:
  struct Client {
    double had = 0;  // multiply-adds, with a head start for those who were away
    std::vector<JobPointer> jobs;
  };
  struct Piece {  // of a batch
    JobPointer job;
    std::size_t item;
  };
  struct Batch {
    std::size_t device = 0, model = 0;
    std::vector<Piece> pieces;
    generate::Job job;
    std::int64_t size = 0;  // with repeats, where its sizes are fixed; 0: they are not
    std::atomic<bool> stop = false;
    std::deque<std::atomic<bool>> left = {};  // of its pieces: nobody wants them
    std::atomic<std::int64_t> done = 0;
    std::int64_t preview_every = 0, told = 0;  // evaluations that were heard of
    double began = 0, macs = 0;
    std::int64_t memory = 0;
  };
  struct Running {
    Device device;
    std::shared_ptr<Batch> batch = {};
    double heard = 0;  // of it
  };

  void check_length(const generate::Request& request) const;
  std::string made_key(const ServedJob& job, const generate::Request& item) const;
  void check_limits(const generate::Job& job, std::size_t model) const;
  void check_memory(const generate::Job& job, std::size_t model) const;
  std::int64_t room(std::size_t model, const generate::Job& job, std::int64_t most) const;
  void pump();
  std::shared_ptr<Batch> next_batch(std::size_t device);
  std::vector<Client*> by_turn();
  // How many of its kind go together on a device, and whether that number is to be kept to.
  struct Size {
    std::int64_t pictures = 1;
    bool fixed = false;
  };
  Size size_for(std::size_t device, const ServedJob& lead) const;
  std::int64_t waiting_like(const ServedJob& lead) const;
  std::vector<std::int64_t> sizes_for(std::size_t device, const ServedJob& lead) const;
  bool gathers(std::size_t device);
  void fill(Batch& batch, Size size) const;
  void start(std::size_t device, std::shared_ptr<Batch> batch);
  void run(std::shared_ptr<Batch> batch, Device device);  // on the worker
  void store(const std::shared_ptr<Batch>& batch, std::size_t piece,
             std::vector<io::Image> frames);  // likewise
  void heard(const std::shared_ptr<Batch>& batch, std::int64_t done, std::int64_t total);
  void made(const Piece& piece, PicturePointer picture, const std::optional<io::Image>& image);
  void failed(const std::shared_ptr<Batch>& batch, const ApiError& error);
  void ended(const std::shared_ptr<Batch>& batch);
  void finish(ServedJob& job, JobState state);
  void forget_old();

  std::vector<Running> devices_;
  Pool& pool_;
  Pictures& pictures_;
  Post post_;
  QueueLimits limits_;
  QueueListener listener_;
  std::map<std::string, Client> clients_;  // those who wait
  std::map<std::string, JobPointer, std::less<>> jobs_;
  std::vector<JobPointer> over_;  // in the order of their ends
  std::uint64_t next_number_ = 1, evaluations_ = 0;
  std::map<std::size_t, double> seconds_a_mac_;  // of late, by model
  double seconds_an_evaluation_ = 0;             // likewise
  std::function<std::int64_t()> others_;
  PostAfter post_after_;
  bool gathering_ = false;  // a pump is on its way
  double turn_ = 0;         // what the client whose turn it was last has had
  bool draining_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Since 1970, to be shown; durations and deadlines go by steady_seconds (pom/base/progress.h).
double now_seconds();

Json job_json(const ServedJob& job, const Queue& queue);

}  // namespace pom::serve
