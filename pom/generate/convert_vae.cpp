#include "pom/generate/convert_vae.h"

#include <algorithm>

#include "pom/base/error.h"
#include "pom/generate/folder.h"
#include "pom/generate/set_field.h"
#include "pom/io/atomic_file.h"
#include "pom/io/json_fields.h"
#include "pom/models/state_dict.h"

namespace pom::generate {
namespace {

namespace st = io::safetensors;
using models::StateDict;

// A tensor of the file, and its name in a folder of diffusers. (C, C, 1, 1) becomes (C, C) where it is
// `flat`.
struct VaeTensor {
  std::string theirs, ours;
  std::vector<std::int64_t> shape;
  bool flat = false;
};

// Walks the autoencoder, and says what tensors it has.
class VaeNames {
 public:
  VaeNames(const VaeConfig& config, const StateDict& dict) : c_(config), dict_(dict) {}

  std::vector<VaeTensor> all() {
    half("encoder");
    half("decoder");
    const std::int64_t z = c_.latent_channels;
    if (c_.use_quant_conv) parameters("quant_conv", "quant_conv", {2 * z, 2 * z, 1, 1});
    if (c_.use_post_quant_conv) parameters("post_quant_conv", "post_quant_conv", {z, z, 1, 1});
    return std::move(all_);
  }

 private:
  void parameters(const std::string& theirs, const std::string& ours, std::vector<std::int64_t> weight) {
    const std::int64_t out = weight[0];
    all_.push_back({theirs + ".weight", ours + ".weight", std::move(weight)});
    all_.push_back({theirs + ".bias", ours + ".bias", {out}});
  }
  // A causal one of clips keeps its weights in a child.
  void convolution(const std::string& theirs, const std::string& ours, std::int64_t in, std::int64_t out,
                   std::int64_t side) {
    if (!c_.clips()) return parameters(theirs, ours, {out, in, side, side});
    parameters(theirs + ".conv", ours + ".conv", {out, in, side, side, side});
  }
  void shortcut(const std::string& theirs, const std::string& ours, std::int64_t in, std::int64_t out) {
    std::vector<std::int64_t> shape = {out, in, 1, 1};
    if (c_.clips()) shape.push_back(1);
    parameters(theirs, ours, shape);
  }
  // The decoder of clips is told the latents in its norms.
  void norm(const std::string& theirs, const std::string& ours, std::int64_t channels) {
    if (!c_.clips() || !decoder_) return parameters(theirs, ours, {channels});
    parameters(theirs + ".norm_layer", ours + ".norm_layer", {channels});
    for (const char* part : {".conv_y", ".conv_b"})
      convolution(theirs + part, ours + part, c_.latent_channels, channels, 1);
  }

  void resnet(const std::string& theirs, const std::string& ours, std::int64_t in, std::int64_t out) {
    norm(theirs + ".norm1", ours + ".norm1", in);
    convolution(theirs + ".conv1", ours + ".conv1", in, out, 3);
    norm(theirs + ".norm2", ours + ".norm2", out);
    convolution(theirs + ".conv2", ours + ".conv2", out, out, 3);
    if (in != out) shortcut(theirs + ".nin_shortcut", ours + ".conv_shortcut", in, out);
  }

  void attention(const std::string& theirs, const std::string& ours, std::int64_t channels) {
    parameters(theirs + ".norm", ours + ".group_norm", {channels});
    constexpr std::pair<const char*, const char*> names[] = {
        {".q", ".to_q"}, {".k", ".to_k"}, {".v", ".to_v"}, {".proj_out", ".to_out.0"}};
    for (const auto& [from, to] : names) {
      std::vector<std::int64_t> shape = {channels, channels};
      const bool flat = dict_.has(theirs + from + ".weight") && dict_.sides(theirs + from + ".weight") == 2;
      if (!flat) shape.insert(shape.end(), {1, 1});
      all_.push_back({theirs + from + ".weight", ours + to + ".weight", shape, true});
      all_.push_back({theirs + from + ".bias", ours + to + ".bias", {channels}});
    }
  }

  void half(const std::string& name) {
    decoder_ = name == "decoder";
    const std::vector<std::int64_t>& C = c_.block_out_channels;
    const std::int64_t z = c_.latent_channels, first = C.front(), last = C.back();
    if (decoder_)
      convolution("decoder.conv_in", "decoder.conv_in", z, last, 3);
    else
      convolution("encoder.conv_in", "encoder.conv_in", c_.in_channels, first, 3);
    levels(name);
    resnet(name + ".mid.block_1", name + ".mid_block.resnets.0", last, last);
    if (!c_.clips() && c_.mid_block_add_attention)
      attention(name + ".mid.attn_1", name + ".mid_block.attentions.0", last);
    resnet(name + ".mid.block_2", name + ".mid_block.resnets.1", last, last);
    norm(name + ".norm_out", name + (c_.clips() ? ".norm_out" : ".conv_norm_out"), decoder_ ? first : last);
    if (decoder_)
      convolution("decoder.conv_out", "decoder.conv_out", first, c_.out_channels, 3);
    else
      convolution("encoder.conv_out", "encoder.conv_out", last, 2 * z, 3);
  }

