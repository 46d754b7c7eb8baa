// The interfaces of the server as fuzz targets see them: all routes, the queue and the streams behind them,
// and a backend that resolves requests as the engine does and makes nothing. A target gives a request; what
// comes back has to be one answer that a client understands, and never a failure of the server's.
#pragma once

#include "tests/fuzz/fuzz.h"
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pom/serve/api.h"
#include "pom/serve/json.h"

namespace fuzz {

namespace net = pom::net;
namespace serve = pom::serve;
namespace generate = pom::generate;

class Still : public serve::LiveSource {
 public:
  void tell(const std::string&) override {}
  generate::Frames next(const std::atomic<bool>& stop, const std::function<void()>&) override {
    if (stop) throw generate::Stopped();
    const pom::io::Image image = pom::io::make_image("fuzz", 2, 2, 3);
    return {.item = 0, .first = 2 * blocks_++, .images = {image, image}, .last = false};
  }
  bool save(const std::filesystem::path&, const generate::BesideStream&) const override { return true; }

 private:
  std::int64_t blocks_ = 0;
};

class Nothing : public serve::Backend {
 public:
  Nothing() : configs_(2) {
    configs_[0].network.classes = 3, configs_[0].classes = {"circle", "square", "star"};
    configs_[1].network.kind = "vdipom";
    for (generate::ModelConfig& config : configs_) config.sample.size = {32, 32};
    configs_[1].sample.frames = 8;
    serve::ModelInfo images, clips;
    images.id = "shapes", images.classes = configs_[0].classes, images.class_count = 3;
    clips.id = "clips", clips.clips = clips.text = clips.streams = true, clips.frames = 8, clips.fps = 8;
    clips.block_frames = 2;
    for (serve::ModelInfo* info : {&images, &clips}) {
      info->width = info->height = 32;
      info->sha256 = std::string(64, info->clips ? 'b' : 'a');
      models_.push_back(*info);
    }
  }

  const std::vector<serve::ModelInfo>& models() const override { return models_; }
  std::string device() const override { return "none"; }
  generate::Job resolve(std::size_t model, const generate::Request& request) const override {
    return generate::resolve(request, configs_.at(model), {.factor = 1, .block_frames = model == 1 ? 2 : 1});
  }
  double macs(std::size_t, const generate::Job& job) const override {
    return static_cast<double>(*job.first().steps);
  }
  std::int64_t good_batch(std::size_t, const generate::Job&) const override { return 4; }
  std::int64_t memory(std::size_t, const generate::Job& job, std::int64_t items) const override {
    return items * *job.first().width * *job.first().height;
  }
  double measure(std::size_t) override { return 0; }
  std::vector<pom::io::TextEntry> text_of(std::size_t, const generate::Request&,
                                          std::int64_t) const override {
    return {};
  }
  generate::Request defaults(std::size_t) const override {
    generate::Request request;
    request.steps = 20;
    return request;
  }
  void run(std::size_t, const generate::Job&, std::int64_t, const generate::Observer&) override {
    throw generate::Stopped();
  }
  std::unique_ptr<serve::LiveSource> open(std::size_t, const generate::Job&) override {
    return std::make_unique<Still>();
  }

 private:
  std::vector<generate::ModelConfig> configs_;
  std::vector<serve::ModelInfo> models_;
};

// What a client gets.
struct Answer {
  int status = 0;
  std::string body, streamed;
  std::vector<std::function<void()>> gone;
};

class Body : public net::BodyStream {
 public:
  explicit Body(std::shared_ptr<Answer> answer) : answer_(std::move(answer)) {}
  bool write(net::Bytes bytes) override {
    require(!ended_, "nothing is written after the end");
    if (answer_->streamed.size() < 1 << 20) answer_->streamed += *bytes;
    return true;
  }
  void end() override { ended_ = true; }
  void abort() override { ended_ = true; }
  std::size_t waiting_bytes() const override { return 0; }
  void on_drained(std::function<void()>) override {}

 private:
  std::shared_ptr<Answer> answer_;
  bool ended_ = false;
};

class Asked : public net::Exchange {
 public:
  Asked(net::HttpRequest request, std::shared_ptr<Answer> answer)
      : request_(std::move(request)), answer_(std::move(answer)) {}
  const net::HttpRequest& request() const override { return request_; }
  void answer(net::HttpResponse response) override {
    require(answer_->status == 0, "one answer");
    answer_->status = response.status;
    answer_->body = response.shared ? *response.shared : response.body;
  }
  std::shared_ptr<net::BodyStream> stream(int status, net::Headers) override {
    require(answer_->status == 0, "one answer");
    answer_->status = status;
    return std::make_shared<Body>(answer_);
  }
  void on_gone(std::function<void()> call) override { answer_->gone.push_back(std::move(call)); }
  bool gone() const override { return false; }

