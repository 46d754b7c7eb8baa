// /v1/videos: OpenAI's videos, a thin face over the jobs of the one queue. A video is a job for one clip,
// called "video_" and its id.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/jpeg.h"
#include "pom/io/sheet.h"
#include "pom/net/multipart.h"
#include "pom/serve/api.h"
#include "pom/serve/clip_file.h"
#include "pom/serve/openai_fields.h"
#include "pom/serve/schema.h"

namespace pom::serve {
namespace {

using Exchange = Api::Exchange;
using net::Captures;

constexpr std::string_view prefix = "video_";
constexpr const char* face = "videos";

const char* status_of(const ServedJob& job) {
  switch (job.state) {
    case JobState::queued:
      return "queued";
    case JobState::running:
      return "in_progress";
    case JobState::completed:
      return "completed";
    default:
      return "failed";
  }
}

Json video_json(const ServedJob& job, Api& api) {
  const generate::Request& r = job.items.front().request;
  const PicturePointer& picture = job.items.front().picture;
  const auto time = [](std::optional<double> seconds) {
    return seconds && *seconds > 0 ? Json(static_cast<std::int64_t>(*seconds)) : Json(nullptr);
  };
  const bool made = job.state == JobState::completed;
  Json json = {{"id", std::string(prefix) + job.id},
               {"object", "video"},
               {"model", api.model(job.model).id},
               {"status", status_of(job)},
               {"progress", 100 * job.evaluations / std::max<std::int64_t>(1, job.all_evaluations)},
               {"created_at", static_cast<std::int64_t>(job.created)},
               {"completed_at", made ? time(job.finished) : Json(nullptr)},
               {"expires_at", made && picture ? time(api.pictures().expires(*picture)) : Json(nullptr)},
               {"prompt", r.subject()},
               {"size", detail::concat(*r.width, "x", *r.height)},
               {"seconds", detail::concat(static_cast<double>(job.job.frames) / job.job.fps)},
               {"remixed_from_video_id", nullptr},
               {"error", nullptr},
               {"seed", r.own_seed()},
               {"frames", job.job.frames},
               {"fps", job.job.fps}};
  if (job.error) json["error"] = {{"code", job.error->code}, {"message", job.error->message}};
  return json;
}

// "4" or 4: frames of so many seconds. Whoever wants frames says frames.
void take_seconds(Json& object, const ModelInfo& model) {
  const auto found = object.find("seconds");
  if (found == object.end()) return;
  const Json said = *found;
  object.erase("seconds");
  if (object.contains("frames"))
    throw ApiError(400, "invalid_value", "seconds: says the same as frames, and both are given", "seconds");
  const std::string text = said.is_string() ? said.get<std::string>() : said.dump();
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  constexpr double most = 1e6;
  if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0) || seconds > most)
    throw ApiError(400, "invalid_value",
                   "seconds: expected a number above 0, such as \"4\", got " + shown(said.dump()), "seconds");
  const auto fps = object.find("fps");
  const double rate = fps != object.end() && fps->is_number() ? fps->get<double>() : model.fps;
  object["frames"] = std::max<std::int64_t>(1, std::llround(seconds * std::clamp(rate, 0.0, 1000.0)));
}

// The first frame, or a sheet of some that are spread evenly. Nothing where nobody waits for it any more.
std::vector<std::byte> still_of(const ClipFile& file, const Picture& picture, bool sheet,
                                const std::function<bool()>& stop) {
  constexpr std::int64_t most_frames = 64, most_pixels = std::int64_t{1} << 24;
  const std::int64_t pixels =
      std::max<std::int64_t>(1, picture.request.width.value_or(1) * picture.request.height.value_or(1));
  const std::int64_t most = sheet ? std::clamp<std::int64_t>(most_pixels / pixels, 1, most_frames) : 1;
  const std::int64_t every = std::max<std::int64_t>(1, (picture.frames + most - 1) / most);
  const std::vector<io::Image> frames = clip_frames(file, every, most, stop);
  if (frames.empty()) return {};
  constexpr int quality = 92;
  io::SheetOptions options;
  options.scale = 1;
  return io::encode_jpeg(sheet ? io::make_sheet(frames, options) : io::to_rgb8(frames.front()), quality);
}

class Videos {
 public:
  explicit Videos(Api& api) : api_(api) {}

