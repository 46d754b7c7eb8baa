// Tests of the whole server on a backend that makes small pictures at once: many clients on many threads, who
// ask, watch, cancel and leave. Under the thread sanitizer (`make serve-sanitize`) this is where threads
// meet.
#include "pom/serve/server.h"

#include "tests/net/net_support.h"
#include "tests/serve/scripted.h"

#include "pom/serve/json.h"

namespace pom::serve {
namespace {

using net::Client;
using net::Reply;

class Blank : public LiveSource {
 public:
  void tell(const std::string& prompt) override { told_ = prompt; }
  generate::Frames next(const std::atomic<bool>& stop, const std::function<void()>&) override {
    if (stop) throw generate::Stopped();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const io::Image image = io::make_image("test", 4, 4, 3);
    return {.item = 0, .first = 2 * blocks_++, .images = {image, image}, .last = false};
  }
  bool save(const std::filesystem::path&, const generate::BesideStream&) const override { return true; }

 private:
  std::string told_;
  std::int64_t blocks_ = 0;
};

// Goes on by itself, and streams.
class QuickBackend : public ScriptedBackend {
 public:
  QuickBackend() {
    step(1'000'000'000);
    models_ = ScriptedBackend::models();
    ModelInfo clips = models_.front();
    clips.id = "clips", clips.clips = clips.text = clips.streams = true, clips.block_frames = 2;
    models_.push_back(clips);
  }
  const std::vector<ModelInfo>& models() const override { return models_; }
  generate::Request defaults(std::size_t) const override {
    generate::Request request;
    request.steps = 4;
    return request;
  }
  generate::Job resolve(std::size_t model, const generate::Request& request) const override {
    generate::Request asked = request;
    if (model == 1) asked.class_name = asked.prompt.front();
    if (asked.seed.empty()) asked.seed = {0};
    generate::Job job = ScriptedBackend::resolve(model, asked);
    job.clip = model == 1, job.fps = 200;
    return job;
  }
  std::unique_ptr<LiveSource> open(std::size_t, const generate::Job&) override {
    return std::make_unique<Blank>();
  }

 private:
  std::vector<ModelInfo> models_;
};

class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    ServeOptions options;
    options.port = 0;
    options.limits.waiting = options.limits.waiting_a_client = 1000;
    server_ = std::make_unique<Server>(std::move(options), [] {
      std::vector<std::unique_ptr<Backend>> backends;
      backends.push_back(std::make_unique<QuickBackend>());
      return backends;
    });
  }

  static std::string request(const char* method, const std::string& path, const std::string& body = {}) {
    return detail::concat(
        method, " ", path,
        " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ", body.size(),
        "\r\n\r\n", body);
  }
  Reply ask(const char* method, const std::string& path, const std::string& body = {}) {
    Client client(server_->port());
    client.send(request(method, path, body));
    return client.reply();
  }
  Json json(const char* method, const std::string& path, const std::string& body = {}) {
    const Reply reply = ask(method, path, body);
    return Json::parse(reply.body, nullptr, false);
  }
  // Calls this often on each of some threads.
  static void on_threads(int threads, int times, const std::function<void(int)>& call) {
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
      all.emplace_back([&, t] {
        for (int i = 0; i < times; ++i) call(t * times + i);
      });
    for (std::thread& thread : all) thread.join();
  }

  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, ManyClientsAtOnce) {
  std::atomic<int> made = 0;
  on_threads(8, 10, [&](int number) {
    const std::string seed = std::to_string(number);
    const Json answer = json("POST", "/v1/images/generations", R"({"prompt":"star","seed":)" + seed + "}");
    made += !answer.is_discarded() && answer.contains("data");
    const Json job = json("POST", "/pom/v1/jobs", R"({"class":"star","previews":true,"seed":)" + seed + "}");
    ASSERT_TRUE(job.contains("id")) << job.dump();
    const std::string id = job["id"];
    if (number % 3 == 0) json("DELETE", "/pom/v1/jobs/" + id);
    ask("GET", "/pom/v1/jobs/" + id + "/events");
    ask("GET", "/metrics"), ask("GET", "/health"), ask("GET", "/pom/v1/pictures");
  });
  EXPECT_EQ(made, 80);
}

TEST_F(ServerTest, ClientsThatLeave) {
  on_threads(8, 20, [&](int number) {
    Client client(server_->port());
    const std::string body = R"({"prompt":"star","n":4,"seed":)" + std::to_string(number * 10) + "}";
    const std::string all = request("POST", "/v1/images/generations", body);
    client.send(all.substr(0, number % 4 == 0 ? all.size() / 2 : all.size()));
    if (number % 4 == 1) client.reset();
    if (number % 4 == 2) client.reply();
  });
  EXPECT_TRUE(net::eventually([&] {
    const Json health = json("GET", "/health");
    return health["queued"] == 0 && health["running"] == 0;
  }));
}

TEST_F(ServerTest, StreamsAndTheirViewers) {
  const Json stream = json("POST", "/pom/v1/streams", R"({"model":"clips","prompt":"a"})");
  ASSERT_TRUE(stream.contains("id")) << stream.dump();
  const std::string path = "/pom/v1/streams/" + stream["id"].get<std::string>();
  on_threads(6, 5, [&](int number) {
    Client viewer(server_->port());
    viewer.send(request("GET", path + (number % 2 == 0 ? "/frames" : "/mjpeg")));
    viewer.reply(true);
    json("POST", path + "/prompt", R"({"prompt":"b"})");
    json("POST", path + "/pause", number % 2 == 0 ? R"({"paused":true})" : R"({"paused":false})");
    viewer.receive(std::chrono::milliseconds(100));
  });
  EXPECT_EQ(json("DELETE", path)["state"], "ended");
}

TEST_F(ServerTest, TheEndWhileTheyAsk) {
  std::atomic<bool> over = false;
  std::thread asking([&] {
    while (!over) {
      Client client(server_->port());
      client.send(request("POST", "/pom/v1/jobs", R"({"class":"star","count":4})"));
      client.reply();
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  server_->drain(5);
  over = true;
  asking.join();
}

}  // namespace
}  // namespace pom::serve
