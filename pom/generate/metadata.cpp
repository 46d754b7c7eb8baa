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
  std::string name, sha256;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "name", .help = "of the model"}, name);
    visit(Field{.name = "sha256", .help = "of model.safetensors"}, sha256);
  }
};

// The `pom` chunk.
struct Chunk {
  std::int64_t format = 1;
  Request request;
  ModelPart model;
  std::string version;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "format", .help = "version of this chunk", .least = 1, .most = 1}, format);
    visit(Field{.name = "request", .help = "what made the picture"}, request);
    visit(Field{.name = "model", .help = "with which weights"}, model);
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

std::string parameters_of(const Origin& origin) {
  const Request& r = origin.request;
  std::string text = pom::detail::concat(
      r.class_name, "\nSteps: ", *r.steps, ", Sampler: ", sampler_label(*r.sampler),
      ", CFG scale: ", *r.cfg_scale, ", Seed: ", r.seed, ", Size: ", *r.width, "x", *r.height);
  if (*r.shift != 1) text += pom::detail::concat(", Shift: ", *r.shift);
  if (*r.eta != 0) text += pom::detail::concat(", Eta: ", *r.eta);
  return text + pom::detail::concat(", Model hash: ", origin.model_hash.substr(0, 10),
                                    ", Model: ", origin.model, ", Version: libpom ", origin.version);
}

void check_complete(const Request& r, std::string_view where) {
  Request copy = r;
  for (const BoundField& bound : bind_fields(copy))
    std::visit(
        [&]<class Pointer>(Pointer pointer) {
          if constexpr (requires { pointer->has_value(); })
            check(pointer->has_value() || bound.field.name == "omega", where, bound.field.name,
                  ": expected a value, and it is missing");
        },
        bound.value);
  check(!r.omega, where, "omega: expected cfg_scale in its place, got \"", shown(r.omega.value_or("")), "\"");
  check(r.count == 1 && r.seed >= 0, where, "count, seed: expected those of one picture, got ", r.count,
        " and ", r.seed);
}

void check_hash(const std::string& hash, std::string_view where) {
  const bool hexadecimal =
      hash.size() == 64 && hash.find_first_not_of("0123456789abcdef") == std::string::npos;
  check(hexadecimal, where, "expected 64 hexadecimal digits, got \"", shown(hash, 70), "\"");
}

}  // namespace

std::vector<io::TextEntry> metadata_of(const Origin& origin) {
  check_complete(origin.request, "metadata: request.");
  check_hash(origin.model_hash, "metadata: model hash: ");
  Chunk chunk{.request = origin.request,
              .model = {origin.model, origin.model_hash},
              .version = origin.version.empty() ? std::string(build_info().version) : origin.version};
  if (*origin.request.shift == 1) chunk.request.shift.reset();  // the same text as before there was one
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
          ": expected the text \"pom\" that libpom writes, got only \"parameters\": another program made "
          "this picture, "
          "or rewrote it");
    fail(source,
         ": expected the text \"pom\" that libpom writes, got a picture without it: another program made it, "
         "or one that edited it took the text away");
  }
  const std::string where = pom::detail::concat(source, ": pom");
  Chunk chunk;
  const std::set<std::string> given = io::read_json(own->text, chunk, where);
  for (const char* needed :
       {"format", "request", "request.class", "request.seed", "model.name", "model.sha256", "version"})
    check(given.contains(needed), where, ": ", needed, ": expected this field, and it is missing");
  fill_shift(chunk.request);
  check_complete(chunk.request, where + ": request.");
  check_hash(chunk.model.sha256, where + ": model.sha256: ");
  return {chunk.request, chunk.model.name, chunk.model.sha256, chunk.version};
}

Origin read_origin(const std::filesystem::path& picture) {
  return origin_of(io::read_png_text(picture), picture.string());
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
