// Tests of the queue, with a backend that goes a step when it is told to: who is next, what is made together,
// who may leave.
#include "pom/serve/queue.h"

#include "tests/serve/scripted.h"
#include <future>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <thread>

namespace pom::serve {
namespace {

class QueueTest : public testing::Test {
 protected:
  QueueTest() { limits_.waiting = 6, limits_.waiting_a_client = 4; }
  // Whoever waits for a step gets as many as it wants.
  ~QueueTest() override {
    if (!queue_) return;
    for (const JobPointer& job : queue_->all()) queue_->cancel(job, "end");
    backend_.step(1'000'000);
  }

  Queue& queue() {
    if (!queue_) {
      QueueListener listener;
      listener.on_change = [this](const ServedJob& job) {
        changes_.push_back(job.id + " " + name_of(job.state));
      };
      queue_ = std::make_unique<Queue>(
          std::vector<Queue::Device>{{&backend_, &worker_}}, pool_, pictures_,
          [this](std::function<void()> call) { posts_.add(std::move(call)); }, limits_, listener);
    }
    return *queue_;
  }
  JobPointer submit(const std::string& client, std::int64_t seed, std::int64_t count = 1,
                    std::int64_t steps = 4) {
    generate::Request request;
    request.class_name = client, request.seed = {seed}, request.count = count, request.steps = steps;
    const JobPointer job = queue().check(0, request, client);
    queue().submit(job);
    return job;
  }
  bool over(const JobPointer& job) {
    return posts_.until([&] { return job->over(); });
  }
  void evaluated(std::int64_t count) {
    EXPECT_TRUE(posts_.until([&] { return backend_.evaluations >= count; }));
  }