  void create(const Exchange& exchange) {
    const net::HttpRequest& request = exchange->request();
    Json object = net::is_form(request) ? form_object(request) : parse_object(request);
    const std::size_t model = model_of(take_text(object, "model"));
    const ModelInfo& info = api_.model(model);
    drop_nulls(object);
    rename_aliases(object);
    if (object.contains("input_reference"))
      throw ApiError(400, "not_supported",
                     "input_reference: expected none: none of the models here begins with a picture",
                     "input_reference");
    take_size(object);
    take_seconds(object, info);
    take_integer(object, "count", 1, 1, 1);
    if (!object.contains("prompt") || !object["prompt"].is_string())
      throw ApiError(400, "invalid_value", "prompt: expected a text, got none", "prompt");
    const JobPointer job = api_.queue().check(model, request_of(object, info), api_.client_of(exchange));
    if (!job->job.clip)
      throw ApiError(400, "out_of_range", "seconds: expected two frames at least, got one", "seconds");
    job->face = face;
    api_.submit(job, {}, nullptr, Api::fresh(request));
    answer(exchange, *job);
  }

  void retrieve(const Exchange& exchange, const Captures& captures) {
    answer(exchange, *video_of(exchange, captures));
  }

  void list(const Exchange& exchange) {
    const net::HttpRequest& request = exchange->request();
    const std::string order(request.query_value("order").value_or("desc"));
    if (order != "asc" && order != "desc")
      throw ApiError(400, "invalid_value", "order: expected asc or desc, got " + shown(order), "order");
    std::size_t limit = 20;
    if (const auto text = request.query_value("limit")) {
      const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), limit);
      if (error != std::errc() || end != text->data() + text->size() || limit < 1 || limit > 100)
        throw ApiError(400, "out_of_range", "limit: expected 1 to 100", "limit");
    }
    std::vector<JobPointer> videos = api_.queue().jobs_of(api_.client_of(exchange));  // newest first
    std::erase_if(videos, [](const JobPointer& job) { return job->face != face; });
    if (order == "asc") std::ranges::reverse(videos);
    if (const std::string after(request.query_value("after").value_or("")); !after.empty()) {
      const auto place = std::ranges::find_if(
          videos, [&](const JobPointer& job) { return std::string(prefix) + job->id == after; });
      if (place == videos.end())
        throw ApiError(400, "invalid_value", "after: expected the id of a video, got another", "after");
      videos.erase(videos.begin(), place + 1);
    }
    const bool more = videos.size() > limit;
    if (more) videos.resize(limit);
    Json data = Json::array();
    for (const JobPointer& job : videos) data.push_back(video_json(*job, api_));
    const Json none = nullptr;
    exchange->answer(json_response({{"object", "list"},
                                    {"first_id", data.empty() ? none : data.front()["id"]},
                                    {"last_id", data.empty() ? none : data.back()["id"]},
                                    {"has_more", more},
                                    {"data", data}}));
  }

  void remove(const Exchange& exchange, const Captures& captures) {
    const JobPointer job = video_of(exchange, captures);
    api_.queue().cancel(job, "cancelled");
    if (const PicturePointer& picture = job->items.front().picture) api_.pictures().remove(picture->id);
    api_.queue().forget(job);
    exchange->answer(json_response(
        {{"id", std::string(prefix) + job->id}, {"object", "video.deleted"}, {"deleted", true}}));
  }

  void content(const Exchange& exchange, const Captures& captures) {
    const JobPointer job = video_of(exchange, captures);
    const std::string variant(exchange->request().query_value("variant").value_or("video"));
    if (variant != "video" && variant != "thumbnail" && variant != "spritesheet")
      throw ApiError(400, "invalid_value",
                     "variant: expected video, thumbnail or spritesheet, got " + shown(variant), "variant");
    if (!job->over()) throw ApiError(400, "not_ready", "the video is not made yet");
    if (job->state != JobState::completed)
      throw ApiError(400, "failed", job->error ? job->error->message : "the video could not be made");
    const PicturePointer picture = api_.pictures().find(job->items.front().picture->id);
    if (!picture) throw ApiError(404, "expired", "the video's file is not kept any more");
    if (variant == "video") return api_.give_picture(exchange, picture);
    give_still(exchange, picture, variant == "spritesheet");
  }

 private:
  std::size_t model_of(std::string name) const {
    const std::vector<ModelInfo>& models = api_.queue().backend().models();
    if (name.starts_with("sora")) name.clear();  // a name of OpenAI's own means the first one here
    if (name.empty())
      if (const auto clips = std::ranges::find_if(models, &ModelInfo::clips); clips != models.end())
        return static_cast<std::size_t>(clips - models.begin());
    const std::size_t model = api_.model_named(name);
    if (!api_.model(model).clips)
      throw ApiError(400, "not_supported",
                     "model: expected one that makes clips, got " + api_.model(model).id, "model");
    return model;
  }

  JobPointer video_of(const Exchange& exchange, const Captures& captures) {
    const std::string_view id = captures["id"];
    const JobPointer job = id.starts_with(prefix) ? api_.queue().find(id.substr(prefix.size())) : nullptr;
    if (!job || job->face != face || job->client != api_.client_of(exchange))
      throw ApiError(404, "not_found", "no video of this client has that id");
    return job;
  }

  // Clients that poll are told when to come again.
  void answer(const Exchange& exchange, const ServedJob& job) {
    net::HttpResponse response = json_response(video_json(job, api_));
    response.headers.set("Cache-Control", "no-store");
    response.headers.set("X-Pom-Job", job.id);
    const double wait = std::clamp(1000 * api_.queue().seconds_left(job).value_or(0.5), 100.0, 1000.0);
    response.headers.set("openai-poll-after-ms", std::to_string(std::lround(wait)));
    exchange->answer(std::move(response));
  }

  // A frame of it, or some of them on a sheet, as JPEG. It is not of the queue: one at a time, so that the
  // threads that write everybody's files are never all at it.
  void give_still(const Exchange& exchange, const PicturePointer& picture, bool sheet) {
    if (io::clip_libraries().empty())
      throw ApiError(400, "not_supported", "variant: expected video: this server cannot read clips",
                     "variant");
    if (stills_->exchange(true)) {
      ApiError busy(503, "queue_full", "a still of another video is being made");
      busy.retry_after = 1;
      throw busy;
    }
    api_.pool().add([this, exchange, picture, sheet, stills = stills_] {
      net::HttpResponse response = still(exchange, *picture, sheet);
      stills->store(false);
      exchange->answer(std::move(response));
    });
  }

  net::HttpResponse still(const Exchange& exchange, const Picture& picture, bool sheet) const {
    try {
      const net::Bytes bytes = api_.pictures().read_file(picture);
      if (!bytes) return error_response(404, "expired", "the video's file is not kept any more");
      const std::vector<std::byte> jpeg =
          still_of({*bytes, picture.extension}, picture, sheet, [&] { return exchange->gone(); });
      if (jpeg.empty()) return error_response(500, "internal", "the still could not be made");
      net::HttpResponse response;
      response.headers.set("Content-Type", "image/jpeg");
      response.headers.set("Cache-Control", "private, max-age=31536000, immutable");
      response.shared = shared_bytes(jpeg);
      return response;
    } catch (const std::exception&) {
      return error_response(500, "internal", "the still could not be made");
    }
  }

  Api& api_;
  std::shared_ptr<std::atomic<bool>> stills_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

