// /pom/v1: jobs, events, pictures, streams.
#include <algorithm>
#include <charconv>

#include "pom/base/error.h"
#include "pom/generate/metadata.h"
#include "pom/io/picture.h"
#include "pom/io/sha256.h"
#include "pom/net/base64.h"
#include "pom/net/sse.h"
#include "pom/serve/api.h"
#include "pom/serve/schema.h"

namespace pom::serve {

using Exchange = Api::Exchange;
using net::Captures;

// A friend of Api, for its channels.
class NativeApi {
 public:
  explicit NativeApi(Api& api) : api_(api) {}

  std::vector<net::Route> routes(const std::shared_ptr<NativeApi>& self) const {
    const auto route = [&](const char* method, std::string pattern, const char* name,
                           void (NativeApi::*handler)(const Exchange&, const Captures&)) {
      return net::Route{
          method, std::move(pattern), name,
          api_.guarded([self, handler](const Exchange& e, const Captures& c) { ((*self).*handler)(e, c); })};
    };
    const std::string v1 = "/pom/v1";
    return {
        route("GET", v1 + "/models", "models", &NativeApi::models),
        route("GET", v1 + "/schema", "what a request may say", &NativeApi::schema),
        route("POST", v1 + "/jobs", "ask for pictures or clips", &NativeApi::make),
        route("GET", v1 + "/jobs", "jobs of this client", &NativeApi::jobs),
        route("GET", v1 + "/jobs/{id}", "a job", &NativeApi::job),
        route("DELETE", v1 + "/jobs/{id}", "cancel a job", &NativeApi::cancel),
        route("GET", v1 + "/jobs/{id}/events", "events of a job", &NativeApi::job_events),
        route("GET", v1 + "/events", "events of all jobs and streams of this client", &NativeApi::events),
        route("POST", v1 + "/forecast", "what a job would take", &NativeApi::forecast),
        route("GET", v1 + "/pictures", "what was made, newest first", &NativeApi::pictures),
        route("GET", v1 + "/pictures/{file}", "a picture or clip", &NativeApi::picture),
        route("DELETE", v1 + "/pictures/{file}", "remove it", &NativeApi::remove),
        route("POST", v1 + "/reproduce", "make a picture again and compare", &NativeApi::reproduce),
        route("POST", v1 + "/streams", "begin a live stream", &NativeApi::open),
        route("GET", v1 + "/streams", "streams of this client", &NativeApi::streams),
        route("GET", v1 + "/streams/{id}", "a stream", &NativeApi::stream),
        route("DELETE", v1 + "/streams/{id}", "end a stream", &NativeApi::end),
        route("GET", v1 + "/streams/{id}/frames", "its frames as PNG", &NativeApi::frames),
        route("GET", v1 + "/streams/{id}/mjpeg", "its frames as JPEG, for <img>", &NativeApi::mjpeg),
        route("GET", v1 + "/streams/{id}/video.mp4", "it as fragmented MP4, from now on", &NativeApi::video),
        route("POST", v1 + "/streams/{id}/prompt", "change its prompt", &NativeApi::prompt),
        route("POST", v1 + "/streams/{id}/pause", "pause it, or go on", &NativeApi::pause),
        route("POST", v1 + "/streams/{id}/fork", "a new stream from here", &NativeApi::fork)};
  }

 private:
  void check_not_draining() const {
    if (api_.queue().draining())
      throw ApiError(503, "draining", "the server is going down and takes nothing more");
  }

  static void answer(const Exchange& exchange, const Json& json, int status = 200,
                     const std::string& job = {}) {
    net::HttpResponse response = json_response(json, status);
    response.headers.set("Cache-Control", "no-store");
    if (!job.empty()) response.headers.set("X-Pom-Job", job);
    exchange->answer(std::move(response));
  }

  void models(const Exchange& exchange, const Captures&) {
    Json all = Json::array();
    for (const ModelInfo& model : api_.queue().backend().models())
      all.push_back({{"id", model.id},
                     {"makes", model.clips ? "clips" : "images"},
                     {"reads", model.text ? "text" : "classes"},
                     {"size", {model.width, model.height}},
                     {"classes", model.classes},
                     {"class_count", model.class_count},
                     {"frames", model.frames},
                     {"fps", model.fps},
                     {"block_frames", model.block_frames},
                     {"streams", model.streams},
                     {"sha256", model.sha256},
                     {"examples", model.examples}});
    answer(exchange, {{"models", std::move(all)}});
  }

  void schema(const Exchange& exchange, const Captures&) {
    const net::HttpRequest& request = exchange->request();
    const std::size_t model = api_.model_named(std::string(request.query_value("model").value_or("")));
    const bool live = request.query_value("live").value_or("") == "1";
    answer(exchange, request_schema(api_.queue().backend(), model, api_.queue().limits(), live));
  }

