#include "pom/generate/stream_state.h"

#include <charconv>
#include <optional>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/generate/tensor_file.h"

namespace pom::generate {
namespace {

constexpr const char* format_key = "format";
constexpr const char* format = "pom stream 1";
constexpr const char* seeds_key = "seeds";
constexpr const char *text_encoder_key = "text encoder", *window_key = "window";
const std::string& notes_prefix = state_notes_prefix;

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

// What must be the same where a stream goes on.
std::vector<std::pair<std::string, std::string>> fingerprint(const BlockSampler& sampler,
                                                             const StreamModel& model) {
  const BatchSampling& sampling = sampler.sampling();
  const diffusion::SamplerOptions& o = sampling.options;
  std::vector<std::pair<std::string, std::string>> all = {
      {"model", model.weights},
      {"dtype", detail::concat(sampler.network().dtype())},
      {"sampler", sampling.sampler},
      {"steps", std::to_string(o.steps)},
      {"eta", number_text(o.eta)},
      {"clip", o.clamp ? number_text(*o.clamp) : "none"},
      {"times", detail::concat(number_text(o.t_start), " to ", number_text(o.t_end),
                               o.shift != 1 ? ", shift " + number_text(o.shift) : "")},
      {"path", detail::concat(sampling.path.name(), " ", sampling.path.variance_name())},
      {"guided evaluations", guided_text(sampler.evaluations())},
      {"latent size", detail::concat(sampling.width, "x", sampling.height)},
      {"clips", std::to_string(sampling.seeds.size())}};
  if (!model.text_encoder.empty()) all.emplace_back(text_encoder_key, model.text_encoder);
  all.emplace_back(window_key, std::to_string(sampler.network().config().window));
  return all;
}

}  // namespace

void check_stream_file(const io::safetensors::Header& header, const std::string& where) {
  const std::string* const kind = header.find_metadata(format_key);
  check(kind != nullptr && *kind == format, where, ": expected the state of a stream, got another file");
}

void save_stream(const std::filesystem::path& path, const BlockSampler& sampler, const StreamModel& model,
                 const StateNotes& notes) {
  io::safetensors::Metadata metadata{{format_key, format}, {seeds_key, seeds_text(sampler.sampling().seeds)}};
  for (const auto& each : fingerprint(sampler, model)) metadata.push_back(each);
  for (const auto& [key, text] : notes.texts) metadata.emplace_back(notes_prefix + key, text);
  std::map<std::string, at::Tensor> tensors = sampler.network().state();
  for (const auto& [name, tensor] : notes.tensors) tensors[notes_prefix + name] = tensor;
  write_tensors(path, tensors, metadata);
}

StateNotes restore_stream(const std::filesystem::path& path, BlockSampler& sampler,
                          const StreamModel& model) {
  const std::size_t clips = sampler.sampling().seeds.size();
  const io::safetensors::Reader reader(path);
  check_text(reader.header(), model.text_limit, path.string());
  const TensorFile file = read_tensors(reader);
  const auto said = [&](const std::string& key) -> const std::string* {
    for (const auto& [name, text] : file.metadata)
      if (name == key) return &text;
    return nullptr;
  };
  const std::string where = path.string();
  check_stream_file(reader.header(), where);
  for (const auto& [key, ours] : fingerprint(sampler, model)) {
    const std::string* theirs = said(key);
    if (theirs == nullptr && (key == text_encoder_key || key == window_key)) continue;  // not yet said then
    check(theirs != nullptr && *theirs == ours, where, ": ", key, ": the state was made with ",
          theirs ? detail::concat('"', shown(*theirs), '"') : "nothing", " and cannot continue with \"", ours,
          "\"");
  }
  const std::string* numbers = said(seeds_key);
  check(numbers != nullptr, where, ": seeds: expected ", clips, ", got none");
  std::optional<std::vector<std::uint64_t>> seeds = seeds_of(*numbers);
  check(seeds.has_value(), where, ": seeds: expected numbers below 2^64 with spaces between them, got \"",
        shown(*numbers), "\"");
  check(seeds->size() == clips, where, ": seeds: expected ", clips, ", got ", seeds->size());
  try {
    sampler.network().set_state(file.tensors);
  } catch (const Error& error) {
    fail(where, ": ", error.what());
  }
  sampler.set_seeds(std::move(*seeds));
  StateNotes notes;
  for (const auto& [key, text] : file.metadata)
    if (key.starts_with(notes_prefix)) notes.texts[key.substr(notes_prefix.size())] = text;
  for (const auto& [name, tensor] : file.tensors)
    if (name.starts_with(notes_prefix)) notes.tensors[name.substr(notes_prefix.size())] = tensor;
  return notes;
}

}  // namespace pom::generate
