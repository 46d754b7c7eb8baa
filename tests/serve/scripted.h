// A backend that goes a step when it is told to, and the thread of a server that a test is itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "pom/base/error.h"
#include "pom/serve/backend.h"

namespace pom::serve {

// Posts that wait until the test runs them.
class Posts {
 public:
  void add(std::function<void()> call) {
    {
      const std::scoped_lock lock(mutex_);
      calls_.push_back(std::move(call));
    }
    changed_.notify_all();
  }
  // Runs what comes until `done` holds; false after ten seconds.
  bool until(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done()) {
      std::unique_lock lock(mutex_);
      // Not everything that a test waits for is posted: it looks again from time to time.
      if (!changed_.wait_for(lock, std::chrono::milliseconds(5), [&] { return !calls_.empty(); })) {
        if (std::chrono::steady_clock::now() > end) return false;
        continue;
      }
      const std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
};

class ScriptedBackend : public Backend {
 public:
  ScriptedBackend() {
    ModelInfo info;
    info.id = "scripted", info.width = info.height = 4, info.class_count = 3,
    info.sha256 = "0123456789abcdef";
    info.classes = {"circle", "square", "star"};
    models_.push_back(info);
  }

  const std::vector<ModelInfo>& models() const override { return models_; }
  std::string device() const override { return name; }
  generate::Job resolve(std::size_t, const generate::Request& request) const override {
    generate::Job job;
    generate::Request item = request;
    item.width = item.width.value_or(4), item.height = item.height.value_or(4);
    item.steps = item.steps.value_or(4), item.sampler = "euler", item.cfg_scale = item.cfg_scale.value_or(1);
    item.shift = 1, item.eta = 0, item.cfg_from = 0, item.cfg_to = 1, item.clamp = 0, item.dtype = "fp32";
    item.count = 1;
    check(item.class_name.has_value(), "sample: class: expected one, got none");
    for (std::int64_t i = 0; i < request.count; ++i) {
      job.items.push_back(item);
      job.items.back().seed = {request.seed.front() + i};
    }
    return job;
  }
  double macs(std::size_t, const generate::Job& job) const override {
    return static_cast<double>(job.items.size()) * static_cast<double>(*job.first().steps);
  }
  std::int64_t good_batch(std::size_t, const generate::Job&) const override { return batch; }
  std::int64_t memory(std::size_t, const generate::Job& job, std::int64_t items) const override {
    return items * *job.first().width;
  }
  double measure(std::size_t) override { return 0.5; }
  std::vector<io::TextEntry> text_of(std::size_t, const generate::Request&,
                                     std::int64_t size) const override {
    return {{"batch", std::to_string(size)}};
  }
  generate::Request defaults(std::size_t) const override { return {}; }

  void run(std::size_t, const generate::Job& job, std::int64_t, const generate::Observer& observer) override {
    {
      const std::scoped_lock lock(mutex_);
      std::vector<std::string> names;
      for (const generate::Request& item : job.items)
        names.push_back(detail::concat(*item.class_name, " ", item.own_seed()));
      batches.push_back(names);
    }
    const std::int64_t steps = *job.first().steps;
    for (std::int64_t step = 1; step <= steps; ++step) {
      if (observer.stop->load()) throw generate::Stopped();
      wait_for_a_step();
      for (std::int64_t i = 0; i < std::ssize(job.items); ++i) rows += !observer.left(i);
      ++evaluations;
      observer.on_evaluation(step, steps);
    }
    if (!failure.empty()) fail(failure);
    for (std::size_t i = 0; i < job.items.size(); ++i) {
      if (observer.left(static_cast<std::int64_t>(i))) continue;
      io::Image image = io::make_image("test", 4, 4, 3);
      image.data[0] = static_cast<std::uint8_t>(job.items[i].own_seed());
      observer.on_frames({.item = static_cast<std::int64_t>(i), .first = 0, .images = {image}, .last = true});
    }
  }
  std::unique_ptr<LiveSource> open(std::size_t, const generate::Job&) override { return nullptr; }

  void step(std::int64_t count = 1) {
    {
      const std::scoped_lock lock(mutex_);
      steps_ += count;
    }
    changed_.notify_all();
  }

  std::int64_t batch = 4;
  std::string name = "none";                            // of the device
  std::atomic<std::int64_t> evaluations = 0, rows = 0;  // rows: pictures of all evaluations
  std::vector<std::vector<std::string>> batches;        // that were run, by their pictures
  std::string failure;

 private:
  void wait_for_a_step() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return steps_ > 0; });
    --steps_;
  }

  std::vector<ModelInfo> models_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t steps_ = 0;
};

}  // namespace pom::serve
