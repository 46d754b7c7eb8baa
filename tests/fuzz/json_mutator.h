// Mutates JSON objects field by field, mostly: bytes alone seldom make another object of one. The
// fields are those of requests and of the routes, the values what somebody may send in their place.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "pom/generate/request.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace fuzz {

inline const std::vector<std::string>& fields_of_bodies() {
  static const std::vector<std::string> all = [] {
    pom::generate::Request request;
    std::vector<std::string> names = pom::field_names(request);
    for (const char* name :
         {"model", "previews", "n", "size", "stream", "partial_images", "output_format", "response_format",
          "output_compression", "num_inference_steps", "batch_size", "n_iter", "sampler_name", "send_images",
          "override_settings", "sd_model_checkpoint", "image", "picture", "paused"})
      names.emplace_back(name);
    return names;
  }();
  return all;
}

inline nlohmann::json some_value(std::minstd_rand& chance) {
  static const std::vector<nlohmann::json> all = {nullptr,
                                                  true,
                                                  false,
                                                  0,
                                                  1,
                                                  -1,
                                                  2,
                                                  3,
                                                  10,
                                                  11,
                                                  250,
                                                  251,
                                                  1024,
                                                  4096,
                                                  1e308,
                                                  0.5,
                                                  -0.0,
                                                  1.5,
                                                  "",
                                                  "a",
                                                  "0",
                                                  "star",
                                                  "inf",
                                                  "auto",
                                                  "clips",
                                                  "heun",
                                                  "fp32",
                                                  "32x32",
                                                  "4:a",
                                                  "0-9",
                                                  "a,b",
                                                  "-1",
                                                  {},
                                                  nlohmann::json::array(),
                                                  {1, 2},
                                                  {"a"},
                                                  {{"a", 1}},
                                                  {{"sd_model_checkpoint", 1}},
                                                  9007199254740991,
                                                  9007199254740992,
                                                  18446744073709551615u,
                                                  std::string(3000, 'x'),
                                                  "data:image/png;base64,iVBORw0KGgo="};
  // Limits, and the numbers beside them.
  static const std::vector<std::int64_t> limits = {0, 3, 10, 64, 100, 250, 255, 512, 1024, 2000, 10'000};
  if (chance() % 3 == 0)
    return limits[chance() % limits.size()] + static_cast<std::int64_t>(chance() % 3) - 1;
  return all[chance() % all.size()];
}

}  // namespace fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  std::minstd_rand chance(seed + 1);
  nlohmann::json object = nlohmann::json::parse(data, data + size, nullptr, false);
  if (chance() % 8 == 0) return LLVMFuzzerMutate(data, size, most);
  // A good one, from time to time: most of what was kept is refused early.
  static const std::vector<nlohmann::json> good = {
      {{"class", "star"}}, {{"prompt", "star"}}, {{"model", "clips"}, {"prompt", "a star"}}};
  if (chance() % 3 == 0 || !object.is_object()) object = good[chance() % good.size()];
  const std::vector<std::string>& fields = fuzz::fields_of_bodies();
  for (unsigned changes = 1 + chance() % 3; changes > 0; --changes) {
    if (chance() % 4 == 0 && object.size() > 1)
      object.erase(std::next(object.begin(), static_cast<int>(chance() % object.size())).key());
    else
      object[fields[chance() % fields.size()]] = fuzz::some_value(chance);
  }
  const std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}
