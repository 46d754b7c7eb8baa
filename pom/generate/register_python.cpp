// torch.classes.pom.Engine and torch.classes.pom.Run: the engine as Python reaches it, in strings of JSON and
// tensors, so that libpom.so needs no Python to build. python/libpom/engine.py is its other half.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include <ATen/ops/empty.h>
#include <torch/custom_class.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/generate/engine.h"
#include "pom/generate/metadata.h"
#include "pom/generate/model_names.h"
#include "pom/io/json_fields.h"

namespace pom::generate {
namespace {

// (T, H, W, C) of 8 bits.
at::Tensor stack(const std::vector<io::Image>& images) {
  const io::Image& first = images.front();
  at::Tensor out = at::empty({std::ssize(images), first.height, first.width, first.channels},
                             at::TensorOptions(at::kByte));
  std::uint8_t* to = out.data_ptr<std::uint8_t>();
  for (const io::Image& image : images) {
    std::memcpy(to, image.data.data(), image.data.size());
    to += image.data.size();
  }
  return out;
}

std::string list_of(const std::vector<std::string>& texts, bool quoted) {
  std::string list = "[";
  for (const std::string& text : texts) {
    if (list.size() > 1) list += ',';
    list += quoted ? io::json_quoted(text) : text;
  }
  return list += ']';
}

// {"items":[{…}],"frames":48,"fps":8,"clip":true,"remarks":["…"]}
std::string job_json(const Job& job) {
  std::vector<std::string> items;
  for (const Request& item : job.items) items.push_back(request_json(item));
  return pom::detail::concat("{\"items\":", list_of(items, false), ",\"frames\":", job.frames,
                             ",\"fps\":", job.fps, ",\"clip\":", job.clip ? "true" : "false",
                             ",\"remarks\":", list_of(job.remarks, true), "}");
}

// What Python is told: what it is, and its tensor. An empty kind says that nothing has come in time.
using Event = std::tuple<std::string, std::int64_t, std::int64_t, at::Tensor>;  // kind, item or step, first

// Torch cannot give Python an undefined tensor in a tuple.
at::Tensor nothing() {
  return at::empty({0}, at::TensorOptions(at::kByte));
}

struct Shared {
  Engine engine;
  std::timed_mutex one_at_a_time;       // Python's threads are free to meet: torch lets its lock go in a call
  std::atomic<bool> streaming = false;  // a run that its reader may leave standing
  std::mutex hash_mutex;
  std::string hash;  // of the weights, once it is known: nobody waits for a stream to learn it

  Shared(const std::string& folder, const std::string& device) : engine(folder, device) {}
};

// A run in a thread of its own, whose results are asked for. It waits where nobody asks.
class PythonRun : public torch::CustomClassHolder {
 public:
  PythonRun(std::shared_ptr<Shared> shared, Job job, std::int64_t batch, std::int64_t preview_every,
            bool latents, bool left_open, Inputs inputs)
      : shared_(std::move(shared)), job_(std::move(job)), left_open_(left_open), inputs_(std::move(inputs)) {
    limits_.batch = batch;
    observer_.stop = &stop_;
    if (latents)
      observer_.on_latents = [this](std::int64_t item, const at::Tensor& made) {
        put({"latents", item, 0, made.clone()});
      };
    else
      observer_.on_frames = [this](Frames&& frames) {
        put({"frames", frames.item, frames.first, stack(frames.images)});
      };
    observer_.preview_every = preview_every;
    observer_.on_preview = [this](std::int64_t step, std::vector<Frames>&& all) {
      for (const Frames& frames : all) put({"preview", step, frames.item, stack(frames.images)});
    };
    worker_ = std::thread([this] { work(); });
  }
  ~PythonRun() override {
    stop();
    worker_.join();
  }

  std::string job() { return job_json(job_); }

