#include "pom/serve/server.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <future>
#include <thread>

#include "pom/base/build_info.h"
#include "pom/base/error.h"
#include "pom/base/failpoint.h"
#include "pom/base/shown.h"
#include "pom/net/forwarded.h"
#include "pom/serve/api.h"
#include "pom/serve/openapi.h"
#include "pom/serve/page.h"

namespace pom::serve {
namespace {

using std::chrono::milliseconds;

milliseconds ms(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

bool needs_no_key(const std::string& path) {
  return path == "/" || path == "/health" || path.starts_with("/assets/");
}

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

struct Server::Impl {
  explicit Impl(ServeOptions&& given)
      : options(std::move(given)),
        access(options.hosts, options.origins),
        proxies(options.proxies),
        pictures({options.result_bytes, options.result_seconds, options.gallery,
                  static_cast<std::size_t>(options.gallery_bytes)}) {}

  ServeOptions options;
  net::Access access;
  net::TrustedProxies proxies;
  net::Attempts attempts;
  net::Metrics metrics;
  Pictures pictures;
  std::vector<std::unique_ptr<Backend>> backends;
  // Who uses what: the routes use the queue and the streams, these the workers, which use the backends.
  std::unique_ptr<Queue> queue;
  std::unique_ptr<Live> live;
  std::unique_ptr<Api> api;
  std::unique_ptr<net::Router> router;
  std::atomic<bool> ready = false;
  bool drained = false;  // and its thread has stopped
  std::vector<std::unique_ptr<Worker>> workers;
  std::unique_ptr<Pool> pool = std::make_unique<Pool>();
  std::unique_ptr<net::HttpServer> http;

  // ---- before a request is read ----

  std::optional<net::HttpResponse> refuse(const net::HttpRequest& request) {
    if (!access.host_allowed(request))
      return error_response(403, "host_not_allowed",
                            "Host: expected a name of this server (pom serve --allow-host), got " +
                                shown(request.headers.get("Host")));
    if (auto preflight = access.preflight(request)) return preflight;
    if (!access.origin_allowed(request))
      return error_response(403, "cross_origin",
                            "Origin: expected a page of this server (pom serve --allow-origin)");
    if (options.keys.empty() || needs_no_key(request.path)) return std::nullopt;
    const net::KeyCheck check =
        net::check_key(request, options.keys, attempts, std::chrono::steady_clock::now());
    if (check.verdict == net::KeyVerdict::right) return std::nullopt;
    if (check.verdict == net::KeyVerdict::too_many)
      return error_response(429, "too_many_attempts", "too many wrong keys from this address; wait a minute");
    net::HttpResponse response = error_response(401, "invalid_api_key",
                                                check.verdict == net::KeyVerdict::missing
                                                    ? "a key is needed: Authorization: Bearer KEY"
                                                    : "the key is not one of this server's");
    response.headers.set("WWW-Authenticate", "Bearer");
    response.delay = milliseconds(100);
    return response;
  }

  std::string client_of(const net::HttpRequest& request) {
    if (options.keys.empty()) return request.client;
    const auto key = net::presented_key(request);
    const auto number = key ? options.keys.find(*key) : std::nullopt;
    return number ? "key " + options.keys.name(*number) : request.client;
  }

  void handle(std::shared_ptr<net::Exchange> exchange) {
    if (!ready.load(std::memory_order_acquire)) {
      if (exchange->request().path == "/health")
        return exchange->answer(json_response({{"status", "loading"}}, 503));
      ApiError error(503, "loading", "the models are being read; in a moment");
      error.retry_after = 1;
      return exchange->answer(error_response(error));
    }
    router->handle(std::move(exchange));
  }

  // ---- the parts ----

  net::ServerOptions http_options() {
    net::ServerOptions http_options;
    http_options.host = options.host, http_options.port = options.port;
    http_options.refuse = [this](const net::HttpRequest& request) { return refuse(request); };
    if (!proxies.empty())
      http_options.many_behind = [this](const std::string& address) { return proxies.trusts(address); };
    if (!proxies.empty())
      http_options.client_of = [this](const net::HttpRequest& request, const std::string& peer) {
        return proxies.client_of(request, peer);
      };
    http_options.body_limit = [](const net::HttpRequest& request) -> std::int64_t {
      constexpr std::int64_t mib = 1 << 20;
      if (request.path == "/pom/v1/reproduce" || request.path == "/v1/videos") return 8 * mib;
      return request.path == "/sdapi/v1/png-info" ? 12 * mib : mib;
    };
    http_options.error = [](int status, std::string_view code, std::string_view message) {
      return error_response(status, code, message);
    };
    http_options.decorate = [this](const net::HttpRequest& request, net::Headers& headers) {
      headers.set("X-Content-Type-Options", "nosniff");
      headers.set("Referrer-Policy", "no-referrer");
      headers.set("Cross-Origin-Resource-Policy", options.origins.empty() ? "same-origin" : "cross-origin");
      access.add_cors(request, headers);
    };
    http_options.head_time = ms(options.head_seconds), http_options.body_time = ms(options.body_seconds);
    http_options.idle_time = ms(options.idle_seconds), http_options.write_time = ms(options.write_seconds);
    if (failpoint_is_set("serve.deadlines")) {  // for a test that sees the difference
      http_options.head_time = http_options.body_time = http_options.idle_time = http_options.write_time =
          std::chrono::hours(1);
      http_options.body_rate = 0;
    }
    http_options.connections = options.connections;
    http_options.on_answer = [this](const net::HttpRequest& request, int status, std::uint64_t bytes,
                                    double seconds) { answered(request, status, bytes, seconds); };
    http_options.on_failure = [this](std::string_view id, std::string_view what) {
      if (options.log) options.log(detail::concat(time_text(), " failure ", id, " ", shown(what, 500)));
    };
    return http_options;
  }

  void answered(const net::HttpRequest& request, int status, std::uint64_t bytes, double seconds) {
    const bool known = ready.load(std::memory_order_acquire);
    const std::string route = known ? std::string(router->pattern_of(request)) : "other";
    metrics
        .counter("pom_requests_total", "requests, by route and status",
                 {{"route", route}, {"status", std::to_string(status)}})
        .add();
    metrics
        .histogram("pom_request_seconds", "from the end of a request's head to the end of its answer",
                   {0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300}, {{"route", route}})
        .observe(seconds);
    if (!options.log) return;
    const double rounded = std::round(seconds * 1e4) / 1e4;
    options.log(detail::concat(time_text(), " ", request.number, " ", request.client, " ",
                               request.method.empty() ? "-" : shown(request.method, 16), " ", route, " ",
                               status, " ", bytes, " ", rounded));
  }

  void assemble() {
    const Post post = [this](std::function<void()> call) { http->post(std::move(call)); };
    const PostAfter post_after = [this](milliseconds delay, std::function<void()> call) {
      http->post_after(delay, std::move(call));
    };
    std::vector<Queue::Device> devices;
    for (const std::unique_ptr<Backend>& backend : backends) {
      workers.push_back(std::make_unique<Worker>());
      devices.push_back({backend.get(), workers.back().get()});
    }
    QueueListener listener;
    listener.on_change = [this](const ServedJob& job) {
      if (job.state == JobState::running && job.evaluations == 0)
        metrics.histogram("pom_queue_seconds", "that jobs waited", {0.001, 0.01, 0.1, 1, 10, 60, 600})
            .observe(job.waited);
      api->job_changed(job);
    };
    listener.on_preview = [this](const ServedJob& job, std::int64_t item, std::int64_t step,
                                 const net::Bytes& png) { api->preview(job, item, step, png); };
    listener.on_batch = [this](const ServedJob&, std::int64_t count, double) {
      metrics.histogram("pom_batch_pictures", "pictures that were made together", {1, 2, 4, 8, 16, 32, 64})
          .observe(static_cast<double>(count));
    };
    queue = std::make_unique<Queue>(devices, *pool, pictures, post, options.limits, listener);
    Live::Hooks hooks;
    hooks.on_change = [this](const LiveStream& stream) { api->stream_changed(stream); };
    hooks.on_block = [this] { metrics.counter("pom_stream_blocks_total", "blocks of live streams").add(); };
    hooks.on_dropped = [this] {
      metrics.counter("pom_frames_dropped_total", "frames that viewers were too slow for").add();
    };
    hooks.on_late = [this](double seconds) {
      metrics.counter("pom_stream_late_seconds_total", "that live streams were behind their clocks")
          .add(seconds);
    };
    hooks.on_remark = [this](const std::string& what) {
      if (options.remark) options.remark(shown(what, 500));
    };
    hooks.batches_memory = [this] { return queue->memory(); };
    hooks.pictures_wait = [this] { return queue->waiting() + queue->running() > 0; };
    live = std::make_unique<Live>(devices, *pool, post, post_after, options.live, options.limits, hooks);
    queue->set_timer(post_after);
    queue->set_others([this] { return live->memory(); });
    api = std::make_unique<Api>(*queue, *live, pictures, *pool, metrics, post,
                                [this](const net::HttpRequest& request) { return client_of(request); });
    std::vector<net::Route> routes = api->routes();
    for (net::Route& route : page_routes(options.page)) routes.push_back(std::move(route));
    for (net::Route& route : own_routes()) routes.push_back(std::move(route));
    router = std::make_unique<net::Router>(std::move(routes),
                                           [](int status, std::string_view code, std::string_view message) {
                                             return error_response(status, code, message);
                                           });
    metrics.measured("process_resident_memory_bytes", "memory of the process",
                     [] { return net::resident_memory_bytes(); });
    metrics.gauge("pom_build_info", "what this is", {{"version", std::string(build_info().version)}}).set(1);
  }

  // On the device's thread, whose speed it is. Devices of a server are alike.
  void measure_speed() {
    for (std::size_t model = 0; model < backends.front()->models().size(); ++model) {
      std::promise<double> speed;
      workers.front()->add([&] {
        double found = 0;
        try {
          found = backends.front()->measure(model);
        } catch (const std::exception&) {  // then nothing is known until a batch has run
        }
        speed.set_value(found);
      });
      queue->set_speed(model, speed.get_future().get());
    }
  }

  std::vector<net::Route> own_routes() {
    return {
        {"GET", "/health", "whether it works",
         [this](std::shared_ptr<net::Exchange> exchange, const net::Captures&) { health(exchange); }},
        {"GET", "/metrics", "numbers for Prometheus",
         [this](std::shared_ptr<net::Exchange> exchange, const net::Captures&) { show_metrics(exchange); }},
        {"GET", "/openapi.json", "this interface",
         [this](std::shared_ptr<net::Exchange> exchange, const net::Captures&) {
           exchange->answer(json_response(openapi(*router, queue->backend(), queue->limits())));
         }}};
  }

  void health(const std::shared_ptr<net::Exchange>& exchange) {
    const char* status = queue->draining() ? "draining" : queue->stuck(steady_seconds()) ? "stuck" : "ok";
    net::HttpResponse response = json_response({{"status", status},
                                                {"version", std::string(build_info().version)},
                                                {"device", queue->backend().device()},
                                                {"queued", queue->waiting()},
                                                {"running", queue->running()},
                                                {"streams", live->running()}},
                                               std::string_view(status) == "ok" ? 200 : 503);
    response.headers.set("Cache-Control", "no-store");
    exchange->answer(std::move(response));
  }

  void show_metrics(const std::shared_ptr<net::Exchange>& exchange) {
    const auto jobs = [&](const char* state, std::int64_t count) {
      metrics.gauge("pom_jobs", "jobs, by state", {{"state", state}}).set(static_cast<double>(count));
    };
    jobs("queued", queue->waiting()), jobs("running", queue->running());
    metrics.gauge("pom_viewers", "of live streams").set(static_cast<double>(live->viewers()));
    metrics.gauge("pom_connections", "open ones").set(static_cast<double>(http->connections()));
    metrics.gauge("pom_evaluations", "of networks, since the start")
        .set(static_cast<double>(queue->evaluations()));
    metrics.gauge("pom_result_bytes", "of pictures in memory").set(static_cast<double>(pictures.bytes()));
    net::HttpResponse response;
    response.headers.set("Content-Type", std::string(net::Metrics::content_type));
    response.body = metrics.text();
    exchange->answer(std::move(response));
  }

  void ping_on() {
    http->post_after(milliseconds(15'000), [this] {
      api->ping();
      pictures.forget_old(steady_seconds());
      live->forget_old();
      ping_on();
    });
  }

  // On the server's thread, and waits for it.
  template <class Call>
  auto ask(Call&& call) {
    std::promise<decltype(call())> answer;
    http->post([&] { answer.set_value(call()); });
    return answer.get_future().get();
  }
};

Server::Server(ServeOptions options, const std::function<std::vector<std::unique_ptr<Backend>>()>& backends)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  Impl& impl = *impl_;
  impl.http = std::make_unique<net::HttpServer>(
      impl.http_options(),
      [&impl](std::shared_ptr<net::Exchange> exchange) { impl.handle(std::move(exchange)); });
  impl.backends = backends();
  impl.assemble();
  impl.measure_speed();
  impl.ask([&] {
    impl.live->resume();
    return true;
  });
  impl.ready.store(true, std::memory_order_release);
  impl.http->post([&impl] { impl.ping_on(); });
}

Server::~Server() {
  Impl& impl = *impl_;
  if (impl.http && impl.ready && !impl.drained)  // what runs sees it at its next evaluation
    impl.ask([&] {
      for (const JobPointer& job : impl.queue->all()) impl.queue->cancel(job, "server_end");
      return true;
    });
  if (impl.http) impl.http->stop(milliseconds(0));  // nobody asks for anything any more
  impl.workers.clear();
  impl.pool.reset();
  impl.router.reset(), impl.api.reset(), impl.live.reset(), impl.queue.reset();
  impl.http.reset();
}

std::vector<std::string> Server::addresses() const {
  return impl_->http->addresses();
}
std::uint16_t Server::port() const {
  return impl_->http->port();
}

void Server::drain(double seconds) {
  Impl& impl = *impl_;
  impl.ask([&] {
    impl.queue->drain();
    return true;
  });
  const auto end = std::chrono::steady_clock::now() + ms(seconds);
  while (std::chrono::steady_clock::now() < end && impl.ask([&] { return impl.queue->running() > 0; }))
    std::this_thread::sleep_for(milliseconds(20));
  impl.ask([&] {
    for (const JobPointer& job : impl.queue->all()) impl.queue->cancel(job, "draining");
    for (const Live::Pointer& stream : impl.live->all())
      if (impl.live->keeps_state())
        impl.live->suspend(*stream);
      else
        impl.live->end(*stream);
    impl.api->end();
    return true;
  });
  constexpr double state_seconds = 20;  // a block and a file
  const double last = steady_seconds() + state_seconds;
  while (impl.live->keeps_state() && steady_seconds() < last &&
         !impl.ask([&] { return impl.live->suspended(); }))
    std::this_thread::sleep_for(milliseconds(10));
  impl.http->stop_accepting();
  impl.http->stop(milliseconds(500));
  impl.drained = true;
}

}  // namespace pom::serve
