#include "pom/generate/video_stream.h"

#include <charconv>
#include <optional>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/diffusion/noise.h"
#include "pom/generate/tensor_file.h"

namespace pom::generate {
namespace {

constexpr const char* format_key = "format";
constexpr const char* format = "pom stream 1";
constexpr const char* seeds_key = "seeds";
constexpr const char* text_encoder_key = "text encoder";
const std::string beside_prefix = "beside.";  // of the caller's texts and tensors

std::string seeds_text(const std::vector<std::uint64_t>& seeds) {
  std::string text;
  for (const std::uint64_t seed : seeds) text.append(text.empty() ? "" : " ").append(std::to_string(seed));
  return text;
}

// Numbers with a space between them; anything else is nothing.
std::optional<std::vector<std::uint64_t>> seeds_of(const std::string& text) {
  std::vector<std::uint64_t> seeds;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (!seeds.empty() && *at++ != ' ') return {};
    const auto [stop, error] = std::from_chars(at, end, seeds.emplace_back());
    if (error != std::errc()) return {};
    at = stop;
  }
  return seeds;
}

// Before anything is read, as a file may claim any number of tokens.
void check_text(const io::safetensors::Header& header, std::int64_t most, const std::string& where) {
  const io::safetensors::TensorInfo* text = header.find("text");
  if (text == nullptr || text->shape.size() != 3) return;  // which the network refuses in its own words
  check(text->shape[1] <= most, where, ": text: expected at most ", most,
        " tokens, as many as the text encoder gives, got ", text->shape[1]);
}

// "3 to 36": the evaluations of a block that are guided, which are neighbours.
std::string guided_text(const std::vector<models::Evaluation>& evaluations) {
  std::ptrdiff_t first = -1, last = -1;
  for (std::size_t i = 0; i < evaluations.size(); ++i)
    if (evaluations[i].both) {
      last = static_cast<std::ptrdiff_t>(i);
      if (first < 0) first = last;
    }
  return first < 0 ? "none" : detail::concat(first, " to ", last);
}

}  // namespace

VideoStream::VideoStream(models::Denoiser& network, ClipSampling sampling, StreamModel model)
    : network_(&network), sampling_(std::move(sampling)), model_(std::move(model)) {
  check(!sampling_.seeds.empty(), "VideoStream: seeds: expected at least one clip, got none");
  sampling_.sampler = diffusion::canonical_sampler(sampling_.sampler);
  for (const double t : diffusion::evaluation_times(sampling_.sampler, sampling_.options))
    evaluations_.push_back({t, sampling_.guidance.acts_at(t)});
  network_->plan({.batch = std::ssize(sampling_.seeds),
                  .height = sampling_.height,
                  .width = sampling_.width,
                  .evaluations = evaluations_});
}

void VideoStream::tell(const at::Tensor& text, const at::Tensor& mask) {
  network_->tell({.text = text, .mask = mask});
}

at::Tensor VideoStream::next_blocks(std::int64_t blocks, const diffusion::OnStep& on_step) {
  const at::NoGradGuard no_gradients;
  check(blocks >= 1, "VideoStream: blocks: expected at least one, got ", blocks);
  const models::NetworkConfig& config = network_->config();
  const std::int64_t B = std::ssize(sampling_.seeds), pt = config.patch_time;
  at::Tensor x = at::empty({B, config.channels, blocks * pt, sampling_.height, sampling_.width},
                           at::TensorOptions(network_->device()).dtype(at::kFloat));
  // Every block is drawn with the numbers that are its own.
  const auto each_block = [&](at::Tensor& clips, auto&& draw) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      at::Tensor one = clips.narrow(2, b * pt, pt);
      draw(one, (block() + b) * (one.numel() / B));
    }
  };
  each_block(
      x, [&](at::Tensor& one, std::int64_t first) { diffusion::fill_latents(one, sampling_.seeds, first); });
  const auto step_noise = [&](at::Tensor& out, std::uint32_t step) {
    each_block(out, [&](at::Tensor& one, std::int64_t first) {
      diffusion::fill_step_noise(one, sampling_.seeds, step, first);
    });
  };
  std::size_t next = 0;
  const auto answers = [&](const at::Tensor& noisy, double t, bool both) {
    check(next < evaluations_.size() && evaluations_[next].t == t && evaluations_[next].both == both,
          "VideoStream: evaluation ", next, ": expected what was planned, got time ", t);
    return (*network_)(noisy, static_cast<std::int64_t>(next++));
  };
  const at::Tensor made = diffusion::sample(diffusion::guide(answers, sampling_.guidance), x, sampling_.path,
                                            sampling_.sampler, sampling_.options, step_noise, on_step);
  network_->advance();
  return made;
}