  Event next(double seconds) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return !events_.empty() || ended_; };
    if (!ready()) {
      wanted_ = true;
      changed_.notify_all();
    }
    if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), ready)) return {"", 0, 0, nothing()};
    if (events_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return {"end", 0, 0, nothing()};
    }
    Event event = std::move(events_.front());
    events_.pop_front();
    changed_.notify_all();
    return event;
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr std::size_t most_events = 4;  // that wait to be asked for

  void put(Event event) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return events_.size() < most_events || stop_; });
    if (stop_) throw Stopped();
    events_.push_back(std::move(event));
    changed_.notify_all();
    if (job_.save_state.empty()) return;
    wanted_ = false;  // a state stands behind the last block that was asked for, not the last that could be
    changed_.wait(lock, [&] { return wanted_ || stop_; });
    if (stop_) throw Stopped();
  }

  // A state stands behind what was asked for: where nothing was, there is none.
  void wait_for_reader() {
    if (job_.save_state.empty()) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return wanted_ || stop_; });
    if (stop_) throw Stopped();
  }

  void work() {
    std::exception_ptr failure;
    try {
      try {
        std::unique_lock alone(shared_->one_at_a_time, std::defer_lock);
        while (!alone.try_lock_for(std::chrono::milliseconds(20)))
          if (stop_) throw Stopped();  // nobody waits for a run that was given up
        wait_for_reader();
        shared_->engine.run(job_, limits_, observer_, inputs_);
      } catch (const Stopped&) {
      }
    } catch (...) {  // nothing may leave a thread
      failure = std::current_exception();
    }
    if (left_open_) shared_->streaming = false;
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    ended_ = true;
    changed_.notify_all();
  }

  std::shared_ptr<Shared> shared_;
  Job job_;
  bool left_open_;
  Inputs inputs_;
  Limits limits_;
  Observer observer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  std::exception_ptr failure_;
  bool ended_ = false, wanted_ = false;
  std::atomic<bool> stop_ = false;
  std::thread worker_;
};

// Before anything is made, not when there is a state to write.
void check_save_state(const std::filesystem::path& file) {
  if (file.empty()) return;
  std::error_code ignored;
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  check(std::filesystem::is_directory(folder, ignored),
        "sample: save_state: no such folder: ", shown(folder.string()));
  check(!std::filesystem::is_directory(file, ignored), "sample: save_state: expected a file, got the folder ",
        shown(file.string()));
}

void check_init(const at::Tensor& init, const Job& job) {
  if (!init.defined() || init.size(0) == 1) return;
  check(init.size(0) == std::ssize(job.items), "sample: init: expected one for all, or one for each of ",
        job.items.size(), job.clip ? " clips" : " images", ", got ", init.size(0));
}

void check_free(bool streaming) {
  check(!streaming,
        "sample: expected an engine that is free, got one with a stream that is open: close it, or open the "
        "model a second time");
}

class PythonEngine : public torch::CustomClassHolder {
 public:
  PythonEngine(const std::string& folder, const std::string& device)
      : shared_(std::make_shared<Shared>(model_folder(folder, "Engine").string(), device)) {}

  std::string name() { return shared_->engine.name(); }
  std::string device() { return shared_->engine.device(); }
  std::int64_t block_frames() { return shared_->engine.block_frames(); }
  std::string weights_hash() {
    {
      const std::lock_guard lock(shared_->hash_mutex);
      if (!shared_->hash.empty()) return shared_->hash;
    }
    const std::lock_guard alone(shared_->one_at_a_time);
    const std::lock_guard lock(shared_->hash_mutex);
    return shared_->hash = shared_->engine.weights_hash();
  }
  std::string text_hash() { return shared_->engine.text_hash(); }
  std::string config() {
    ModelConfig copy = shared_->engine.config();
    return io::write_json(copy);
  }
  std::string resolve(const std::string& request, std::optional<at::Tensor> init) {
    return job_json(resolved(request, {.init = init.value_or(at::Tensor())}));
  }
  c10::intrusive_ptr<PythonRun> start(const std::string& request, std::int64_t batch,
                                      std::int64_t preview_every, bool latents, bool left_open,
                                      std::optional<at::Tensor> noise, std::optional<at::Tensor> init) {
    check_free(shared_->streaming);
    Inputs inputs{noise.value_or(at::Tensor()), init.value_or(at::Tensor())};
    Job job = resolved(request, inputs);
    if (left_open) {
      weights_hash();                                 // while the engine is free
      check_free(shared_->streaming.exchange(true));  // before its thread has its turn
    }
    return c10::make_intrusive<PythonRun>(shared_, std::move(job), batch, preview_every, latents, left_open,
                                          inputs);
  }

 private:
  Job resolved(const std::string& request, const Inputs& inputs) {
    Job job = shared_->engine.resolve(request_from_json(request, "sample"), inputs);
    check_init(inputs.init, job);
    check_save_state(job.save_state);
    return job;
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(pom, m) {
  m.class_<PythonRun>("Run")
      .def("job", &PythonRun::job)
      .def("next", &PythonRun::next)
      .def("stop", &PythonRun::stop);
  m.class_<PythonEngine>("Engine")
      .def(torch::init<std::string, std::string>())
      .def("name", &PythonEngine::name)
      .def("device", &PythonEngine::device)
      .def("block_frames", &PythonEngine::block_frames)
      .def("weights_hash", &PythonEngine::weights_hash)
      .def("text_hash", &PythonEngine::text_hash)
      .def("config", &PythonEngine::config)
      .def("resolve", &PythonEngine::resolve)
      .def("start", &PythonEngine::start);
}

}  // namespace pom::generate
