#include "pom/generate/metadata.h"

#include <algorithm>
#include <map>

#include "pom/base/build_info.h"
#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/json_fields.h"

namespace pom::generate {
namespace {

constexpr const char* own_keyword = "pom";
constexpr const char* common_keyword = "parameters";

struct ModelPart {
  std::string name, sha256, text_encoder, vae;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "name", .help = "of the model"}, name);
    visit(Field{.name = "sha256", .help = "of model.safetensors"}, sha256);
    visit(Field{.name = "text_encoder_sha256", .help = "of its text encoder", .saved = !text_encoder.empty()},
          text_encoder);
    visit(Field{.name = "vae_sha256", .help = "of its autoencoder", .saved = !vae.empty()}, vae);
  }
};

// The `pom` chunk.
struct Chunk {
  std::int64_t format = 1;
  Request request;
  ModelPart model;
  std::string init, continued, noise_file, noise, version;
  std::int64_t noise_row = 0, batch = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    const bool given = !noise.empty();
    visit(Field{.name = "format", .help = "version of this chunk", .least = 1, .most = 1}, format);
    visit(Field{.name = "request", .help = "what made the image"}, request);
    visit(Field{.name = "model", .help = "with which weights"}, model);
    visit(Field{.name = "init_sha256", .help = "of what it began with", .saved = !init.empty()}, init);
    visit(Field{.name = "continue_sha256", .help = "of the state it continued", .saved = !continued.empty()},
          continued);
    visit(Field{.name = "noise_file", .help = "whose latents were its noise", .saved = given}, noise_file);
    visit(Field{.name = "noise_sha256", .help = "of that file", .saved = given}, noise);
    visit(Field{.name = "noise_row",
                .help = "which of its latents",
                .least = 0,
                .most = 1'000'000,
                .saved = given},
          noise_row);
    visit(Field{.name = "batch",
                .help = "items of the batch that it was made in",
                .least = 0,
                .most = 1024,
                .saved = batch > 0},
          batch);
    visit(Field{.name = "version", .help = "of libpom"}, version);
  }
};

// As the interfaces of others write the samplers' names.
std::string sampler_label(const std::string& name) {
  static const std::map<std::string, std::string> labels = {
      {"ddim", "DDIM"}, {"ddpm", "DDPM"}, {"dpm++2m", "DPM++ 2M"}, {"euler", "Euler"}, {"heun", "Heun"}};
  const auto found = labels.find(name);
  return found == labels.end() ? name : found->second;
}

// Prompts in the order of their frames.
std::string subject_text(const Request& r) {
  std::string text = r.subject();
  for (const std::string& change : r.prompt_at) {
    const std::size_t colon = change.find(':');
    if (colon != std::string::npos) text += (text.empty() ? "" : " | ") + change.substr(colon + 1);
  }
  return text;
}

std::string parameters_of(const Origin& origin) {
  const Request& r = origin.request;
  std::string text = subject_text(r);
  if (r.negative_prompt && !r.negative_prompt->empty()) text += "\nNegative prompt: " + *r.negative_prompt;
  if (r.negative_class) text += "\nNegative prompt: " + *r.negative_class;
  text += pom::detail::concat("\nSteps: ", *r.steps, ", Sampler: ", sampler_label(*r.sampler),
                              ", CFG scale: ", *r.cfg_scale, ", Seed: ", r.own_seed(), ", Size: ", *r.width,
                              "x", *r.height);
  if (r.frames && *r.frames != "1") text += ", Frames: " + *r.frames;
  if (r.strength) text += pom::detail::concat(", Denoising strength: ", *r.strength);
  if (*r.shift != 1) text += pom::detail::concat(", Shift: ", *r.shift);
  if (*r.eta != 0) text += pom::detail::concat(", Eta: ", *r.eta);
  text += ", Model hash: " + origin.model_hash.substr(0, 10);
  if (!origin.text_hash.empty()) text += ", Text encoder hash: " + origin.text_hash.substr(0, 10);
  return text + pom::detail::concat(", Model: ", origin.model, ", Version: libpom ", origin.version);
}