 private:
  const net::HttpRequest request_;
  const std::shared_ptr<Answer> answer_;
};

// The server without its sockets: this thread is the server's.
class Serving {
 public:
  // Every target uses the same one, whose threads outlive the inputs.
  static Serving& the() {
    static Serving& serving = *new Serving;
    return serving;
  }

  Answer ask(const std::string& method, const std::string& path, std::string_view body = {},
             const std::vector<std::pair<std::string, std::string>>& headers = {},
             decltype(net::HttpRequest::query) query = {}) {
    net::HttpRequest request;
    request.query = std::move(query);
    request.method = method, request.path = path, request.client = "fuzz", request.body = body;
    if (!body.empty()) request.headers.set("Content-Type", "application/json");
    for (const auto& [name, value] : headers) request.headers.set(name, value);
    const auto answer = std::make_shared<Answer>();
    router_->handle(std::make_shared<Asked>(std::move(request), answer));
    run_posts();
    check(*answer);
    return *answer;
  }
  // A client that goes: nothing of it is left.
  void leave(const Answer& answer) {
    for (const auto& call : answer.gone) call();
    for (const serve::JobPointer& job : queue_->all()) queue_->cancel(job, "client_left");
    for (const serve::Live::Pointer& stream : live_->all())
      if (!stream->over()) live_->end(*stream);
    run_posts();
    require(queue_->waiting() + queue_->running() == 0, "no job is left");
  }
  std::string stream_id() {
    serve::Json body = {{"prompt", "a star"}, {"fps", 1}};
    return serve::Json::parse(ask("POST", "/pom/v1/streams", body.dump()).body).at("id");
  }

 private:
  Serving() {
    const serve::Post post = [this](std::function<void()> call) {
      const std::scoped_lock lock(mutex_);
      posts_.push_back(std::move(call));
    };
    const std::vector<serve::Queue::Device> devices = {{&backend_, &worker_}};
    serve::QueueListener listener;
    listener.on_change = [this](const serve::ServedJob& job) { api_->job_changed(job); };
    queue_ = std::make_unique<serve::Queue>(devices, pool_, pictures_, post, serve::QueueLimits(), listener);
    serve::Live::Hooks hooks;
    hooks.on_change = [this](const serve::LiveStream& stream) { api_->stream_changed(stream); };
    live_ = std::make_unique<serve::Live>(
        devices, pool_, post, [](std::chrono::milliseconds, std::function<void()>) {}, serve::LiveLimits(),
        serve::QueueLimits(), hooks);
    api_ = std::make_unique<serve::Api>(*queue_, *live_, pictures_, pool_, metrics_, post,
                                        [](const net::HttpRequest& request) { return request.client; });
    router_ = std::make_unique<net::Router>(api_->routes(),
                                            [](int status, std::string_view code, std::string_view message) {
                                              return serve::error_response(status, code, message);
                                            });
  }

  void run_posts() {
    while (true) {
      std::function<void()> call;
      {
        const std::scoped_lock lock(mutex_);
        if (posts_.empty()) return;
        call = std::move(posts_.front());
        posts_.pop_front();
      }
      call();
    }
  }

  void check(const Answer& answer) {
    for (const serve::JobPointer& job : queue_->all()) {
      const generate::Request& request = job->job.first();
      require(job->items.size() <= 10 && *request.steps <= 250 && *request.width * *request.height <= 1 << 20,
              "jobs keep the limits");
    }
    if (answer.status == 0) return;  // it waits for a picture
    require(answer.status < 500 || answer.status == 503, "no failure of the server's");
    if (answer.body.empty() || answer.status == 204) return;
    const serve::Json json = serve::Json::parse(answer.body, nullptr, false);
    require(!json.is_discarded(), "an answer is JSON");
    if (answer.status < 400) return;
    require(json.contains("error") && json["error"].size() == 4, "an error has four keys");
    for (const char* key : {"message", "type", "param", "code"})
      require(json["error"].contains(key), "an error has its keys");
    require(json["error"]["message"].get<std::string>().size() < 8192, "a message is short");
  }

  Nothing backend_;
  serve::Worker worker_;
  serve::Pool pool_{1};
  serve::Pictures pictures_{{}};
  net::Metrics metrics_;
  std::mutex mutex_;
  std::deque<std::function<void()>> posts_;
  std::unique_ptr<serve::Queue> queue_;
  std::unique_ptr<serve::Live> live_;
  std::unique_ptr<serve::Api> api_;
  std::unique_ptr<net::Router> router_;
};

}  // namespace fuzz