  QueueLimits limits_;
  ScriptedBackend backend_;
  Pictures pictures_{{}};
  Posts posts_;
  std::vector<std::string> changes_;
  std::unique_ptr<Queue> queue_;
  Worker worker_;
  Pool pool_;
};

using Names = std::vector<std::string>;

TEST_F(QueueTest, WhatWaitsIsMadeTogether) {
  const JobPointer first = submit("a", 1);
  std::vector<JobPointer> others = {submit("a", 2), submit("b", 3), submit("c", 4), submit("a", 5, 2)};
  backend_.step(100);
  ASSERT_TRUE(over(first));
  for (const JobPointer& job : others) ASSERT_TRUE(over(job));
  // Nothing waits for the first; then a picture of each client in turn, and what is left.
  ASSERT_EQ(backend_.batches.size(), 3u);
  EXPECT_EQ(backend_.batches[0], (Names{"a 1"}));
  EXPECT_EQ(backend_.batches[1], (Names{"b 3", "c 4", "a 2", "a 5"}));
  EXPECT_EQ(backend_.batches[2], (Names{"a 6"}));
  EXPECT_EQ(others[3]->made(), 2);
}

TEST_F(QueueTest, OtherSettingsAreMadeApart) {
  submit("a", 1);
  const JobPointer slow = submit("b", 2, 1, 8), quick = submit("c", 3), more = submit("b", 4, 1, 8);
  backend_.step(100);
  ASSERT_TRUE(over(slow) && over(quick) && over(more));
  EXPECT_EQ(backend_.batches[1], (Names{"b 2", "b 4"}));
  EXPECT_EQ(backend_.batches[2], (Names{"c 3"}));
}

TEST_F(QueueTest, ClientsTakeTurns) {
  backend_.batch = 1;
  limits_.waiting = limits_.waiting_a_client = 100;
  submit("greedy", 0);
  std::vector<JobPointer> jobs;
  for (int i = 1; i <= 10; ++i) jobs.push_back(submit("greedy", i));
  for (int i = 1; i <= 3; ++i) jobs.push_back(submit("modest", i));
  backend_.step(1000);
  for (const JobPointer& job : jobs) ASSERT_TRUE(over(job));
  // The one that came late is not behind all ten.
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < backend_.batches.size(); ++i)
    if (backend_.batches[i].front().starts_with("modest")) places.push_back(i);
  EXPECT_EQ(places, (std::vector<std::size_t>{1, 3, 5}));
}

TEST_F(QueueTest, CancelledWhileItWaits) {
  const JobPointer first = submit("a", 1), second = submit("b", 2);
  EXPECT_EQ(queue().position(*second), 1);
  queue().cancel(second, "cancelled");
  EXPECT_EQ(second->state, JobState::cancelled);
  backend_.step(100);
  ASSERT_TRUE(over(first));
  EXPECT_EQ(backend_.batches.size(), 1u);
  EXPECT_EQ(backend_.evaluations, 4);
}

TEST_F(QueueTest, CancelledWhileItRuns) {
  const JobPointer job = submit("a", 1, 1, 100);
  backend_.step(3);
  evaluated(3);
  queue().cancel(job, "cancelled");
  backend_.step(1);  // the one that it waits for
  const JobPointer next = submit("b", 2);
  backend_.step(4);
  ASSERT_TRUE(over(next));
  EXPECT_LE(backend_.evaluations, 3 + 1 + 4);
  EXPECT_EQ(next->state, JobState::completed);
}

TEST_F(QueueTest, OneOfABatchLeaves) {
  submit("x", 0);
  std::vector<JobPointer> jobs = {submit("a", 1), submit("b", 2), submit("c", 3), submit("d", 4)};
  backend_.step(4 + 2);
  evaluated(6);
  ASSERT_TRUE(posts_.until([&] { return jobs[1]->state == JobState::running; }));
  queue().cancel(jobs[1], "client_left");
  backend_.step(2);
  for (const JobPointer& job : jobs) ASSERT_TRUE(over(job));
  EXPECT_EQ(jobs[1]->state, JobState::cancelled);
  EXPECT_EQ(jobs[1]->made(), 0);
  for (const int i : {0, 2, 3}) EXPECT_EQ(jobs[static_cast<std::size_t>(i)]->state, JobState::completed);
  EXPECT_EQ(backend_.rows, 4 + 2 * 4 + 2 * 3);  // it costs nothing any more
  EXPECT_EQ(pictures_.size(), 4u);              // with that of x
}

TEST_F(QueueTest, Limits) {
  submit("a", 1);
  for (int i = 2; i <= 5; ++i) submit("a", i);
  const auto status_of = [&](auto&& work) {
    try {
      work();
    } catch (const ApiError& error) {
      return std::to_string(error.status) + " " + error.code;
    }
    return std::string("none");
  };
  EXPECT_EQ(status_of([&] { submit("a", 6); }), "429 client_queue_full");
  submit("b", 1), submit("b", 2);
  EXPECT_EQ(status_of([&] { submit("c", 1); }), "503 queue_full");
  EXPECT_EQ(status_of([&] { submit("c", 1, 11); }), "400 too_expensive");
  queue().drain();
  EXPECT_EQ(status_of([&] { submit("d", 1); }), "503 draining");
  EXPECT_EQ(queue().waiting(), 0);
}

// Before anything has run.
TEST_F(QueueTest, CostIsCountedFromTheStart) {
  limits_.seconds = 10;
  EXPECT_FALSE(queue().seconds_of(0, 4).has_value());
  queue().set_speed(0, backend_.measure(0));
  EXPECT_EQ(queue().seconds_of(0, 4), 2);
  submit("a", 1, 1, 20);  // ten seconds
  try {
    submit("a", 2, 1, 21);
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.code, "too_expensive");
  }
}

TEST_F(QueueTest, MemoryIsCounted) {
  limits_.memory = 12;  // three pictures of four
  std::int64_t streams = 0;
  queue().set_others([&] { return streams; });
  const auto code = [&](std::int64_t width) -> std::string {
    generate::Request request;
    request.class_name = "a", request.seed = {1}, request.width = width;
    try {
      queue().check(0, request, "a");
    } catch (const ApiError& error) {
      return error.code;
    }
    return "none";
  };
  EXPECT_EQ(code(12), "none");
  EXPECT_EQ(code(13), "too_expensive");
  streams = 6;
  EXPECT_EQ(code(6), "none");
  EXPECT_EQ(code(7), "out_of_memory");
  submit("x", 0);
  std::vector<JobPointer> jobs = {submit("a", 1), submit("b", 2), submit("c", 3)};
  streams = 4;
  backend_.step(100);
  for (const JobPointer& job : jobs) ASSERT_TRUE(over(job));
  ASSERT_GE(backend_.batches.size(), 2u);
  EXPECT_EQ(backend_.batches[1].size(), 2u);  // which fit
}

