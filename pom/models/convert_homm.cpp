// The authors' networks: their names say `hom` for `pom`, and their clips are cut by a linear map of patches
// in which the channel runs fastest. The rest has our names.
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp.h>

#include "pom/base/error.h"
#include "pom/models/convert_layout.h"
#include "pom/nn/embeddings.h"

namespace pom::models {
namespace {

constexpr double kHommSteps = 1000;

// exp(-2 ln(steps) i / d), i < d / 2.
at::Tensor homm_freqs(std::int64_t dim) {
  const at::Tensor i = at::arange(dim / 2, at::kDouble);
  return at::exp(i * (-2 * std::log(kHommSteps)) / static_cast<double>(dim));
}

void add_homm_mixer(Pieces& pieces, const std::string& theirs, const std::string& ours,
                    const NetworkConfig& c) {
  pieces.linear(theirs + ".ho_proj", ours + ".ho_proj", c.dim, c.features());
  pieces.linear(theirs + ".se_proj", ours + ".se_proj", c.dim, c.features());
  pieces.linear(theirs + ".ag_proj", ours + ".ag_proj", c.features(), c.dim);
}

void add_homm_layer(Pieces& pieces, const std::string& layer, const NetworkConfig& c) {
  if (c.video()) add_homm_mixer(pieces, layer + "c_hom", layer + "c_pom", c);
  if (c.attention()) {
    pieces.linear(layer + "mha.qkv", layer + "attn.qkv", c.dim, 3 * c.dim);
    pieces.linear(layer + "mha.proj", layer + "attn.proj", c.dim, c.dim);
  } else {
    add_homm_mixer(pieces, layer + "hom", layer + "pom", c);
  }
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    pieces.linear(layer + name, layer + name, in, out);
  };
  linear("ffw.0", c.dim, c.ffw_expand * c.dim);
  linear("ffw.2", c.ffw_expand * c.dim, c.dim);
  linear("cond_mlp.1", c.dim, (c.video() ? 8 : 4) * c.dim);
  linear("gate_mlp.1", c.dim, (c.video() ? 3 : 2) * c.dim);
}

// A patch's values in the order (time, row, column, channel) there, (channel, time, row, column) here.
Piece cut_of_clips(const NetworkConfig& c) {
  const std::vector<std::int64_t> cut = {c.dim, c.patch_time, c.patch, c.patch, c.channels};
  return {"in_proj.weight",
          {c.dim, c.values()},
          [cut](const at::Tensor& theirs, Weights& ours) {
            ours["in_conv.weight"] = theirs.view(cut).permute({0, 4, 1, 2, 3}).contiguous();
          },
          [](const Weights& ours) {
            return ours.at("in_conv.weight").permute({0, 2, 3, 4, 1}).flatten(1).contiguous();
          }};
}

std::vector<Piece> homm_pieces(const NetworkConfig& c) {
  Pieces pieces;
  if (c.video()) {
    pieces.linear("text_emb", "text_proj", c.text_width, c.dim);
    pieces.add(cut_of_clips(c));
    pieces.same("in_proj.bias", "in_conv.bias", {c.dim});
  } else {
    pieces.same("classes_emb.weight", "classes_emb.weight", {c.classes + 1, c.dim});
    pieces.same("in_conv.weight", "in_conv.weight", {c.dim, c.channels, c.patch, c.patch});
    pieces.same("in_conv.bias", "in_conv.bias", {c.dim});
  }
  pieces.linear("time_emb.0", "time_emb.0", c.dim, 4 * c.dim);
  pieces.linear("time_emb.2", "time_emb.2", 4 * c.dim, c.dim);
  for (std::int64_t i = 0; i < c.depth; ++i) add_homm_layer(pieces, "layers." + std::to_string(i) + ".", c);
  pieces.linear("out_mod.1", "out_mod.1", c.dim, 2 * c.dim);
  pieces.linear("out_proj", "out_proj", c.dim, c.values());
  return pieces.take();
}

// ---- what the shapes tell ----

void refuse_others(const StateDict& dict, Origin origin) {
  const auto refuse = [&](const char* name, const auto&... why) {
    if (dict.has(name)) fail(dict.file(), ": tensor \"", dict.prefix(), name, "\": ", why...);
  };
  refuse("registers", "a network with registers (DiHpp) is another one, which libpom does not have");
  refuse("x_embedder.proj.weight", "this is an official DiT or SiT: --from dit, or --from sit");
  if (origin == Origin::homm_text2video)
    refuse("classes_emb.weight", "this is a network with classes: --from homm, or --from homm-upscale");
  else
    refuse("text_emb.weight", "this is a network with text: --from homm-text2video");
}

void shapes_of_mixer(NetworkConfig& c, const StateDict& dict, const KnownFields& known, Layout& layout) {
  if (dict.has("layers.0.mha.qkv.weight")) {
    c.mixer = "attention";
    c.heads = heads_of(c.dim, known, dict.file());
    return;
  }
  c.order = known_or(known, "order", &NetworkConfig::order, std::int64_t{2});
  const std::int64_t features = dict.shape("layers.0.hom.ho_proj.weight", 2)[0];
  const std::int64_t expand = multiple_of(features, c.dim, dict.file(), "features of the mixer");
  check(c.order >= 1 && expand % c.order == 0, dict.file(), ": network.order: expected a divisor of ", expand,
        ", the features of the mixer as a multiple of its width, got ", c.order,
        known.has("order") ? "" : ", the order that networks have unless --set network.order=N says");
  c.order_expand = expand / c.order;
  if (!known.has("order"))
    layout.notes.push_back(detail::concat("network.order = ", c.order, ", order_expand = ", c.order_expand,
                                          ": the weights tell their product alone; --set network.order=N"));
}

void shapes_of_clips(NetworkConfig& c, const StateDict& dict, const KnownFields& known, Layout& layout) {
  const std::vector<std::int64_t>& text = dict.shape("text_emb.weight", 2);
  c.kind = "vdipom", c.dim = text[0], c.text_width = text[1];
  c.position = "narrow", c.time_code = "relative", c.no_text = "mask";
  c.patch = known_or(known, "patch", &NetworkConfig::patch, std::int64_t{2});
  c.patch_time = known_or(known, "patch_time", &NetworkConfig::patch_time, std::int64_t{2});
  c.channels = multiple_of(dict.shape("in_proj.weight", 2)[1], c.patch_time * c.patch * c.patch, dict.file(),
                           "values of a patch");
  if (!known.has("temporal_mask"))
    layout.notes.push_back(
        "network.temporal_mask = block-causal: the weights do not tell; --set network.temporal_mask=none");
}

void shapes_of_pictures(NetworkConfig& c, const StateDict& dict, Origin origin) {
  const std::vector<std::int64_t>&classes = dict.shape("classes_emb.weight", 2),
        &cut = dict.shape("in_conv.weight", 4);
  c.dim = classes[1], c.classes = classes[0] - 1;
  c.channels = cut[1], c.patch = cut[2];
  c.position = origin == Origin::homm_upscale ? "narrow" : "odd";
}

// ---- what is stored beside the weights ----

void check_homm_freqs(const StateDict& dict, std::int64_t dim) {
  const at::Tensor expected = homm_freqs(dim);
  const std::int64_t count = dict.shape("freqs", 1)[0];
  check(count == dim / 2, dict.file(), ": tensor \"", dict.prefix(), "freqs\": expected shape (", dim / 2,
        "), got (", count, ")");
  const at::Tensor stored = dict.read("freqs");
  if (count < 2 || nearly(stored, expected)) return;
  const double steps =
      std::exp(-std::log(stored[1].item<double>()) * static_cast<double>(dim) / 2);  // exp(-2 ln(steps) / d)
  fail(dict.file(), ": tensor \"", dict.prefix(), "freqs\": expected exp(-2 ln(1000) i / ", dim,
       "), of 1000 time steps, got those of about ", std::llround(std::min(steps, 1e15)),
       ": libpom has no network for them");
}

// Old files keep the position code that the network added. Which one it was decides; one that is none of ours
// was learned.
void use_old_positions(NetworkConfig& c, const StateDict& dict, bool position_given, Layout& layout) {
  const std::vector<std::int64_t>& shape = dict.shape("pos_emb", 3);
  const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(shape[1]))));
  const bool square = shape[0] == 1 && side * side == shape[1] && shape[2] == c.dim;
  if (square) layout.grid = side;
  const at::Tensor stored = dict.read("pos_emb");
  const auto is = [&](const std::string& form) {
    return square && c.dim % 4 == 0 &&
           nearly(stored[0], nn::position_code(side, side, c.dim, at::kDouble, nn::position_form(form)));
  };
  if (is(c.position)) return;
  if (!position_given && is("dit")) {
    c.position = "dit";
    layout.notes.push_back("network.position = dit: what the file's pos_emb is");
    return;
  }
  layout.notes.push_back(detail::concat("pos_emb of the file was dropped: it is not the position code \"",
                                        c.position, "\"; a network that added it answers differently here"));
}

