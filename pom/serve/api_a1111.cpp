// /sdapi/v1: Automatic1111's interface, for SillyTavern and open-webui. What such clients send and what means
// nothing here is listed in the answer, not refused.
#include <algorithm>

#include "pom/base/build_info.h"
#include "pom/base/error.h"
#include "pom/generate/metadata.h"
#include "pom/net/base64.h"
#include "pom/serve/api.h"
#include "pom/serve/schema.h"

namespace pom::serve {
namespace {

using Exchange = Api::Exchange;
using net::Captures;

class A1111 {
 public:
  explicit A1111(Api& api) : api_(api) {}

  void txt2img(const Exchange& exchange) {
    const Json sent = parse_object(exchange->request());
    Json object = sent;
    const std::string client = api_.client_of(exchange);
    const std::size_t model = chosen(client, object);
    const ModelInfo& info = api_.model(model);
    Json request = Json::object();
    const std::string prompt = take_text(object, "prompt");
    if (prompt.empty()) throw ApiError(400, "invalid_value", "prompt: expected a text, got none", "prompt");
    request[info.text ? "prompt" : "class"] = prompt;
    if (info.text && info.clips) request["frames"] = 1;
    if (const std::string away = take_text(object, "negative_prompt"); !away.empty()) {
      if (info.text) request["negative_prompt"] = away;
      // Of classes there is one that guidance leads away from; whatever else it says means nothing here.
      else if (std::ranges::find(info.classes, away) != info.classes.end())
        request["negative_class"] = away;
      else
        object["negative_prompt"] = away;
    }
    const auto take = [&](const char* from, const char* to) {
      if (object.contains(from) && object[from].is_number() && object[from].get<double>() > 0)
        request[to] = object[from];
      object.erase(from);
    };
    if (object.contains("seed") && object["seed"].is_number_integer())
      request["seed"] = std::max<std::int64_t>(-1, object["seed"].get<std::int64_t>());
    object.erase("seed");
    take("steps", "steps"), take("cfg_scale", "cfg_scale"), take("width", "width"), take("height", "height");
    take("eta", "eta");
    const std::int64_t batch = take_integer(object, "batch_size", 1, 1, api_.queue().limits().items),
                       rounds = take_integer(object, "n_iter", 1, 1, api_.queue().limits().items);
    request["count"] = batch * rounds;
    std::string sampler = take_text(object, "sampler_name");
    if (sampler.empty()) sampler = take_text(object, "sampler_index");
    if (!sampler.empty() && sampler != "Automatic") request["sampler"] = sampler;
    const bool send_images = take_bool(object, "send_images", true);
    Json ignored = Json::array();
    for (const auto& [key, value] : object.items()) ignored.push_back(key);
    const JobPointer job = api_.queue().check(model, request_of(request, info), client);
    job->face = "a1111";
    Api::Watcher watcher;
    watcher.on_change = [this, exchange, sent, ignored, send_images](const ServedJob& changed) {
      if (!changed.over()) return;
      if (changed.state == JobState::failed)
        return exchange->answer(
            error_response(changed.error.value_or(ApiError(500, "internal", "the work failed"))));
      exchange->answer(made(changed, sent, ignored, send_images));
    };
    api_.submit(job, std::move(watcher), exchange);
  }

  void progress(const Exchange& exchange) {
    const JobPointer job = current(api_.client_of(exchange));
    Json json = {{"progress", 0.0},
                 {"eta_relative", 0.0},
                 {"state", state_json(job.get())},
                 {"current_image", nullptr},
                 {"textinfo", nullptr}};
    if (job) {
      json["progress"] = job->all_evaluations == 0 ? 0.0
                                                   : static_cast<double>(job->evaluations) /
                                                         static_cast<double>(job->all_evaluations);
      json["eta_relative"] = api_.queue().seconds_left(*job).value_or(0);
      json["textinfo"] = name_of(job->state);
    }
    exchange->answer(json_response(json));
  }