  // What `object` asks for, complete.
  JobPointer checked(Json object, const std::string& client) {
    const std::size_t model = api_.model_named(take_text(object, "model"));
    const bool previews = take_bool(object, "previews", false);
    const ModelInfo& info = api_.model(model);
    const char* needed = info.text ? "prompt" : "class";
    if (!object.contains(needed) || object[needed].is_null())
      throw ApiError(400, "invalid_value", detail::concat(needed, ": expected one, got none"), needed);
    JobPointer job = api_.queue().check(model, request_of(object, info), client);
    job->previews = previews;
    return job;
  }

  void make(const Exchange& exchange, const Captures&) {
    const net::HttpRequest& request = exchange->request();
    const std::string client = api_.client_of(exchange);
    const std::string key(request.headers.get("Idempotency-Key"));
    if (key.size() > 255) throw ApiError(400, "invalid_value", "Idempotency-Key: expected at most 255 bytes");
    io::Sha256 hash;
    hash.update(request.body);
    const std::string body = hash.hex();
    if (!key.empty())
      if (const auto found = sent_.find(client + "\n" + key); found != sent_.end())
        if (const JobPointer same = api_.queue().find(found->second.job)) {
          if (found->second.body != body)
            throw ApiError(409, "idempotency_conflict",
                           "Idempotency-Key: was sent with another request before");
          return answer(exchange, job_json(*same, api_.queue()), 202, same->id);
        }
    const JobPointer job = checked(parse_object(request), client);
    api_.submit(job, {}, nullptr, Api::fresh(request));
    if (!key.empty()) {
      if (sent_.size() >= 1024) sent_.erase(sent_.begin());
      sent_[client + "\n" + key] = {job->id, body};
    }
    answer(exchange, job_json(*job, api_.queue()), 202, job->id);
  }

  void forecast(const Exchange& exchange, const Captures&) {
    const JobPointer job = checked(parse_object(exchange->request()), api_.client_of(exchange));
    const double macs = job->macs * static_cast<double>(job->items.size());
    const std::optional<double> seconds = api_.queue().seconds_of(job->model, macs);
    answer(exchange, {{"seconds", seconds ? Json(*seconds) : Json(nullptr)},
                      {"evaluations", job->all_evaluations},
                      {"macs", macs},
                      {"memory", api_.queue().backend().memory(job->model, job->job, 1)},
                      {"items", job->items.size()}});
  }

  JobPointer job_of(const Exchange& exchange, const Captures& captures) {
    const JobPointer job = api_.queue().find(captures["id"]);
    if (!job || job->client != api_.client_of(exchange))
      throw ApiError(404, "not_found", "no job of this client has that id");
    return job;
  }

  void jobs(const Exchange& exchange, const Captures&) {
    answer(exchange, {{"jobs", jobs_json(api_.client_of(exchange))}});
  }
  void job(const Exchange& exchange, const Captures& captures) {
    const JobPointer job = job_of(exchange, captures);
    answer(exchange, job_json(*job, api_.queue()), 200, job->id);
  }
  void cancel(const Exchange& exchange, const Captures& captures) {
    const JobPointer job = job_of(exchange, captures);
    api_.queue().cancel(job, "cancelled");
    answer(exchange, job_json(*job, api_.queue()), 200, job->id);
  }

  Json jobs_json(const std::string& client) {
    Json all = Json::array();
    for (const JobPointer& job : api_.queue().jobs_of(client)) all.push_back(job_json(*job, api_.queue()));
    return all;
  }
  Json streams_json(const std::string& client) {
    api_.live().adopt(client);
    Json all = Json::array();
    for (const Live::Pointer& stream : api_.live().streams_of(client))
      all.push_back(api_.live().json(*stream));
    return all;
  }

  void events(const Exchange& exchange, const Captures&) {
    const std::string client = api_.client_of(exchange);
    const auto last = net::last_event_id(exchange->request());
    api_.channel_of(client).join(exchange->stream(200, net::sse_headers()), last, [&] {
      return Json{{"jobs", jobs_json(client)}, {"streams", streams_json(client)}}.dump(
          -1, ' ', false, Json::error_handler_t::replace);
    });
  }

