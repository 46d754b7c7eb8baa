// What `pom doctor` finds out about a model folder.
#include <chrono>

#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include "cli/checks.h"
#include "cli/encoder_folder.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/codecs/words.h"
#include "pom/generate/engine.h"
#include "pom/generate/model_files.h"
#include "pom/generate/text_folder.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

std::string config_summary(const fs::path& folder) {
  const generate::ModelConfig config = generate::read_config(folder);
  const std::string what = config.network.video()
                               ? detail::concat("clips of ", config.sample.frames, " frames")
                               : detail::concat(config.network.classes, " classes");
  return detail::concat(config.network.variant.empty() ? config.network.kind : config.network.variant, ", ",
                        what, ", ", config.sample.size.at(0), "x", config.sample.size.at(1));
}

// The number of values.
std::int64_t check_finite(const models::Weights& weights, const std::string& before) {
  std::int64_t values = 0;
  for (const auto& [name, tensor] : weights) {
    check(at::isfinite(tensor).all().item<bool>(), before, name,
          ": expected finite values, got infinite ones or NaN");
    values += tensor.numel();
  }
  return values;
}

std::string weights_summary(const fs::path& folder) {
  const models::Weights weights = generate::open_model(folder).weights.take();
  const std::int64_t values = check_finite(weights, "");
  return detail::concat(weights.size(), " tensors, all there, ", grouped(values), " finite values");
}

std::string text_summary(const fs::path& folder) {
  const generate::ModelFiles files = generate::open_model(folder);
  if (files.encoder)
    return detail::concat("t5, ", files.encoder->width(), " wide, at most ", files.encoder->limit(),
                          " pieces");
  generate::open_text(*files.text, files.config);  // which compares it with the config
  const codecs::Words words = codecs::Words::open(generate::stored_text_config(*files.text), *files.text);
  const std::int64_t values = check_finite(words.weights(), codecs::text_folder + std::string(": "));
  return detail::concat(words.vocabulary().words().size(), " words, at most ", words.limit(), " pieces, ",
                        grouped(values), " finite values");
}

// One step of one block, whose frames are refused where they are not finite. The prompt has letters, which go
// through all of the text encoder.
std::string evaluation_summary(const fs::path& folder) {
  const auto start = std::chrono::steady_clock::now();
  generate::Engine engine(folder);
  generate::Request request;
  request.steps = 1;
  if (engine.config().network.video())
    request.prompt = {"a star"}, request.frames = std::to_string(engine.block_frames());
  else
    request.class_name = "0";
  const generate::Job job = engine.resolve(request);
  engine.images(job);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return detail::concat(job.clip ? detail::concat(job.frames, " frames") : std::string("an image"), " of ",
                        *job.first().width, "x", *job.first().height,
                        " in one step: ", seconds_text(seconds.count()), " from opening the folder");
}

}  // namespace

Check guarded(const std::string& subject, const std::string& fix, const std::function<std::string()>& work) {
  try {
    return {subject, State::ok, work()};
  } catch (const c10::Error& error) {
    return {subject, State::problem, error.what_without_backtrace(), fix};
  } catch (const std::exception& error) {
    return {subject, State::problem, error.what(), fix};
  }
}

std::vector<Check> check_model(const fs::path& folder) {
  std::vector<Check> checks = {guarded("model config", "mend config.json, or fetch the folder again",
                                       [&] { return config_summary(folder); })};
  if (checks.back().state == State::problem) return checks;
  checks.push_back(guarded("model weights",
                           "fetch model.safetensors again, or convert it for this config.json",
                           [&] { return weights_summary(folder); }));
  if (checks.back().state == State::problem) return checks;
  for (Check& check : check_encoders(folder)) {
    checks.push_back(std::move(check));
    if (checks.back().state == State::problem) return checks;
  }
  if (generate::read_config(folder).network.video()) {
    checks.push_back(guarded("text encoder", "fetch text_encoder/ again, or train the model again",
                             [&] { return text_summary(folder); }));
    if (checks.back().state == State::problem) return checks;
  }
  checks.push_back(guarded("model runs", "see the message; pom sample --dry-run tells what it needs",
                           [&] { return evaluation_summary(folder); }));
  return checks;
}

}  // namespace pom::cli