  // Level i of the decoder is the file's level n - 1 - i.
  void levels(const std::string& half) {
    std::vector<std::int64_t> C = c_.block_out_channels;
    if (decoder_) std::ranges::reverse(C);
    const std::int64_t n = std::ssize(C), layers = c_.layers_per_block + (decoder_ ? 1 : 0);
    std::int64_t in = C.front();
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t out = C[static_cast<std::size_t>(i)], number = decoder_ ? n - 1 - i : i;
      const std::string theirs = half + (decoder_ ? ".up." : ".down.") + std::to_string(number);
      const std::string ours = half + (decoder_ ? ".up_blocks." : ".down_blocks.") + std::to_string(i);
      for (std::int64_t j = 0; j < layers; ++j, in = out)
        resnet(theirs + ".block." + std::to_string(j), ours + ".resnets." + std::to_string(j), in, out);
      if (i + 1 == n) continue;
      if (decoder_)
        parameters(theirs + ".upsample.conv", ours + ".upsamplers.0.conv", {out, out, 3, 3});
      else
        parameters(theirs + ".downsample.conv", ours + ".downsamplers.0.conv", {out, out, 3, 3});
    }
  }

  const VaeConfig& c_;
  const StateDict& dict_;
  bool decoder_ = false;
  std::vector<VaeTensor> all_;
};

// ---- what the file is ----

std::string prefix_in(const st::Reader& file) {
  for (const char* prefix : {"first_stage_model.", "vae."})
    for (const st::TensorInfo& tensor : file.header().tensors())
      if (tensor.name.starts_with(std::string(prefix) + "encoder.conv_in.")) return prefix;
  return "";
}

VaeConfig config_from_shapes(const StateDict& dict) {
  VaeConfig c;
  const bool clips = dict.has("encoder.conv_in.conv.weight");
  if (clips) c.class_name = "AutoencoderKLCogVideoX";
  const std::string end = clips ? ".conv.weight" : ".weight";
  const std::size_t sides = clips ? 5 : 4;
  if (dict.has("encoder.down_blocks.0.resnets.0.conv1" + end))
    fail(dict.file(), ": tensor \"", dict.prefix(), "encoder.down_blocks.0.resnets.0.conv1", end,
         "\": these are the names of diffusers already: it only needs a config.json beside it");
  c.in_channels = dict.shape("encoder.conv_in" + end, sides)[1];
  c.out_channels = dict.shape("decoder.conv_out" + end, sides)[0];
  c.latent_channels = dict.shape("decoder.conv_in" + end, sides)[1];
  const std::int64_t levels = dict.count("encoder.down.");
  check(levels >= 1, dict.file(), ": expected \"", dict.prefix(), "encoder.down.0.…\", got none");
  for (std::int64_t i = 0; i < levels; ++i) {
    const std::string level = detail::concat("encoder.down.", i, ".block.0.conv1", end);
    c.block_out_channels.push_back(dict.shape(level, sides)[0]);
  }
  c.layers_per_block = dict.count("encoder.down.0.block.");
  const auto types = static_cast<std::size_t>(levels);
  c.down_block_types.assign(types, clips ? "CogVideoXDownBlock3D" : "DownEncoderBlock2D");
  c.up_block_types.assign(types, clips ? "CogVideoXUpBlock3D" : "UpDecoderBlock2D");
  c.use_quant_conv = dict.has("quant_conv.weight");
  c.use_post_quant_conv = dict.has("post_quant_conv.weight");
  c.mid_block_add_attention = dict.has("decoder.mid.attn_1.q.weight");
  return c;
}

// The weights do not tell the scale of latents.
void settle_scale(VaeConfig& c, const std::string& file, bool given, std::vector<std::string>& notes) {
  if (given) return;
  if (c.clips()) {
    c.scaling_factor = 1.15258426;
    notes.push_back("scaling_factor = 1.15258426, of CogVideoX-2B: --set scaling_factor=0.7 for 5B and 1.5");
  } else if (c.latent_channels == 4) {
    c.scaling_factor = 0.18215;
    notes.push_back(
        "scaling_factor = 0.18215, of Stable Diffusion 1 and 2: --set scaling_factor=0.13025 for SDXL");
  } else {
    fail(file, ": latents of ", c.latent_channels,
         " channels: the weights do not tell their scale; --set scaling_factor=0.3611 --set "
         "shift_factor=0.1159 for FLUX.1, 1.5305 and 0.0609 for SD3");
  }
}

}  // namespace

ConvertedVae convert_single_vae(const std::filesystem::path& source, const std::vector<std::string>& set) {
  VaeConfig ignored;  // finds mistakes in `set` before the file is read
  const std::set<std::string> given = set_json_fields(set, ignored);
  const st::Reader file(source);
  const StateDict dict(file, prefix_in(file));
  ConvertedVae done{config_from_shapes(dict), {}, {}};
  set_json_fields(set, done.config);
  settle_scale(done.config, file.file(), given.contains("scaling_factor"), done.notes);
  for (const std::int64_t channels : done.config.block_out_channels)
    check(channels % done.config.norm_num_groups == 0, file.file(),
          ": norm_num_groups: expected a divisor of ", channels, ", got ", done.config.norm_num_groups,
          "; --set norm_num_groups=N");
  const std::vector<VaeTensor> tensors = VaeNames(done.config, dict).all();
  std::vector<StateDict::Expected> expected;
  for (const VaeTensor& tensor : tensors) expected.push_back({tensor.theirs, tensor.shape});
  dict.account(expected, dict.names("loss."));
  for (const VaeTensor& tensor : tensors) {
    const at::Tensor values = dict.read(tensor.theirs);
    done.tensors[tensor.ours] = tensor.flat ? values.flatten(1) : values;
  }
  return done;
}

void write_vae_folder(const std::filesystem::path& folder, const ConvertedVae& vae) {
  io::FolderSwap swap(folder);
  VaeConfig config = vae.config;
  io::write_file_atomically(swap.folder() / config_file, io::write_json(config, io::JsonStyle::pages));
  models::write_weights(swap.folder() / "diffusion_pytorch_model.safetensors", vae.tensors, std::nullopt);
  swap.commit();
}

}  // namespace pom::generate