std::vector<std::pair<std::string, std::string>> VideoStream::fingerprint() const {
  const diffusion::SamplerOptions& o = sampling_.options;
  std::vector<std::pair<std::string, std::string>> all = {
      {"model", model_.weights},
      {"dtype", detail::concat(network_->dtype())},
      {"sampler", sampling_.sampler},
      {"steps", std::to_string(o.steps)},
      {"eta", number_text(o.eta)},
      {"clip", o.clamp ? number_text(*o.clamp) : "none"},
      {"times", detail::concat(number_text(o.t_start), " to ", number_text(o.t_end),
                               o.shift != 1 ? ", shift " + number_text(o.shift) : "")},
      {"path", detail::concat(sampling_.path.name(), " ", sampling_.path.variance_name())},
      {"guided evaluations", guided_text(evaluations_)},
      {"latent size", detail::concat(sampling_.width, "x", sampling_.height)},
      {"clips", std::to_string(sampling_.seeds.size())}};
  if (!model_.text_encoder.empty()) all.emplace_back(text_encoder_key, model_.text_encoder);
  return all;
}

void VideoStream::save(const std::filesystem::path& path, const Beside& beside) const {
  io::safetensors::Metadata metadata{{format_key, format}, {seeds_key, seeds_text(sampling_.seeds)}};
  for (const auto& each : fingerprint()) metadata.push_back(each);
  for (const auto& [key, text] : beside.notes) metadata.emplace_back(beside_prefix + key, text);
  std::map<std::string, at::Tensor> tensors = network_->state();
  for (const auto& [name, tensor] : beside.tensors) tensors[beside_prefix + name] = tensor;
  write_tensors(path, tensors, metadata);
}

Beside VideoStream::restore(const std::filesystem::path& path) {
  const io::safetensors::Reader reader(path);
  check_text(reader.header(), model_.text_limit, path.string());
  const TensorFile file = read_tensors(reader);
  const auto said = [&](const std::string& key) -> const std::string* {
    for (const auto& [name, text] : file.metadata)
      if (name == key) return &text;
    return nullptr;
  };
  const std::string where = path.string();
  const std::string* kind = said(format_key);
  check(kind != nullptr && *kind == format, where, ": expected the state of a stream, got another file");
  for (const auto& [key, ours] : fingerprint()) {
    const std::string* theirs = said(key);
    if (theirs == nullptr && key == text_encoder_key) continue;
    check(theirs != nullptr && *theirs == ours, where, ": ", key, ": the state was made with ",
          theirs ? detail::concat('"', shown(*theirs), '"') : "nothing", ", and cannot go on with \"", ours,
          "\"");
  }
  const std::string* numbers = said(seeds_key);
  check(numbers != nullptr, where, ": seeds: expected ", sampling_.seeds.size(), ", got none");
  std::optional<std::vector<std::uint64_t>> seeds = seeds_of(*numbers);
  check(seeds.has_value(), where, ": seeds: expected numbers below 2^64 with spaces between them, got \"",
        shown(*numbers), "\"");
  check(seeds->size() == sampling_.seeds.size(), where, ": seeds: expected ", sampling_.seeds.size(),
        ", got ", seeds->size());
  try {
    network_->set_state(file.tensors);
  } catch (const Error& error) {
    fail(where, ": ", error.what());
  }
  sampling_.seeds = std::move(*seeds);
  Beside beside;
  for (const auto& [key, text] : file.metadata)
    if (key.starts_with(beside_prefix)) beside.notes[key.substr(beside_prefix.size())] = text;
  for (const auto& [name, tensor] : file.tensors)
    if (name.starts_with(beside_prefix)) beside.tensors[name.substr(beside_prefix.size())] = tensor;
  return beside;
}

}  // namespace pom::generate
