// What all routes share: jobs that somebody waits for, events, who a client is, and how mistakes are
// answered.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pom/net/metrics.h"
#include "pom/net/router.h"
#include "pom/net/sse.h"
#include "pom/serve/live.h"
#include "pom/serve/queue.h"

namespace pom::serve {

class Api {
 public:
  using Exchange = std::shared_ptr<net::Exchange>;
  using ClientOf = std::function<std::string(const net::HttpRequest&)>;

  Api(Queue& queue, Live& live, Pictures& pictures, Pool& pool, net::Metrics& metrics, Post post,
      ClientOf client_of);

  std::vector<net::Route> routes();  // of all faces

  // What the queue and the streams tell.
  void job_changed(const ServedJob& job);
  void preview(const ServedJob& job, std::int64_t item, std::int64_t step, const net::Bytes& png);
  void stream_changed(const LiveStream& stream);
  void ping();  // every 15 seconds
  void end();   // of the server: whoever listens is told

  // For the faces.
  struct Watcher {
    std::function<void(const ServedJob&)> on_change = {};  // the last time when it is over
    std::function<void(const ServedJob&, std::int64_t item, std::int64_t step, const net::Bytes&)>
        on_preview = {};
  };
  Queue& queue() { return queue_; }
  Live& live() { return live_; }
  Pictures& pictures() { return pictures_; }
  Pool& pool() { return pool_; }
  const Post& post() const { return post_; }
  std::string client_of(const Exchange& exchange) const { return client_of_(exchange->request()); }
  // By name, the first where there is none; 404 model_not_found.
  std::size_t model_named(const std::string& name) const;
  const ModelInfo& model(std::size_t number) const { return queue_.backend().models().at(number); }
  // In line, and watched; cancelled when the client of the exchange goes away (nullptr: it goes on).
  void submit(const JobPointer& job, Watcher watcher, const Exchange& exchange, bool fresh = false);
  // Until the job is over, or the client of the exchange goes away.
  void watch(const JobPointer& job, Watcher watcher, const Exchange& exchange);
  // Its file, from memory or from the folder; 404 where it is gone.
  void give_picture(const Exchange& exchange, const PicturePointer& picture);
  static bool fresh(const net::HttpRequest& request);  // "Cache-Control: no-cache"
  // A handler whose ApiErrors are answers.
  net::RouteHandler guarded(std::function<void(const Exchange&, const net::Captures&)> handler) const;

 private:
  friend class NativeApi;
  net::EventChannel& channel_of(const std::string& client);

  Queue& queue_;
  Live& live_;
  Pictures& pictures_;
  Pool& pool_;
  net::Metrics& metrics_;
  Post post_;
  ClientOf client_of_;
  std::map<std::string, std::map<std::uint64_t, Watcher>> watchers_;    // by job
  std::map<std::string, std::unique_ptr<net::EventChannel>> channels_;  // by client
  std::uint64_t next_watcher_ = 0;
  std::map<std::string, double> told_;  // when, by job
};

std::vector<net::Route> native_routes(Api& api);
std::vector<net::Route> openai_routes(Api& api);
std::vector<net::Route> video_routes(Api& api);
std::vector<net::Route> a1111_routes(Api& api);

}  // namespace pom::serve