// ---- what of ours is theirs ----

void check_expressible(const NetworkConfig& c, Origin origin) {
  const auto want = [&](std::string_view field, const auto& expected, const auto& got) {
    check(expected == got, "convert: network.", field, ": expected ", expected, " for ", name_of(origin),
          ", got ", got);
  };
  const bool clips = origin == Origin::homm_text2video;
  want("kind", clips ? "vdipom" : "dipom", c.kind);
  want("position", origin == Origin::homm ? "odd" : "narrow", c.position);
  want("time_features", 0, c.time_features);
  want("time_input", "1000t", c.time_input);
  want("gelu", "erf", c.gelu);
  want("learned_variance", false, c.learned_variance);
  if (!clips && c.attention()) want("ffw_expand", 4, c.ffw_expand);
  if (!clips) return;
  want("mixer", "pom", c.mixer);
  want("time_code", "relative", c.time_code);
  want("no_text", "mask", c.no_text);
  want("window", 0, c.window);
  want("own_every", 0, c.own_every);
}

}  // namespace

StateDict::Prefixes homm_prefixes() {
  return {"ema.ema_model.", "model.", "ema.initted", {"ema.initted", "ema.step", "ema.online_model."}};
}

Layout homm_layout(const StateDict& dict, Origin origin, const KnownFields& known) {
  refuse_others(dict, origin);
  Layout layout;
  NetworkConfig& c = layout.config;
  if (origin == Origin::homm_text2video)
    shapes_of_clips(c, dict, known, layout);
  else
    shapes_of_pictures(c, dict, origin);
  c.depth = dict.count("layers.");
  check(c.depth >= 1, dict.file(), ": expected layers (\"", dict.prefix(), "layers.0.…\"), got none");
  shapes_of_mixer(c, dict, known, layout);
  c.ffw_expand = multiple_of(dict.shape("layers.0.ffw.0.weight", 2)[0], c.dim, dict.file(),
                             "hidden features of the feed-forward");
  overlay(c, known);
  check_config(c, dict.file() + ": network.");
  layout.dropped = {"freqs"};
  if (dict.has("freqs")) check_homm_freqs(dict, c.dim);
  if (!c.video() && dict.has("pos_emb")) {
    layout.dropped.insert("pos_emb");
    use_old_positions(c, dict, known.has("position"), layout);
  }
  layout.pieces = homm_pieces(c);
  return layout;
}

Layout homm_layout(const NetworkConfig& config, Origin origin) {
  check_expressible(config, origin);
  Layout layout{.config = config, .pieces = homm_pieces(config)};
  layout.pieces.push_back({"freqs", {config.dim / 2}, {}, [dim = config.dim](const Weights& ours) {
                             return homm_freqs(dim).to(ours.at("time_emb.0.weight").scalar_type());
                           }});
  return layout;
}

}  // namespace pom::models
