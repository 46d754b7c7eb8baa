// What sampling reads of others: config.json, text encoders and the files of streams. Each hostile file is
// refused, for its own reason.
#include "tests/hostile/judge.h"

#include <ATen/ATen.h>

#include "pom/codecs/word_pieces.h"
#include "pom/generate/folder.h"
#include "pom/generate/job.h"
#include "pom/generate/stream_state.h"
#include "pom/generate/text_folder.h"
#include "pom/io/safetensors.h"

namespace pom::hostile {
namespace {

namespace st = io::safetensors;

TEST(HostileConfig, EachIsRefusedForItsReason) {
  Table table("config");
  const Folder folder;
  const auto judge = [&](const std::string& name, std::string_view text) {
    put_bytes(folder.path() / generate::config_file, text);
    table.judge(name, folder.path(), [&] { generate::read_config(folder.path()); });
  };
  for (const fs::path& file : files_of("config")) judge(file.filename(), bytes_in(file));
  const std::string many(1'000'000, '1'), start = "{\"format\": 1, \"network\": {";
  judge("large_number.json", start + "\"dim\": " + many + "}}");
  judge("good_large_fraction.json", start + "}, \"sample\": {\"shift\": 0." + many + "}}");
  judge("large_name.json", start + "\"dim\": 50}, \"name\": \"" + std::string(10'000'000, 'n') + "\"}");
  judge("large_name_control.json", start + "}, \"name\": \"" + std::string(1'000'000, 'n') + "\\n\"}");
  judge("large_kind.json", start + "\"kind\": \"" + many + "\"}}");
  judge("large_variant.json", start + "\"variant\": \"" + many + "\"}}");
  judge("large_sampler.json", start + "}, \"sample\": {\"sampler\": \"" + many + "\"}}");
  judge("large_class.json", start + "\"classes\": 1}, \"classes\": [\"" + many + "\"]}");
  judge("large_class_spaces.json", start + "\"classes\": 1}, \"classes\": [\" " + many + "\"]}");
  judge("large_key.json", "{\"" + many + "\": 1}");
  judge("large_key_twice.json", "{\"" + many + "\": 1, \"" + many + "\": 1}");
  judge("large_text_for_number.json", start + "\"dim\": \"" + many + "\"}}");
  judge("large_word.json", "{\"format\": " + std::string(1'000'000, 'x') + "}");
  judge("large_text_open.json", "{\"name\": \"" + many);
  judge("large_depth.json", std::string(1'000'000, '['));
  judge("large_file.json", std::string((std::size_t{16} << 20) + 1, ' '));
  table.finish();
}

// The config that good_encoder.safetensors belongs to.
generate::ModelConfig clips_config() {
  generate::ModelConfig config;
  models::NetworkConfig& n = config.network;
  n.kind = "vdipom", n.dim = 8, n.depth = 1, n.patch = 2, n.patch_time = 1, n.channels = 3, n.classes = 1;
  n.text_width = 2, n.time_period = 8;
  config.text.width = 2, config.text.limit = 3, config.text.layers = 1;
  config.sample.size = {8, 8};
  return config;
}

TEST(HostileWords, EachIsRefusedForItsReason) {
  Table table("words");
  const Folder folder;
  const generate::ModelConfig config = clips_config();
  const fs::path place = folder.path() / codecs::text_folder / generate::weights_file;
  fs::create_directories(place.parent_path());
  const auto judge = [&](const std::string& name, const std::string& bytes) {
    put_bytes(place, bytes);
    table.judge(name, folder.path(), [&] {
      if (name.ends_with(".txt"))
        codecs::WordPieces::from_lines(bytes);
      else
        generate::open_text(io::safetensors::Reader(place), config);
    });
  };
  for (const fs::path& file : files_of("words")) judge(file.filename(), bytes_in(file));
  const std::string word(1'000'000, 'w');
  judge("large_word.txt", detail::concat(word, "!\n"));
  judge("large_word_twice.txt", detail::concat(word, "\n", word, "\n"));
  table.finish();
}

// ---- streams

using Tensors = std::map<std::string, at::Tensor>;

struct State {
  Tensors tensors;
  std::map<std::string, std::string> metadata;
};

class Streams : public testing::Test {
 protected:
  Streams()
      : config_(clips_config()), network_(models::Denoiser::make(config_.network, weights(config_.network))) {
    sampling_.height = 8, sampling_.width = 8, sampling_.seeds = {7};
    sampling_.options.steps = 1;
  }

