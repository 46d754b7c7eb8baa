// A command line around the network for clips, for referees that are not written in C++.
//
//   video_tool run WEIGHTS INPUTS OUT key=value…  the module's output and the gradients of sum(output * dy),
//                                                 and what Denoiser makes of the same block by block,
//                                                 in the dtype of the inputs
//
//   video_tool stream WEIGHTS INPUTS OUT key=value…  clips, block by block
//
//   video_tool lines  what stdin says, one of the above a line with tabs between its words: a process takes
//                     longer to start than a network to run. A line of stdout answers each, empty or an error
//
// Of `run`: INPUTS has x (B, C, T, H, W), t (B), text, mask (uint8, like text), first (B, int64), dy like x.
// OUT gets `output`, `grad.x`, `grad.text`, `grad.NAME`, `materialised` (by the written-out mask, composed),
// and for a causal network and one time for all clips, which all begin at block 0, `streamed` and
// `streamed_without`.
//
// Of `stream`: INPUTS has seeds (B, int64), size (2, int64: height, width), text (B, blocks, L, w), mask.
// Keys beside the network's are sampler, steps, scale, from and to (of guidance), save and continue (files of
// states; one that is continued counts its blocks on). OUT gets `noise` and `clip`, both (B, C, T, H, W).
#include <algorithm>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/diffusion/noise.h"
#include "pom/generate/stream_state.h"
#include "pom/models/denoiser.h"
#include "pom/models/vdipom.h"
#include "pom/ops/mixer.h"