  // Of one job: its state first, then what changes, until it is over.
  void job_events(const Exchange& exchange, const Captures& captures) {
    const JobPointer job = job_of(exchange, captures);
    const std::shared_ptr<net::BodyStream> body = exchange->stream(200, net::sse_headers());
    const auto send = [body](const char* event, const Json& json) {
      body->write(std::make_shared<const std::string>(
          net::sse_record(std::nullopt, event, json.dump(-1, ' ', false, Json::error_handler_t::replace))));
    };
    if (!job->over()) send("job", job_json(*job, api_.queue()));
    Api::Watcher watcher;
    watcher.on_change = [this, body, send](const ServedJob& changed) {
      send("job", job_json(changed, api_.queue()));
      if (changed.over()) body->end();
    };
    watcher.on_preview = [send](const ServedJob& of, std::int64_t item, std::int64_t step,
                                const net::Bytes& png) {
      send("preview", {{"job", of.id},
                       {"item", item},
                       {"step", step},
                       {"steps", *of.items.front().request.steps},
                       {"image", net::base64_encode(*png)}});
    };
    api_.watch(job, std::move(watcher), exchange);
  }

  // ---- pictures ----

  void pictures(const Exchange& exchange, const Captures&) {
    const net::HttpRequest& request = exchange->request();
    std::size_t limit = 50;
    if (const auto text = request.query_value("limit")) {
      const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), limit);
      if (error != std::errc() || end != text->data() + text->size() || limit < 1 || limit > 200)
        throw ApiError(400, "out_of_range", "limit: expected 1 to 200", "limit");
    }
    const Pictures::Page page =
        api_.pictures().list(api_.client_of(exchange), request.query_value("before").value_or(""), limit);
    Json all = Json::array();
    for (const PicturePointer& picture : page.pictures) all.push_back(picture_json(*picture));
    answer(exchange,
           {{"pictures", std::move(all)}, {"next", page.next.empty() ? Json(nullptr) : Json(page.next)}});
  }

  PicturePointer picture_of(const Exchange& exchange, std::string_view file) {
    const std::string_view id = file.substr(0, file.find('.'));
    const PicturePointer picture = is_id(id) ? api_.pictures().find(id) : nullptr;

    const bool right = picture && (file == id || file == picture->id + "." + picture->extension);
    if (!right || !api_.pictures().visible(*picture, api_.client_of(exchange)))
      throw ApiError(404, "not_found", "there is no such picture, or no more");
    return picture;
  }

  void picture(const Exchange& exchange, const Captures& captures) {
    api_.give_picture(exchange, picture_of(exchange, captures["file"]));
  }

  void remove(const Exchange& exchange, const Captures& captures) {
    api_.pictures().remove(picture_of(exchange, captures["file"])->id);
    net::HttpResponse response;
    response.status = 204;
    exchange->answer(std::move(response));
  }

  // A picture that was sent, or one that is here: its settings, then its pixels, and whether they come again.
  void reproduce(const Exchange& exchange, const Captures&) {
    const net::HttpRequest& request = exchange->request();
    std::string id;
    net::Bytes bytes;
    if (net::lowered(request.headers.get("Content-Type")).starts_with("image/png")) {
      bytes = std::make_shared<const std::string>(request.body);
    } else {
      Json object = parse_object(request);
      id = take_text(object, "picture");
      if (!object.empty())
        throw ApiError(400, "unknown_parameter", object.begin().key() + ": unknown field",
                       object.begin().key());
      const PicturePointer picture = picture_of(exchange, id);
      if (picture->extension != "png")
        throw ApiError(400, "not_supported", "picture: expected an image, got a clip", "picture");
      bytes = api_.pictures().read_file(*picture);
      if (!bytes) throw ApiError(404, "not_found", "the picture's file is gone");
    }
    const auto span = std::as_bytes(std::span(*bytes));
    generate::Origin origin;
    try {
      origin = generate::origin_of(io::parse_png_text(span, "picture"), "picture");
      generate::check_no_writing(origin.request, "picture");
    } catch (const Error& error) {
      throw ApiError(400, "invalid_value", error.what(), "picture");
    }
    if (!origin.request.init.empty() || !origin.request.continue_from.empty() || !origin.noise_hash.empty())
      throw ApiError(400, "not_supported", "picture: expected one that began with nothing but its seed",
                     "picture");
    const std::vector<ModelInfo>& models = api_.queue().backend().models();
    const auto model = std::ranges::find(models, origin.model_hash, &ModelInfo::sha256);
    if (model == models.end())
      throw ApiError(404, "model_not_found", "picture: none of the models here has made it", "picture");
    const JobPointer job = api_.queue().check(static_cast<std::size_t>(model - models.begin()),
                                              origin.request, api_.client_of(exchange));
    if (job->job.clip)
      throw ApiError(400, "not_supported", "picture: expected an image, got a frame of a clip", "picture");
    Reproduction& again = job->reproduces.emplace();
    again.picture = id;
    if (origin.batch > 0) job->batch = origin.batch, job->key.clear();
    try {
      again.expected = io::parse_png_image(span, "picture", api_.queue().limits().pixels);
    } catch (const Error& error) {
      throw ApiError(400, "invalid_value", error.what(), "picture");
    }
    job->keep = false;
    api_.submit(job, {}, nullptr, true);
    answer(exchange, job_json(*job, api_.queue()), 202, job->id);
  }

  // ---- streams ----

  Live::Pointer stream_of(const Exchange& exchange, const Captures& captures) {
    api_.live().adopt(api_.client_of(exchange));
    const Live::Pointer stream = api_.live().find(captures["id"]);
    if (!stream || stream->client != api_.client_of(exchange))
      throw ApiError(404, "not_found", "no stream of this client has that id");
    return stream;
  }

  void open(const Exchange& exchange, const Captures&) {
    Json object = parse_object(exchange->request());
    std::string name = take_text(object, "model");
    const std::vector<ModelInfo>& models = api_.queue().backend().models();
    if (name.empty())
      if (const auto found = std::ranges::find_if(models, &ModelInfo::streams); found != models.end())
        name = found->id;
    const std::size_t model = api_.model_named(name);
    if (!object.contains("prompt"))
      throw ApiError(400, "invalid_value", "prompt: expected one, got none", "prompt");
    for (const char* field : {"frames", "count", "prompt_at"})
      if (object.contains(field))
        throw ApiError(400, "unknown_parameter", detail::concat(field, ": means nothing to a stream"), field);
    check_not_draining();
    generate::Request request = request_of(object, api_.model(model));
    if (!request.steps)
      request.steps = std::min(*api_.queue().backend().defaults(model).steps, most_usual_live_steps);
    api_.queue().check_request(request);
    answer(exchange, api_.live().json(*api_.live().open(model, request, api_.client_of(exchange))), 201);
  }
  void streams(const Exchange& exchange, const Captures&) {
    answer(exchange, {{"streams", streams_json(api_.client_of(exchange))}});
  }
  void stream(const Exchange& exchange, const Captures& captures) {
    answer(exchange, api_.live().json(*stream_of(exchange, captures)));
  }
  void end(const Exchange& exchange, const Captures& captures) {
    const Live::Pointer stream = stream_of(exchange, captures);
    api_.live().end(*stream);
    answer(exchange, api_.live().json(*stream));
  }
  void frames(const Exchange& exchange, const Captures& captures) {
    api_.live().watch(stream_of(exchange, captures), exchange, FrameFormat::records);
  }
  void mjpeg(const Exchange& exchange, const Captures& captures) {
    api_.live().watch(stream_of(exchange, captures), exchange, FrameFormat::mjpeg);
  }
  void video(const Exchange& exchange, const Captures& captures) {
    std::int64_t scale = 1;
    if (const auto text = exchange->request().query_value("scale")) {
      const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), scale);
      if (error != std::errc() || end != text->data() + text->size() || scale < 1 || scale > 64)
        throw ApiError(400, "out_of_range", "scale: expected 1 to 64", "scale");
    }
    api_.live().watch(stream_of(exchange, captures), exchange, FrameFormat::video, scale);
  }
  void prompt(const Exchange& exchange, const Captures& captures) {
    const Live::Pointer stream = stream_of(exchange, captures);
    Json object = parse_object(exchange->request());
    if (!object.contains("prompt"))
      throw ApiError(400, "invalid_value", "prompt: expected one, got none", "prompt");
    const std::string text = take_text(object, "prompt");
    const StreamPrompt told = api_.live().tell(*stream, text);
    const std::int64_t block = told.frame / api_.model(stream->model).block_frames;
    answer(exchange, {{"number", told.number}, {"block", block}, {"frame", told.frame}});
  }
  void pause(const Exchange& exchange, const Captures& captures) {
    const Live::Pointer stream = stream_of(exchange, captures);
    Json object = parse_object(exchange->request());
    api_.live().pause(*stream, take_bool(object, "paused", true));
    answer(exchange, api_.live().json(*stream));
  }
  void fork(const Exchange& exchange, const Captures& captures) {
    check_not_draining();
    const Live::Pointer stream = stream_of(exchange, captures);
    Json object = exchange->request().body.empty() ? Json::object() : parse_object(exchange->request());
    const std::string prompt = take_text(object, "prompt");
    answer(exchange, api_.live().json(*api_.live().fork(*stream, api_.client_of(exchange), prompt)), 201);
  }

  struct Sent {
    std::string job, body;
  };
  Api& api_;
  std::map<std::string, Sent> sent_;  // by client and Idempotency-Key
};

std::vector<net::Route> native_routes(Api& api) {
  const auto self = std::make_shared<NativeApi>(api);
  return self->routes(self);
}

}  // namespace pom::serve