  void interrupt(const Exchange& exchange) {
    if (const std::string& body = exchange->request().body; !body.empty()) parse_object(body);
    for (const JobPointer& job : api_.queue().jobs_of(api_.client_of(exchange)))
      if (!job->over() && job->face == "a1111") api_.queue().cancel(job, "interrupted");
    exchange->answer(json_response(Json::object()));
  }

  void options(const Exchange& exchange) {
    const ModelInfo& model = api_.model(chosen(api_.client_of(exchange), Json::object()));
    exchange->answer(json_response({{"sd_model_checkpoint", title(model)},
                                    {"sd_checkpoint_hash", model.sha256},
                                    {"samples_format", "png"}}));
  }
  void set_options(const Exchange& exchange) {
    Json object = parse_object(exchange->request());
    chosen_[api_.client_of(exchange)] = chosen(api_.client_of(exchange), Json{{"override_settings", object}});
    exchange->answer(json_response(nullptr));
  }

  void models(const Exchange& exchange) {
    Json all = Json::array();
    for (const ModelInfo& model : api_.queue().backend().models())
      all.push_back({{"title", title(model)},
                     {"model_name", model.id},
                     {"hash", model.sha256.substr(0, 10)},
                     {"sha256", model.sha256},
                     {"filename", model.id + ".safetensors"},
                     {"config", nullptr}});
    exchange->answer(json_response(all));
  }
  void samplers(const Exchange& exchange) {
    Json all = Json::array();
    for (const std::string& name : generate::sampler_names())
      all.push_back({{"name", name}, {"aliases", Json::array()}, {"options", Json::object()}});
    exchange->answer(json_response(all));
  }
  void schedulers(const Exchange& exchange) {
    exchange->answer(json_response(Json::array({Json{{"name", "automatic"}, {"label", "Automatic"}}})));
  }
  void nothing(const Exchange& exchange) { exchange->answer(json_response(Json::array())); }

  // The text of a picture: no pixel is decoded.
  void png_info(const Exchange& exchange) {
    Json object = parse_object(exchange->request());
    std::string image = take_text(object, "image");
    if (const std::size_t comma = image.find(','); image.starts_with("data:") && comma != std::string::npos)
      image.erase(0, comma + 1);
    const std::optional<std::string> bytes = net::base64_decode(image);
    if (!bytes) throw ApiError(400, "invalid_value", "image: expected a PNG in base64", "image");
    Json items = Json::object();
    std::string info;
    std::size_t all = 0;
    constexpr std::size_t most_text = 256 << 10;
    try {
      for (const io::TextEntry& entry : io::parse_png_text(std::as_bytes(std::span(*bytes)), "image")) {
        all += entry.keyword.size() + entry.text.size();
        if (all > most_text)
          throw ApiError(400, "too_expensive",
                         detail::concat("image: expected at most ", most_text, " bytes of text, got more"),
                         "image");
        items[entry.keyword] = entry.text;
        if (entry.keyword == "parameters") info = entry.text;
      }
    } catch (const Error& error) {
      throw ApiError(400, "invalid_value", error.what(), "image");
    }
    exchange->answer(json_response({{"info", info}, {"items", items}, {"parameters", Json::object()}}));
  }

 private:
  static std::string title(const ModelInfo& model) {
    return model.id + " [" + model.sha256.substr(0, 10) + "]";
  }

  // "sd_model_checkpoint" of a request's settings, else what the client chose before, else the first.
  std::size_t chosen(const std::string& client, const Json& object) {
    if (const auto settings = object.find("override_settings");
        settings != object.end() && settings->is_object())
      if (const auto name = settings->find("sd_model_checkpoint");
          name != settings->end() && name->is_string()) {
        const std::string wanted = name->get<std::string>();
        return api_.model_named(wanted.substr(0, wanted.find(" [")));
      }
    if (const auto found = chosen_.find(client); found != chosen_.end()) return found->second;
    return 0;
  }