namespace {

using namespace pom;

struct SetField {
  const std::map<std::string, std::string>& given;
  template <class T>
  void operator()(const Field& field, T& value) const {
    const auto found = given.find(std::string(field.name));
    if (found == given.end()) return;
    if constexpr (std::is_same_v<T, std::string>)
      value = found->second;
    else
      value = std::stoll(found->second);
  }
};

using Given = std::map<std::string, std::string>;

using Words = std::vector<std::string>;

Given parse(const Words& words, std::size_t first) {
  Given given;
  for (std::size_t i = first; i < words.size(); ++i) {
    const std::string& text = words[i];
    const std::size_t equals = text.find('=');
    check(equals != std::string::npos, "video_tool: expected key=value, got ", text);
    given[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return given;
}

models::NetworkConfig config_of(const Given& given) {
  models::NetworkConfig config;
  config.kind = "vdipom";
  config.fields(SetField{given});
  return config;
}

at::ScalarType torch_dtype(io::safetensors::Dtype dtype) {
  using io::safetensors::Dtype;
  if (dtype == Dtype::I64) return at::kLong;
  if (dtype == Dtype::U8) return at::kByte;
  return dtype == Dtype::F64 ? at::kDouble : at::kFloat;
}

std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const io::safetensors::File file = io::safetensors::File::open(path);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& view : file.tensors())
    tensors[std::string(view.name)] =
        at::from_blob(const_cast<std::byte*>(view.data.data()), {view.shape.data(), view.shape.size()},
                      torch_dtype(view.dtype))
            .clone();
  return tensors;
}

// Answers with text and without, block by block.
std::pair<at::Tensor, at::Tensor> stream(const models::NetworkConfig& config, const models::Weights& weights,
                                         const at::Tensor& x, double t, const at::Tensor& text,
                                         const at::Tensor& mask) {
  const auto network = models::Denoiser::make(config, weights, x.scalar_type());
  models::Denoiser& denoiser = *network;
  const std::int64_t pt = config.patch_time;
  denoiser.plan({x.size(0), x.size(3), x.size(4), {{t, true}}, x.size(2) / pt});
  std::vector<at::Tensor> with, without;
  for (std::int64_t b = 0; b < x.size(2) / pt; ++b) {
    const bool each = text.dim() == 4;
    if (each || b == 0)
      denoiser.tell({.text = each ? text.select(1, b) : text, .mask = each ? mask.select(1, b) : mask});
    const std::vector<at::Tensor> halves = denoiser(x.narrow(2, b * pt, pt), 0).chunk(2);
    denoiser.advance();
    with.push_back(halves[0]), without.push_back(halves[1]);
  }
  return {at::cat(with, 2), at::cat(without, 2)};
}

void run(const std::string& weights_file, const std::string& inputs_file, const std::string& out_file,
         const models::NetworkConfig& config) {
  std::map<std::string, at::Tensor> in = read_tensors(inputs_file);
  const at::ScalarType dtype = in.at("x").scalar_type();
  const models::Weights weights = models::read_weights(weights_file, config, dtype);
  models::VDiPoM network(config);
  network->to(dtype);
  network->set_weights(weights);
  at::Tensor x = in.at("x").requires_grad_(true), text = in.at("text").requires_grad_(true);
  const at::Tensor mask = in.at("mask").to(at::kBool), t = in.at("t"), first = in.at("first");
  const at::Tensor output = network->forward(x, t, text, mask, first);
  (output * in.at("dy")).sum().backward();
  models::Weights out{{"output", output.detach()}, {"grad.x", x.grad()}, {"grad.text", text.grad()}};
  for (const auto& item : network->named_parameters())
    if (item.value().grad().defined()) out["grad." + item.key()] = item.value().grad();
  {
    const ops::PathGuard composed(ops::Path::composed);
    const at::NoGradGuard no_gradients;
    network->set_materialised(true);
    out["materialised"] = network->forward(x, t, text, mask, first);
  }
  const bool same_time = (t == t[0]).all().item<bool>() && (first == 0).all().item<bool>();
  if (config.block_causal() && same_time)
    std::tie(out["streamed"], out["streamed_without"]) =
        stream(config, weights, x.detach(), t[0].item<double>(), text.detach(), mask);
  models::write_weights(out_file, out, dtype);
}

double number(const Given& given, const std::string& key, double otherwise) {
  return given.contains(key) ? std::stod(given.at(key)) : otherwise;
}

generate::BatchSampling sampling_of(const Given& given, const std::map<std::string, at::Tensor>& in) {
  generate::BatchSampling sampling;
  const at::Tensor seeds = in.at("seeds"), size = in.at("size");
  for (std::int64_t i = 0; i < seeds.numel(); ++i)
    sampling.seeds.push_back(static_cast<std::uint64_t>(seeds[i].item<std::int64_t>()));
  sampling.height = size[0].item<std::int64_t>(), sampling.width = size[1].item<std::int64_t>();
  sampling.sampler = given.at("sampler");
  sampling.options.steps = static_cast<int>(number(given, "steps", 5));
  sampling.guidance = {number(given, "scale", 1), number(given, "from", 0), number(given, "to", 1)};
  return sampling;
}

void stream_clips(const std::string& weights_file, const std::string& inputs_file,
                  const std::string& out_file, const Given& given) {
  const models::NetworkConfig config = config_of(given);
  const std::map<std::string, at::Tensor> in = read_tensors(inputs_file);
  const auto network = models::Denoiser::make(config, models::read_weights(weights_file, config));
  generate::BlockSampler stream(*network, sampling_of(given, in));
  if (given.contains("continue")) generate::restore_stream(given.at("continue"), stream, {"the model"});
  std::vector<at::Tensor> noise, clip;
  const at::Tensor text = in.at("text").to(at::kFloat), mask = in.at("mask").to(at::kBool);
  for (std::int64_t b = 0; b < text.size(1); ++b) {
    stream.tell({.text = text.select(1, b), .mask = mask.select(1, b)});
    const std::int64_t number = stream.block();
    clip.push_back(stream.next());
    noise.push_back(at::empty_like(clip.back()));
    diffusion::fill_latents(noise.back(), stream.sampling().seeds, number * clip.back()[0].numel());
  }
  if (given.contains("save")) generate::save_stream(given.at("save"), stream, {"the model"});
  models::write_weights(out_file, {{"noise", at::cat(noise, 2)}, {"clip", at::cat(clip, 2)}}, at::kFloat);
}

void obey(const Words& words) {
  const std::string command = words.size() > 3 ? words[0] : "";
  if (command == "run")
    run(words[1], words[2], words[3], config_of(parse(words, 4)));
  else if (command == "stream")
    stream_clips(words[1], words[2], words[3], parse(words, 4));
  else
    fail("video_tool: expected run or stream WEIGHTS INPUTS OUT key=value…");
}

void obey_lines() {
  for (std::string line; std::getline(std::cin, line);) {
    Words words;
    std::istringstream parts(line);
    for (std::string word; std::getline(parts, word, '\t');) words.push_back(word);
    try {
      obey(words);
      std::cout << std::endl;
    } catch (const std::exception& error) {
      std::string text = error.what();
      std::ranges::replace(text, '\n', ' ');
      std::cout << text << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const Words words(argv + 1, argv + argc);
  if (words == Words{"lines"})
    obey_lines();
  else
    obey(words);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
