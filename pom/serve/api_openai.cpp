// /v1: OpenAI's images, for programs that know them. All fields of a request may stand beside theirs.
#include <algorithm>
#include <array>

#include "pom/base/error.h"
#include "pom/io/jpeg.h"
#include "pom/net/base64.h"
#include "pom/serve/api.h"
#include "pom/serve/openai_fields.h"
#include "pom/serve/schema.h"

namespace pom::serve {
namespace {

using Exchange = Api::Exchange;

struct ImageOptions {
  std::string format = "png";
  int quality = 100;
  bool url = false;
  std::string revised, size;
};

void check_choice(const std::string& value, const char* field, std::initializer_list<const char*> choices) {
  if (value.empty()) return;
  std::string all;
  for (const char* choice : choices) {
    if (value == choice) return;
    all += (all.empty() ? "" : ", ") + std::string(choice);
  }
  throw ApiError(400, "invalid_value",
                 detail::concat(field, ": expected one of ", all, ", got \"", value, "\""), field);
}

// A prompt for a model of classes: one of its names, as the whole or as a word of it.
std::string class_in(const std::string& prompt, const ModelInfo& model) {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  const std::string text = net::lowered(prompt);
  if (!text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) return text;
  std::vector<std::string> found;
  for (const std::string& name : model.classes) {
    const std::string low = net::lowered(name);
    if (text == low) return name;
    const std::size_t place = text.find(low);
    if (place == std::string::npos) continue;
    const std::size_t end = place + low.size();
    if ((place == 0 || !is_letter(text[place - 1])) && (end == text.size() || !is_letter(text[end])))
      found.push_back(name);
  }
  if (found.size() == 1) return found.front();
  std::string names;
  for (const std::string& name : model.classes) names += (names.empty() ? "" : ", ") + name;
  throw ApiError(400, "invalid_value",
                 detail::concat("prompt: expected one class of ", names.empty() ? "numbers" : names, ", got ",
                                found.empty() ? "none of them" : "several"),
                 "prompt");
}

// png as it is; jpeg of its pixels. On the pool.
std::string file_of(const net::Bytes& png, const ImageOptions& options) {
  check(png != nullptr, "the picture's file is gone");
  if (options.format == "png") return *png;
  const io::Image image = io::parse_png_image(std::as_bytes(std::span(*png)));
  const std::vector<std::byte> bytes = io::encode_jpeg(io::to_rgb8(image), std::max(1, options.quality));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Json image_json(const JobItem& item, const std::string& file, const ImageOptions& options) {
  Json json;
  if (options.url)
    json["url"] = item.picture->url();
  else
    json["b64_json"] = net::base64_encode(file);
  if (!options.revised.empty()) json["revised_prompt"] = options.revised;
  json["seed"] = item.request.own_seed();
  json["request"] = Json::parse(generate::request_json(item.request));
  return json;
}

std::string size_text(const ServedJob& job) {
  return detail::concat(*job.items.front().request.width, "x", *job.items.front().request.height);
}

class OpenAi {
 public:
  explicit OpenAi(Api& api) : api_(api) {}

  void models(const Exchange& exchange) {
    Json all = Json::array();
    for (const ModelInfo& model : api_.queue().backend().models()) all.push_back(model_json(model));
    exchange->answer(json_response({{"object", "list"}, {"data", std::move(all)}}));
  }
  void model(const Exchange& exchange, const net::Captures& captures) {
    exchange->answer(json_response(model_json(api_.model(api_.model_named(std::string(captures["id"]))))));
  }

  void generate(const Exchange& exchange) {
    Json object = parse_object(exchange->request());
    std::string name = take_text(object, "model");
    if (name.starts_with("dall-e") || name.starts_with("gpt-image") || name.starts_with("chatgpt-image"))
      name.clear();
    const std::size_t model = api_.model_named(name);
    const ModelInfo& info = api_.model(model);
    ImageOptions options;
    take_size(object);
    options.format = take_text(object, "output_format", "png");
    if (options.format.empty()) options.format = "png";
    check_choice(options.format, "output_format", {"png", "jpeg"});
    options.quality = static_cast<int>(take_integer(object, "output_compression", 100, 0, 100));
    const std::string response = take_text(object, "response_format", "b64_json");
    check_choice(response, "response_format", {"b64_json", "url"});
    options.url = response == "url";
    check_choice(take_text(object, "quality"), "quality",
                 {"auto", "low", "medium", "high", "standard", "hd"});
    check_choice(take_text(object, "background"), "background", {"auto", "opaque"});
    check_choice(take_text(object, "moderation"), "moderation", {"auto", "low"});
    check_choice(take_text(object, "style"), "style", {"vivid", "natural"});
    take_text(object, "user");
    const bool stream = take_bool(object, "stream", false);
    const std::int64_t partial = take_integer(object, "partial_images", 0, 0, 3);
    if (object.contains("n") && object.contains("count"))
      throw ApiError(400, "invalid_value", "n: is another name of count, and both are given", "n");
    const std::int64_t count = take_integer(object, "n", 1, 1, api_.queue().limits().items);
    rename_aliases(object);
    drop_nulls(object);
    if (!object.contains("prompt") || !object["prompt"].is_string())
      throw ApiError(400, "invalid_value", "prompt: expected a text, got none", "prompt");
    if (!info.text) {
      const std::string prompt = take_text(object, "prompt");
      object["class"] = class_in(prompt, info);
      if (object["class"].get<std::string>() != prompt) options.revised = object["class"];
    } else if (info.clips && !object.contains("frames")) {
      object["frames"] = 1;
    }
    if (!object.contains("count")) object["count"] = count;
    const JobPointer job = api_.queue().check(model, request_of(object, info), api_.client_of(exchange));
    if (job->job.clip)
      throw ApiError(400, "not_supported", "frames: expected 1 for an image (clips: /v1/videos), got more",
                     "frames");
    options.size = size_text(*job);
    if (stream) return answer_in_events(exchange, job, options, partial);
    Api::Watcher watcher;
    watcher.on_change = [this, exchange, options](const ServedJob& changed) {
      if (!changed.over()) return;
      if (changed.state != JobState::completed)
        return exchange->answer(
            error_response(changed.error.value_or(ApiError(500, "internal", "the work failed"))));
      with_files(changed, options, [exchange, options, id = changed.id](Json data) {
        if (data.is_null())
          return exchange->answer(error_response(500, "internal", "the file could not be made"));
        net::HttpResponse response = json_response({{"created", static_cast<std::int64_t>(now_seconds())},
                                                    {"data", std::move(data)},
                                                    {"output_format", options.format},
                                                    {"size", options.size},
                                                    {"quality", "auto"},
                                                    {"background", "opaque"}});
        response.headers.set("X-Pom-Job", id);
        response.headers.set("Cache-Control", "no-store");
        exchange->answer(std::move(response));
      });
    };
    api_.submit(job, std::move(watcher), exchange, Api::fresh(exchange->request()));
  }

 private:
  static Json model_json(const ModelInfo& model) {
    return {{"id", model.id},
            {"object", "model"},
            {"created", 0},
            {"owned_by", "libpom"},
            {"kind", model.clips ? "clips" : "images"},
            {"size", detail::concat(model.width, "x", model.height)},
            {"classes", model.classes},
            {"sha256", model.sha256}};
  }

  // Files are made on the pool, `then` is called on the server's thread: with null where one could not be.
  void with_files(const ServedJob& job, const ImageOptions& options, std::function<void(Json)> then) {
    std::vector<JobItem> items = job.items;
    for (JobItem& item : items)  // a job that is over leaves the bytes to the gallery
      if (PicturePointer kept = api_.pictures().find(item.picture->id)) item.picture = std::move(kept);
    api_.pool().add([this, items = std::move(items), options, then = std::move(then)] {
      Json data = Json::array();
      try {
        for (const JobItem& item : items) {
          const net::Bytes png = options.url ? nullptr : api_.pictures().read_file(*item.picture);
          data.push_back(image_json(item, options.url ? std::string() : file_of(png, options), options));
        }
      } catch (const std::exception&) {
        data = nullptr;  // whoever waits is told so
      }
      api_.post()([then, data = std::move(data)]() mutable { then(std::move(data)); });
    });
  }

  void answer_in_events(const Exchange& exchange, const JobPointer& job, const ImageOptions& options,
                        std::int64_t partial) {
    job->previews = partial > 0;
    struct Sending {
      std::shared_ptr<net::BodyStream> body;
      std::int64_t previews = 0;
      std::vector<bool> given;
    };
    const auto sending = std::make_shared<Sending>();
    sending->given.resize(job->items.size());
    const auto send = [sending](const Json& json) {
      sending->body->write(std::make_shared<const std::string>(
          net::sse_record(std::nullopt, json.value("type", "error"), json.dump())));
    };
    const auto common = [options](const char* type) {
      return Json{{"type", type},           {"created_at", static_cast<std::int64_t>(now_seconds())},
                  {"size", options.size},   {"quality", "auto"},
                  {"background", "opaque"}, {"output_format", options.format}};
    };
    Api::Watcher watcher;
    watcher.on_preview = [sending, send, common, partial](const ServedJob& of, std::int64_t,
                                                          std::int64_t step, const net::Bytes& png) {
      // Evenly over the steps.
      const std::int64_t steps = *of.items.front().request.steps;
      if (!sending->body || sending->previews >= partial ||
          step * (partial + 1) < (sending->previews + 1) * steps)
        return;
      Json json = common("image_generation.partial_image");
      json["b64_json"] = net::base64_encode(*png);
      json["partial_image_index"] = sending->previews++;
      send(json);
    };
    watcher.on_change = [this, sending, send, common, options](const ServedJob& changed) {
      if (!sending->body) return;
      if (changed.over() && changed.state != JobState::completed) {
        const ApiError error = changed.error.value_or(ApiError(500, "internal", "the work failed"));
        send({{"error",
               {{"message", error.message},
                {"type", "server_error"},
                {"param", nullptr},
                {"code", error.code}}}});
        return sending->body->end();
      }
      if (!changed.over()) return;
      with_files(changed, options, [sending, send, common](Json data) {
        if (data.is_null()) return sending->body->abort();
        for (Json& item : data) {
          Json json = common("image_generation.completed");
          json.update(item);
          json["usage"] = {{"input_tokens", 0}, {"output_tokens", 0}, {"total_tokens", 0}};
          send(json);
        }
        sending->body->end();
      });
    };
    // A refusal is an answer with its status: the stream's head comes after it was taken.
    api_.submit(job, {}, exchange, Api::fresh(exchange->request()));
    net::Headers headers = net::sse_headers();
    headers.set("X-Pom-Job", job->id);
    sending->body = exchange->stream(200, std::move(headers));
    api_.watch(job, std::move(watcher), exchange);
  }

  Api& api_;
};

}  // namespace

std::vector<net::Route> openai_routes(Api& api) {
  const auto self = std::make_shared<OpenAi>(api);
  const auto not_yet = [](const char* what) {
    return [what](const Exchange&, const net::Captures&) {
      throw ApiError(404, "not_supported", std::string(what) + ": none of the models here can do it");
    };
  };
  return {{"GET", "/v1/models", "models, as OpenAI lists them",
           api.guarded([self](const Exchange& e, const net::Captures&) { self->models(e); })},
          {"GET", "/v1/models/{id}", "a model likewise",
           api.guarded([self](const Exchange& e, const net::Captures& c) { self->model(e, c); })},
          {"POST", "/v1/images/generations", "pictures, as OpenAI makes them",
           api.guarded([self](const Exchange& e, const net::Captures&) { self->generate(e); })},
          {"POST", "/v1/images/edits", "not supported", api.guarded(not_yet("edits"))},
          {"POST", "/v1/images/variations", "not supported", api.guarded(not_yet("variations"))}};
}

}  // namespace pom::serve