// As on a GPU: sizes that are filled up, and said in the files.
// The first of a burst is not made alone: the device waits as long as more keep coming, and no longer.
TEST_F(QueueTest, AFreeGpuLetsABurstComeIn) {
  backend_.name = "cuda:0", backend_.batch = 4;
  limits_.batch_sizes = {1, 4}, limits_.gather = 3;
  std::vector<std::function<void()>> later;
  std::vector<std::chrono::milliseconds> delays;
  queue().set_timer([&](std::chrono::milliseconds delay, std::function<void()> call) {
    delays.push_back(delay), later.push_back(std::move(call));
  });
  std::vector<JobPointer> jobs;
  for (int i = 1; i <= 3; ++i) jobs.push_back(submit("a", i));
  for (const JobPointer& job : jobs) EXPECT_EQ(job->state, JobState::queued);
  ASSERT_EQ(later.size(), 1u);  // one call for all of them
  EXPECT_LE(delays[0].count(), 500);
  std::this_thread::sleep_for(std::chrono::milliseconds(550));  // none came meanwhile
  later[0]();
  for (const JobPointer& job : jobs) EXPECT_EQ(job->state, JobState::running);
  backend_.step(1000);
  for (const JobPointer& job : jobs) ASSERT_TRUE(over(job));
  EXPECT_EQ(backend_.batches[0], (Names{"a 1", "a 2", "a 3", "a 1"}));
}

TEST_F(QueueTest, AFullBatchWaitsForNothing) {
  backend_.name = "cuda:0", backend_.batch = 4;
  limits_.batch_sizes = {1, 4}, limits_.gather = 100;
  std::vector<std::function<void()>> later;
  queue().set_timer([&](std::chrono::milliseconds, std::function<void()> call) { later.push_back(call); });
  std::vector<JobPointer> jobs;
  for (int i = 1; i <= 3; ++i) jobs.push_back(submit("a", i));
  EXPECT_EQ(jobs.back()->state, JobState::queued);
  jobs.push_back(submit("b", 4));
  for (const JobPointer& job : jobs) EXPECT_EQ(job->state, JobState::running);
  backend_.step(1000);
  for (const JobPointer& job : jobs) ASSERT_TRUE(over(job));
}

TEST_F(QueueTest, BatchesOfFixedSizes) {
  backend_.name = "cuda:0", backend_.batch = 64;
  limits_.waiting = limits_.waiting_a_client = 100;
  submit("x", 0);
  std::vector<JobPointer> jobs;
  for (int i = 1; i <= 3; ++i) jobs.push_back(submit("a", i));
  for (int i = 1; i <= 6; ++i) jobs.push_back(submit("b", i, 1, 8));  // other settings
  queue().cancel(jobs[1], "client_left");
  backend_.step(1000);
  for (const JobPointer& job : jobs) ASSERT_TRUE(over(job));
  EXPECT_EQ(backend_.batches[0], (Names{"x 0"}));
  ASSERT_EQ(backend_.batches.size(), 4u);
  EXPECT_EQ(backend_.batches[1], (Names{"a 1", "a 3", "a 1", "a 1"}));
  EXPECT_EQ(backend_.batches[2], (Names{"b 1", "b 2", "b 3", "b 4"}));
  EXPECT_EQ(backend_.batches[3], (Names{"b 5", "b 6", "b 5", "b 5"}));
  EXPECT_EQ(pictures_.size(), 9u);  // nothing comes of repeats
  for (const std::size_t i : {0u, 2u, 3u, 8u}) EXPECT_EQ(jobs[i]->state, JobState::completed);
  const PicturePointer picture = pictures_.find(jobs[0]->items.front().picture->id);
  const auto text = io::parse_png_text(std::as_bytes(std::span(*picture->bytes)), "test");
  ASSERT_EQ(text.size(), 1u);
  EXPECT_EQ(text[0].text, "4");
}

// Whatever the device: one queue for all, each with a batch.
TEST_F(QueueTest, SeveralDevices) {
  ScriptedBackend second;
  Worker worker;
  backend_.batch = second.batch = 1;
  queue_ = std::make_unique<Queue>(
      std::vector<Queue::Device>{{&backend_, &worker_}, {&second, &worker}}, pool_, pictures_,
      [this](std::function<void()> call) { posts_.add(std::move(call)); }, limits_, QueueListener());
  std::vector<JobPointer> jobs = {submit("a", 1), submit("b", 2), submit("c", 3)};
  EXPECT_EQ(queue().running(), 2);
  second.step(4);
  ASSERT_TRUE(over(jobs[1]));
  second.step(4);
  ASSERT_TRUE(over(jobs[2]));
  EXPECT_FALSE(jobs[0]->over());
  backend_.step(4);
  ASSERT_TRUE(over(jobs[0]));
  EXPECT_EQ(second.batches.size(), 2u);
  queue_.reset();
}