// What every model wants; the rest depends on the model, and is checked with it.
void check_complete(const Request& r, std::string_view where) {
  Request copy = r;
  for (const BoundField& bound : bind_fields(copy))
    std::visit(
        [&]<class Pointer>(Pointer pointer) {
          if constexpr (requires { pointer->has_value(); })
            check(pointer->has_value() || !bound.field.needs.empty() || bound.field.name == "omega" ||
                      bound.field.name == "strength",
                  where, bound.field.name, ": expected a value, and it is missing");
        },
        bound.value);
  check(!r.omega, where, "omega: expected cfg_scale in its place, got \"", shown(r.omega.value_or("")), "\"");
  check(r.class_name.has_value() != !r.prompt.empty(), where, "class, prompt: expected one of them, got ",
        r.class_name ? "both" : "none");
  check(r.count == 1 && r.seed.size() == 1 && r.own_seed() >= 0 && r.prompt.size() <= 1, where,
        "count, seed, prompt: expected those of one image or clip, got others");
}

void check_hash(const std::string& hash, std::string_view where) {
  const bool hexadecimal =
      hash.size() == 64 && hash.find_first_not_of("0123456789abcdef") == std::string::npos;
  check(hexadecimal, where, "expected 64 hexadecimal digits, got \"", shown(hash, 70), "\"");
}

}  // namespace

// Of a file or folder, without the way to it.
static std::string own_name(const std::filesystem::path& path) {
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

void forget_folders(Request& request) {
  request.init = own_name(request.init);
  request.continue_from = own_name(request.continue_from);
}

void check_no_writing(const Request& request, std::string_view where) {
  check(request.save_state.empty(), where,
        "save_state: expected nothing, as a file does not say where to write, got \"",
        shown(request.save_state), "\"");
}

std::vector<io::TextEntry> metadata_of(const Origin& origin) {
  check_complete(origin.request, "metadata: request.");
  check_hash(origin.model_hash, "metadata: model hash: ");
  Chunk chunk{.request = origin.request,
              .model = {origin.model, origin.model_hash, origin.text_hash, origin.codec_hash},
              .init = origin.init_hash,
              .continued = origin.continue_hash,
              .noise_file = own_name(origin.noise_file),
              .noise = origin.noise_hash,
              .version = origin.version.empty() ? std::string(build_info().version) : origin.version,
              .noise_row = origin.noise_row,
              .batch = origin.batch};
  if (*origin.request.shift == 1) chunk.request.shift.reset();  // the same text as before there was one
  forget_folders(chunk.request);
  Origin complete = origin;
  complete.version = chunk.version;
  return {{common_keyword, parameters_of(complete)}, {own_keyword, io::write_json(chunk)}};
}

void fill_shift(Request& request) {
  if (!request.shift) request.shift = 1;
}

Origin origin_of(const std::vector<io::TextEntry>& text, std::string_view source) {
  const auto find = [&](const char* keyword) {
    return std::ranges::find(text, keyword, &io::TextEntry::keyword);
  };
  const auto own = find(own_keyword);
  if (own == text.end()) {
    check(find(common_keyword) == text.end(), source,
          ": expected the text \"pom\" that libpom writes, got only \"parameters\": another program made it, "
          "or rewrote it");
    fail(source,
         ": expected the text \"pom\" that libpom writes, got a file without it: another program made it, "
         "or one that edited it took the text away");
  }
  const std::string where = pom::detail::concat(source, ": pom");
  Chunk chunk;
  const std::set<std::string> given = io::read_json(own->text, chunk, where);
  for (const char* needed : {"format", "request", "request.seed", "model.name", "model.sha256", "version"})
    check(given.contains(needed), where, ": missing field ", needed);
  fill_shift(chunk.request);
  check_no_writing(chunk.request, where + ": request.");
  check_complete(chunk.request, where + ": request.");
  check_hash(chunk.model.sha256, where + ": model.sha256: ");
  if (!chunk.noise.empty()) check_hash(chunk.noise, where + ": noise_sha256: ");
  return {.request = chunk.request,
          .model = chunk.model.name,
          .model_hash = chunk.model.sha256,
          .text_hash = chunk.model.text_encoder,
          .codec_hash = chunk.model.vae,
          .init_hash = chunk.init,
          .continue_hash = chunk.continued,
          .noise_file = chunk.noise_file,
          .noise_hash = chunk.noise,
          .noise_row = chunk.noise_row,
          .batch = chunk.batch,
          .version = chunk.version};
}

std::string request_json(const Request& request) {
  Request copy = request;
  return io::write_json(copy);
}

Request request_from_json(std::string_view json, std::string_view source) {
  Request request;
  io::read_json(json, request, source);
  return request;
}

}  // namespace pom::generate