  JobPointer current(const std::string& client) {
    JobPointer found;  // the one that runs, else the first that waits
    for (const JobPointer& job : api_.queue().jobs_of(client))
      if (!job->over() && job->face == "a1111") found = job;
    return found;
  }

  Json state_json(const ServedJob* job) {
    const std::int64_t steps = job ? *job->items.front().request.steps : 0;
    const double share = job && job->all_evaluations > 0 ? static_cast<double>(job->evaluations) /
                                                               static_cast<double>(job->all_evaluations)
                                                         : 0;
    return {
        {"skipped", false},
        {"interrupted", false},
        {"stopping_generation", false},
        {"job", job ? job->id : std::string()},
        {"job_count", job ? 1 : 0},
        {"job_timestamp", job ? std::to_string(static_cast<std::int64_t>(job->created)) : std::string("0")},
        {"job_no", 0},
        {"sampling_step", static_cast<std::int64_t>(share * static_cast<double>(steps))},
        {"sampling_steps", steps}};
  }

  net::HttpResponse made(const ServedJob& job, const Json& sent, const Json& ignored, bool send_images) {
    Json images = Json::array(), seeds = Json::array(), prompts = Json::array(), texts = Json::array();
    const generate::Request& first = job.items.front().request;
    for (const JobItem& item : job.items) {
      if (!item.picture) continue;  // of a job that was interrupted
      if (send_images) images.push_back(net::base64_encode(*item.picture->bytes));
      seeds.push_back(item.request.own_seed()), prompts.push_back(item.request.subject());
      for (const io::TextEntry& entry : api_.queue().backend().text_of(job.model, item.request, 0))
        if (entry.keyword == "parameters") texts.push_back(entry.text);
    }
    const ModelInfo& model = api_.model(job.model);
    const Json info = {{"prompt", first.subject()},
                       {"all_prompts", prompts},
                       {"negative_prompt", first.negative_prompt.value_or("")},
                       {"seed", first.own_seed()},
                       {"all_seeds", seeds},
                       {"width", *first.width},
                       {"height", *first.height},
                       {"sampler_name", *first.sampler},
                       {"steps", *first.steps},
                       {"cfg_scale", *first.cfg_scale},
                       {"batch_size", job.items.size()},
                       {"sd_model_name", model.id},
                       {"sd_model_hash", model.sha256.substr(0, 10)},
                       {"infotexts", texts},
                       {"ignored", ignored},
                       {"version", detail::concat("libpom ", build_info().version)}};
    net::HttpResponse response =
        json_response({{"images", std::move(images)},
                       {"parameters", sent},
                       {"info", info.dump(-1, ' ', false, Json::error_handler_t::replace)}});
    response.headers.set("X-Pom-Job", job.id);
    return response;
  }

  Api& api_;
  std::map<std::string, std::size_t> chosen_;  // models, by client
};

}  // namespace

std::vector<net::Route> a1111_routes(Api& api) {
  const auto self = std::make_shared<A1111>(api);
  const auto route = [&](const char* method, const std::string& name,
                         void (A1111::*handler)(const Exchange&)) {
    return net::Route{
        method, "/sdapi/v1/" + name, "as Automatic1111 has it",
        api.guarded([self, handler](const Exchange& e, const Captures&) { ((*self).*handler)(e); })};
  };
  return {route("POST", "txt2img", &A1111::txt2img),
          route("GET", "progress", &A1111::progress),
          route("POST", "interrupt", &A1111::interrupt),
          route("POST", "skip", &A1111::interrupt),
          route("GET", "options", &A1111::options),
          route("POST", "options", &A1111::set_options),
          route("GET", "sd-models", &A1111::models),
          route("GET", "samplers", &A1111::samplers),
          route("GET", "schedulers", &A1111::schedulers),
          route("GET", "upscalers", &A1111::nothing),
          route("GET", "latent-upscale-modes", &A1111::nothing),
          route("GET", "sd-vae", &A1111::nothing),
          route("GET", "loras", &A1111::nothing),
          route("POST", "png-info", &A1111::png_info)};
}

}  // namespace pom::serve
