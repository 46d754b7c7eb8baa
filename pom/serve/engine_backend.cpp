// The backend on generate::Engine.
#include <algorithm>

#include "pom/base/error.h"
#include "pom/base/progress.h"
#include "pom/generate/live_clip.h"
#include "pom/serve/backend.h"

namespace pom::serve {
namespace {

namespace fs = std::filesystem;
using generate::Engine, generate::Job, generate::Request;

class EngineClip : public LiveSource {
 public:
  EngineClip(Engine& engine, const Job& job) : clip_(engine, job) {}
  void tell(const std::string& prompt) override { clip_.tell(prompt); }
  generate::Frames next(const std::atomic<bool>& stop, const std::function<void()>& on_evaluation) override {
    return clip_.next(&stop, on_evaluation);
  }
  bool save(const fs::path& path, const generate::BesideStream& beside) const override {
    return clip_.save(path, beside);
  }

 private:
  generate::LiveClip clip_;
};

class EngineBackend : public Backend {
 public:
  EngineBackend(const std::vector<fs::path>& folders, const std::string& device, std::string dtype)
      : dtype_(std::move(dtype)) {
    for (const fs::path& folder : folders) {
      engines_.emplace_back(folder, device);
      models_.push_back(described(engines_.back()));
      const auto same = [&](const ModelInfo& other) { return other.id == models_.back().id; };
      check(std::ranges::count_if(models_, same) == 1, "serve: model: expected names that differ, got \"",
            models_.back().id, "\" twice; the second is ", folder.string());
      defaults_.push_back(engines_.back().resolve_quickly(any_request(models_.back())).first());
    }
    check(!engines_.empty(), "serve: model: expected at least one, got none");
    device_ = engines_.front().device();
  }

  const std::vector<ModelInfo>& models() const override { return models_; }
  std::string device() const override { return device_; }

  Job resolve(std::size_t model, const Request& request) const override {
    Request own = request;
    if (!dtype_.empty()) {
      check(!request.dtype || *request.dtype == dtype_, "request: dtype: expected ", dtype_,
            ", in which this server runs, got ", request.dtype.value_or(""));
      own.dtype = dtype_;
    } else {
      const std::string& usual = *defaults_.at(model).dtype;
      check(!request.dtype || *request.dtype == usual, "request: dtype: expected ", usual,
            ", in which this server runs (pom serve --dtype), got ", request.dtype.value_or(""));
    }
    return engines_.at(model).resolve_quickly(own);
  }
  double macs(std::size_t model, const Job& job) const override { return engines_.at(model).macs(job); }
  std::int64_t good_batch(std::size_t model, const Job& job) const override {
    return engines_.at(model).good_batch(job);
  }
  std::int64_t memory(std::size_t model, const Job& job, std::int64_t items) const override {
    return engines_.at(model).memory(job, items);
  }
  std::vector<io::TextEntry> text_of(std::size_t model, const Request& item,
                                     std::int64_t batch) const override {
    generate::Origin origin = engines_.at(model).origin(item);
    origin.batch = batch;
    return generate::metadata_of(origin);
  }
  Request defaults(std::size_t model) const override { return defaults_.at(model); }

  // The first run makes weights and plans ready; with as much at once as keeps the device busy.
  double measure(std::size_t model) override {
    Request request = any_request(models_.at(model));
    request.seed = {0}, request.steps = 1;
    constexpr std::int64_t few_blocks = 2, most_items = 64;
    const ModelInfo& info = models_.at(model);
    if (info.clips) request.frames = std::to_string(std::min(info.frames, few_blocks * info.block_frames));
    if (!info.clips)
      request.count = std::clamp<std::int64_t>(good_batch(model, resolve(model, request)), 1, most_items);
    generate::Observer observer;
    observer.on_frames = [](generate::Frames&&) {};
    double seconds = 0;
    try {
      const Job job = resolve(model, request);
      run(model, job, std::ssize(job.items), observer);
      constexpr double patience = 0.1;  // seconds; the best of what they allow, as others use the machine too
      const double first = steady_seconds();
      do {
        const double began = steady_seconds();
        run(model, job, std::ssize(job.items), observer);
        const double taken = steady_seconds() - began;
        seconds = seconds == 0 ? taken : std::min(seconds, taken);
      } while (steady_seconds() - first < patience);
      return seconds / macs(model, job);
    } catch (const Error&) {  // it does not fit: requests are told so
      return 0;
    }
  }

  void run(std::size_t model, const Job& job, std::int64_t batch,
           const generate::Observer& observer) override {
    engines_.at(model).run(job, {.batch = batch}, observer);
  }
  std::unique_ptr<LiveSource> open(std::size_t model, const Job& job) override {
    return std::make_unique<EngineClip>(engines_.at(model), job);
  }

 private:
  static ModelInfo described(Engine& engine) {
    const generate::ModelConfig& config = engine.config();
    const bool video = config.network.video();
    ModelInfo info;
    info.id = engine.name();
    info.clips = video && config.sample.frames > 1;
    info.text = video;
    info.streams = info.clips && config.network.block_causal() && !config.network.needs_length();
    info.width = config.sample.size.at(0), info.height = config.sample.size.at(1);
    info.class_count = video ? 0 : config.network.classes;
    info.classes = config.classes;
    info.examples = config.examples;
    info.frames = info.clips ? config.sample.frames : 0;
    info.block_frames = engine.block_frames();
    info.fps = info.clips ? config.sample.fps : 0;
    info.sha256 = engine.weights_hash();
    engine.text_hash(), engine.codec_hash();  // now, and not in several threads at once
    return info;
  }
  static Request any_request(const ModelInfo& info) {
    Request request;
    if (info.text)
      request.prompt = {""};
    else
      request.class_name = "0";
    return request;
  }

  std::vector<Engine> engines_;
  std::vector<ModelInfo> models_;
  std::vector<Request> defaults_;
  std::string device_, dtype_;
};

}  // namespace

std::unique_ptr<Backend> engine_backend(const std::vector<fs::path>& folders, const std::string& device,
                                        const std::string& dtype) {
  return std::make_unique<EngineBackend>(folders, device, dtype);
}

}  // namespace pom::serve
