#include "pom/serve/api.h"

#include <algorithm>

#include "pom/base/failpoint.h"
#include "pom/base/suggest.h"
#include "pom/net/base64.h"

namespace pom::serve {

Api::Api(Queue& queue, Live& live, Pictures& pictures, Pool& pool, net::Metrics& metrics, Post post,
         ClientOf client_of)
    : queue_(queue),
      live_(live),
      pictures_(pictures),
      pool_(pool),
      metrics_(metrics),
      post_(std::move(post)),
      client_of_(std::move(client_of)) {}

std::vector<net::Route> Api::routes() {
  std::vector<net::Route> all;
  for (std::vector<net::Route>& some :
       std::vector{native_routes(*this), openai_routes(*this), video_routes(*this), a1111_routes(*this)})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

std::size_t Api::model_named(const std::string& name) const {
  const std::vector<ModelInfo>& models = queue_.backend().models();
  if (name.empty()) return 0;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (models[i].id == name) return i;
    names.push_back(models[i].id);
  }
  throw ApiError(404, "model_not_found", "model: unknown model \"" + name + "\"" + suggestion(name, names),
                 "model");
}

bool Api::fresh(const net::HttpRequest& request) {
  return request.headers.get("Cache-Control").find("no-cache") != std::string_view::npos;
}

net::RouteHandler Api::guarded(std::function<void(const Exchange&, const net::Captures&)> handler) const {
  return [this, handler = std::move(handler)](Exchange exchange, const net::Captures& captures) {
    try {
      handler(exchange, captures);
    } catch (const ApiError& error) {
      metrics_.counter("pom_refused_total", "requests that were refused, by reason", {{"reason", error.code}})
          .add();
      exchange->answer(error_response(error));
    }
  };
}

void Api::submit(const JobPointer& job, Watcher watcher, const Exchange& exchange, bool fresh) {
  if (watcher.on_change || watcher.on_preview) watchers_[job->id][next_watcher_++] = std::move(watcher);
  try {
    queue_.submit(job, fresh);
  } catch (...) {
    watchers_.erase(job->id);
    throw;
  }
  if (exchange && !failpoint_is_set("serve.watch"))  // for a test that sees the difference
    exchange->on_gone([this, weak = std::weak_ptr(job)] {
      if (const JobPointer left = weak.lock()) queue_.cancel(left, "client_left");
    });
}

void Api::watch(const JobPointer& job, Watcher watcher, const Exchange& exchange) {
  if (job->over()) return watcher.on_change(*job);
  const std::uint64_t number = next_watcher_++;
  watchers_[job->id][number] = std::move(watcher);
  exchange->on_gone([this, id = job->id, number] {
    if (const auto found = watchers_.find(id); found != watchers_.end()) found->second.erase(number);
  });
}

void Api::give_picture(const Exchange& exchange, const PicturePointer& picture) {
  const auto give = [exchange, picture](const net::Bytes& bytes) {
    if (!bytes) return exchange->answer(error_response(404, "not_found", "the picture's file is gone"));
    net::HttpResponse response;
    response.headers.set("Content-Type", picture->type());
    response.headers.set("Cache-Control", "private, max-age=31536000, immutable");
    response.shared = bytes;
    exchange->answer(std::move(response));
  };
  if (picture->bytes) return give(picture->bytes);
  pool_.add([this, picture, give] {
    const net::Bytes bytes = pictures_.read_file(*picture);
    post_([give, bytes] { give(bytes); });
  });
}

net::EventChannel& Api::channel_of(const std::string& client) {
  std::unique_ptr<net::EventChannel>& channel = channels_[client];
  if (!channel)
    channel =
        std::make_unique<net::EventChannel>(64, static_cast<std::uint64_t>(now_seconds() * 1e3), "hello");
  return *channel;
}

void Api::job_changed(const ServedJob& job) {
  if (const auto found = watchers_.find(job.id); found != watchers_.end()) {
    const std::map<std::uint64_t, Watcher> watchers = found->second;
    if (job.over()) watchers_.erase(found);
    for (const auto& [number, watcher] : watchers)
      if (watcher.on_change) watcher.on_change(job);
  }
  if (job.over() && job.state == JobState::cancelled && job.error)
    metrics_
        .counter("pom_cancelled_total", "jobs that were cancelled, by reason", {{"reason", job.error->code}})
        .add();
  if (job.state == JobState::completed)
    metrics_.counter("pom_pictures_total", "pictures and clips that were made")
        .add(static_cast<double>(job.items.size()));
  const auto channel = channels_.find(job.client);
  if (channel == channels_.end()) {
    told_.erase(job.id);
    return;
  }
  // Ten times a second is enough of progress.
  double& told = told_[job.id];
  const double now = steady_seconds();
  const bool progress = job.state == JobState::running && job.evaluations > 0;
  if (progress && now - told < 0.1) return;
  told = now;
  if (job.over()) told_.erase(job.id);
  channel->second->publish("job", job_json(job, queue_).dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Api::preview(const ServedJob& job, std::int64_t item, std::int64_t step, const net::Bytes& png) {
  if (const auto found = watchers_.find(job.id); found != watchers_.end()) {
    const std::map<std::uint64_t, Watcher> watchers = found->second;
    for (const auto& [number, watcher] : watchers)
      if (watcher.on_preview) watcher.on_preview(job, item, step, png);
  }
  const auto channel = channels_.find(job.client);
  if (channel == channels_.end() || channel->second->readers() == 0) return;
  const Json json = {{"job", job.id},
                     {"item", item},
                     {"step", step},
                     {"steps", *job.items.front().request.steps},
                     {"image", net::base64_encode(*png)}};
  channel->second->publish("preview", json.dump());
}

void Api::stream_changed(const LiveStream& stream) {
  if (const auto channel = channels_.find(stream.client); channel != channels_.end())
    channel->second->publish("stream",
                             live_.json(stream).dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Api::ping() {
  for (auto& [client, channel] : channels_) channel->ping();
  std::erase_if(channels_, [](const auto& entry) { return entry.second->readers() == 0; });
}

void Api::end() {
  for (auto& [client, channel] : channels_) channel->end();
}

}  // namespace pom::serve