  static models::Weights weights(const models::NetworkConfig& config) {
    models::Weights weights;
    for (const models::TensorSpec& spec : models::expected_tensors(config))
      weights[spec.name] = at::full(spec.shape, 0.01);
    return weights;
  }

  generate::BlockSampler stream() { return {*network_, sampling_}; }

  // A true state, after one block.
  State made() {
    generate::BlockSampler from = stream();
    from.tell({.text = at::zeros({1, 2, 2}), .mask = at::ones({1, 2}, at::kBool)});
    from.next();
    const fs::path path = folder_.path() / "made.safetensors";
    generate::save_stream(path, from, model_, {.texts = {{"prompt", "a star"}}});
    State state;
    const st::File file = st::File::open(path);
    for (const auto& [key, text] : *file.header().metadata()) state.metadata[key] = text;
    for (const st::TensorView& tensor : file.tensors()) {
      const auto dtype = tensor.dtype == st::Dtype::I64  ? at::kLong
                         : tensor.dtype == st::Dtype::U8 ? at::kByte
                                                         : at::kFloat;
      at::Tensor values = at::empty(at::IntArrayRef(tensor.shape.data(), tensor.shape.size()), dtype);
      std::memcpy(values.data_ptr(), tensor.data.data(), tensor.data.size());
      state.tensors[std::string(tensor.name)] = values;
    }
    return state;
  }

  fs::path write(const State& state) const {
    const fs::path path = folder_.path() / "state.safetensors";
    std::vector<at::Tensor> kept;
    std::vector<st::TensorView> views;
    for (const auto& [name, tensor] : state.tensors) {
      const st::Dtype dtype = tensor.scalar_type() == at::kLong   ? st::Dtype::I64
                              : tensor.scalar_type() == at::kByte ? st::Dtype::U8
                              : tensor.scalar_type() == at::kInt  ? st::Dtype::I32
                              : tensor.scalar_type() == at::kBool ? st::Dtype::BOOL
                                                                  : st::Dtype::F32;
      const at::Tensor& values = kept.emplace_back(tensor.contiguous());
      views.push_back({name,
                       dtype,
                       {values.sizes().data(), values.sizes().size()},
                       {static_cast<const std::byte*>(values.data_ptr()), values.nbytes()}});
    }
    st::write(path, views, st::Metadata(state.metadata.begin(), state.metadata.end()));
    return path;
  }