std::vector<net::Route> video_routes(Api& api) {
  const auto self = std::make_shared<Videos>(api);
  const auto never = [&api](const char* method, const char* pattern, const char* what) {
    return net::Route{method, pattern, "not supported", api.guarded([what](const Exchange&, const Captures&) {
                        throw ApiError(404, "not_supported",
                                       std::string(what) + ": none of the models here can do it");
                      })};
  };
  return {{"POST", "/v1/videos", "ask for a clip, as OpenAI's videos do",
           api.guarded([self](const Exchange& e, const Captures&) { self->create(e); })},
          {"GET", "/v1/videos", "clips of this client likewise",
           api.guarded([self](const Exchange& e, const Captures&) { self->list(e); })},
          {"GET", "/v1/videos/{id}", "one of them",
           api.guarded([self](const Exchange& e, const Captures& c) { self->retrieve(e, c); })},
          {"DELETE", "/v1/videos/{id}", "cancel and remove it",
           api.guarded([self](const Exchange& e, const Captures& c) { self->remove(e, c); })},
          {"GET", "/v1/videos/{id}/content", "its file, or a picture of it",
           api.guarded([self](const Exchange& e, const Captures& c) { self->content(e, c); })},
          never("POST", "/v1/videos/{id}/remix", "remix"),
          never("POST", "/v1/videos/edits", "edits"),
          never("POST", "/v1/videos/extensions", "extensions"),
          never("POST", "/v1/videos/characters", "characters")};
}

}  // namespace pom::serve