TEST_F(QueueTest, AFailureIsTold) {
  backend_.failure = "sample: memory: one image at a time takes about 9 GiB, and there are 4";
  const JobPointer job = submit("a", 1);
  backend_.step(100);
  ASSERT_TRUE(over(job));
  EXPECT_EQ(job->state, JobState::failed);
  EXPECT_EQ(job->error->status, 503);
  EXPECT_EQ(job->error->code, "out_of_memory");
  EXPECT_FALSE(job->error->retry);
  backend_.failure.clear();
  const JobPointer next = submit("a", 2);
  ASSERT_TRUE(over(next));
  EXPECT_EQ(next->state, JobState::completed);
}

TEST_F(QueueTest, WhatWasMadeIsNotMadeAgain) {
  const JobPointer first = submit("a", 1);
  backend_.step(4);
  ASSERT_TRUE(over(first));
  const JobPointer same = submit("a", 1);
  EXPECT_EQ(same->state, JobState::completed);
  EXPECT_EQ(same->items.front().picture->id, first->items.front().picture->id);
  EXPECT_EQ(backend_.evaluations, 4);
}

TEST_F(QueueTest, ADeviceThatIsSilentIsStuck) {
  submit("a", 1);
  EXPECT_FALSE(queue().stuck(steady_seconds()));
  EXPECT_TRUE(queue().stuck(steady_seconds() + 11));
}

TEST(Pictures, TheOldestGo) {
  Pictures pictures({.bytes = 25, .seconds = 60, .folder = {}});
  const auto add = [&](double made) {
    auto picture = std::make_shared<Picture>();
    picture->id = random_id(), picture->extension = "png", picture->made = made;
    picture->bytes = std::make_shared<const std::string>(10, 'x');
    picture->request.class_name = "a";
    pictures.add(picture, picture->id + " key");
    return picture->id;
  };
  const std::string one = add(1), two = add(2), three = add(3);
  EXPECT_EQ(pictures.find(one), nullptr);
  EXPECT_EQ(pictures.find_made(one + " key"), nullptr);
  EXPECT_NE(pictures.find_made(two + " key"), nullptr);
  EXPECT_EQ(pictures.bytes(), 20u);
  pictures.forget_old(62.5);
  EXPECT_EQ(pictures.find(two), nullptr);
  EXPECT_NE(pictures.find(three), nullptr);
  EXPECT_TRUE(pictures.remove(three));
  EXPECT_FALSE(pictures.remove(three));
  EXPECT_EQ(pictures.bytes(), 0u);
  EXPECT_TRUE(is_id(one) && !is_id("../../etc/passwd") && !is_id(one.substr(1)) && one != two);
}

TEST(Pictures, AFolderHasABound) {
  std::string name = (std::filesystem::temp_directory_path() / "pom-gallery-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  {
    Pictures pictures({.folder = name, .folder_bytes = 25});
    std::vector<std::string> ids;
    for (int i = 0; i < 4; ++i) {
      auto picture = std::make_shared<Picture>();
      picture->id = random_id(), picture->extension = "png", picture->client = "a";
      picture->bytes = std::make_shared<const std::string>(i == 3 ? 30 : 10, 'x');
      picture->size = picture->bytes->size();
      pictures.write_file(*picture);
      pictures.add(picture);
      ids.push_back(picture->id);
      EXPECT_LE(pictures.folder_bytes(), i == 3 ? 30u : 25u);  // the last one always stays
    }
    EXPECT_EQ(pictures.size(), 1u);
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(name) / (ids[0] + ".png")));
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(name) / (ids[3] + ".png")));
  }
  std::filesystem::remove_all(name);
}

TEST(Worker, UrgentWorkPasses) {
  std::vector<std::string> done;
  std::mutex mutex;
  const auto note = [&](const char* what) {
    const std::scoped_lock lock(mutex);
    done.emplace_back(what);
  };
  std::promise<void> begun, added, over;
  {
    Worker worker;
    worker.add([&] {
      begun.set_value();
      added.get_future().wait();
      worker.let_urgent_pass();
      note("long");
    });
    begun.get_future().wait();
    worker.add([&] {
      note("next");
      over.set_value();
    });
    worker.add_urgent([&] { note("urgent"); });
    added.set_value();
    over.get_future().wait();
  }
  EXPECT_EQ(done, (std::vector<std::string>{"urgent", "long", "next"}));
}

}  // namespace
}  // namespace pom::serve