  Folder folder_;
  generate::ModelConfig config_;
  std::unique_ptr<models::Denoiser> network_;
  generate::BatchSampling sampling_;
  generate::StreamModel model_{"the model", "", 40};
};

// What is wrong with a state, by name.
using Damage = std::function<void(State&)>;

Damage without(const std::string& key) {
  return [key](State& s) { s.metadata.erase(key), s.tensors.erase(key); };
}
Damage said(const std::string& key, const std::string& text) {
  return [=](State& s) { s.metadata[key] = text; };
}
Damage tensor(const std::string& name, const at::Tensor& values) {
  return [=](State& s) { s.tensors[name] = values; };
}

std::map<std::string, Damage> damages() {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  return {{"good_state", [](State&) {}},
          {"state_no_format", without("format")},
          {"state_format_2", said("format", "pom stream 2")},
          {"state_no_model", without("model")},
          {"state_another_model", said("model", "another")},
          {"state_another_dtype", said("dtype", "BFloat16")},
          {"state_another_sampler", said("sampler", "heun")},
          {"state_another_sampler_escape", said("sampler", "\x1b[31m")},
          {"state_another_sampler_long", said("sampler", std::string(100'000, 's'))},
          {"state_another_size", said("latent size", "9x9")},
          {"state_two_clips", said("clips", "2")},
          {"state_no_seeds", without("seeds")},
          {"state_seeds_empty", said("seeds", "")},
          {"state_seeds_two", said("seeds", "7 8")},
          {"state_seeds_prefix", said("seeds", "1junk")},
          {"state_seeds_negative", said("seeds", "-1")},
          {"state_seeds_fraction", said("seeds", "7.5")},
          {"state_seeds_two_to_64", said("seeds", "18446744073709551616")},
          {"state_seeds_spaces", said("seeds", "  7  ")},
          {"state_seeds_many", said("seeds", std::string(1'000'000, '7'))},
          {"state_no_block", without("block")},
          {"state_block_two", tensor("block", at::ones({2}, at::kLong))},
          {"state_block_float", tensor("block", at::ones({}))},
          {"state_block_negative", tensor("block", at::full({}, -1, at::kLong))},
          {"state_block_two_to_62", tensor("block", at::full({}, std::int64_t{1} << 62, at::kLong))},
          {"state_no_text", without("text")},
          {"state_text_of_another_width", tensor("text", at::zeros({1, 2, 3}))},
          {"state_text_of_two_clips", tensor("text", at::zeros({2, 2, 2}))},
          {"state_text_flat", tensor("text", at::zeros({4}))},
          {"state_text_empty", tensor("text", at::zeros({1, 0, 2}))},
          {"state_text_integers", tensor("text", at::zeros({1, 2, 2}, at::kLong))},
          {"state_text_long",
           [](State& s) {
             s.tensors["text"] = at::zeros({1, 200'000, 2}),
             s.tensors["mask"] = at::ones({1, 200'000}, at::kByte);
           }},
          {"state_text_nan", tensor("text", at::full({1, 2, 2}, nan))},
          {"state_text_infinite", tensor("text", at::full({1, 2, 2}, infinity))},
          {"state_no_mask", without("mask")},
          {"state_mask_of_another_length", tensor("mask", at::ones({1, 3}, at::kByte))},
          {"state_mask_float", tensor("mask", at::ones({1, 2}))},
          {"state_mask_of_twos", tensor("mask", at::full({1, 2}, 2, at::kByte))},
          {"state_no_sums", without("sums.0")},
          {"state_no_counts", without("counts")},
          {"state_counts_nan",
           [nan](State& s) { s.tensors["counts"] = s.tensors["counts"].to(at::kFloat).fill_(nan); }},
          {"state_counts_zero", [](State& s) { s.tensors["counts"] = at::zeros_like(s.tensors["counts"]); }},
          {"state_counts_of_another_shape", tensor("counts", at::ones({5}))},
          {"state_sums_of_another_shape", tensor("sums.0", at::ones({1, 1, 5}))},
          {"state_sums_flat", tensor("sums.0", at::ones({5}))},
          {"state_sums_integers", [](State& s) { s.tensors["sums.0"] = s.tensors["sums.0"].to(at::kLong); }},
          {"state_sums_bits", [](State& s) { s.tensors["sums.0"] = s.tensors["sums.0"].to(at::kBool); }},
          {"state_sums_nan", [nan](State& s) { s.tensors["sums.0"].fill_(nan); }},
          {"state_more_tensors", tensor("more", at::ones({1}))},
          {"state_int32", tensor("more", at::ones({1}, at::kInt))}};
}

// Two readers look into a state: resolve for the request that made it, then the stream itself.
TEST_F(Streams, EachHostileStateIsRefusedForItsReason) {
  Table table("states");
  for (const fs::path& file : files_of("states"))
    table.judge(file.filename(), file.parent_path(), [&] {
      generate::Request request;
      request.continue_from = file.string();
      generate::resolve(request, config_, {});
    });
  const State good = made();
  for (const auto& [name, damage] : damages()) {
    State state = good;
    for (auto& [key, values] : state.tensors) values = values.clone();
    damage(state);
    const fs::path path = write(state);
    generate::BlockSampler onto = stream();
    table.judge(name, folder_.path(), [&] { generate::restore_stream(path, onto, model_); });
  }
  table.finish();
}

}  // namespace
}  // namespace pom::hostile
