// The official DiT and SiT, which have the same names. Each block's scales, shifts and gates come out of one
// matrix there, in the order shift, scale, gate, and out of two here. DiT counts its thousand steps from 0;
// SiT's time runs from noise (0) to the picture (1) and its velocity points that way, so its output changes
// its sign here, and its time is 1 - t.
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "pom/base/error.h"
#include "pom/models/convert_layout.h"
#include "pom/nn/embeddings.h"

namespace pom::models {
namespace {

// Blocks of rows of a matrix or of a bias, by their numbers.
at::Tensor rows_in_order(const at::Tensor& rows, std::int64_t blocks, std::initializer_list<int> order) {
  const std::vector<at::Tensor> parts = rows.chunk(blocks, 0);
  std::vector<at::Tensor> picked;
  for (const int i : order) picked.push_back(parts[static_cast<std::size_t>(i)]);
  return at::cat(picked);
}

// b1 s1 g1 b2 s2 g2 there; s1 b1 s2 b2 and g1 g2 here.
Piece modulation_piece(const std::string& theirs, const std::string& layer, const std::string& end,
                       std::vector<std::int64_t> shape) {
  const std::string cond = layer + "cond_mlp.1" + end, gate = layer + "gate_mlp.1" + end;
  return {theirs + end, std::move(shape),
          [cond, gate](const at::Tensor& values, Weights& ours) {
            ours[cond] = rows_in_order(values, 6, {1, 0, 4, 3});
            ours[gate] = rows_in_order(values, 6, {2, 5});
          },
          [cond, gate](const Weights& ours) {
            return rows_in_order(at::cat({ours.at(cond), ours.at(gate)}), 6, {1, 0, 4, 3, 2, 5});
          }};
}

// shift, scale there; scale, shift here.
Piece last_modulation(const std::string& end, std::vector<std::int64_t> shape) {
  const std::string ours = "out_mod.1" + end;
  return {"final_layer.adaLN_modulation.1" + end, std::move(shape),
          [ours](const at::Tensor& values, Weights& all) {
            all[ours] = rows_in_order(values, 2, {1, 0});
          },
          [ours](const Weights& all) {
            return rows_in_order(all.at(ours), 2, {1, 0});
          }};
}

Piece last_linear(const std::string& end, std::vector<std::int64_t> shape, bool turned) {
  const std::string ours = "out_proj" + end;
  const auto with_sign = [turned](const at::Tensor& values) { return turned ? -values : values; };
  return {"final_layer.linear" + end, std::move(shape),
          [=](const at::Tensor& values, Weights& all) { all[ours] = with_sign(values); },
          [=](const Weights& all) { return with_sign(all.at(ours)); }};
}

std::vector<Piece> dit_pieces(const NetworkConfig& c, Origin origin) {
  Pieces pieces;
  const std::int64_t d = c.dim;
  pieces.same("x_embedder.proj.weight", "in_conv.weight", {d, c.channels, c.patch, c.patch});
  pieces.same("x_embedder.proj.bias", "in_conv.bias", {d});
  pieces.linear("t_embedder.mlp.0", "time_emb.0", c.time_inputs(), c.time_hidden());
  pieces.linear("t_embedder.mlp.2", "time_emb.2", c.time_hidden(), d);
  pieces.same("y_embedder.embedding_table.weight", "classes_emb.weight", {c.classes + 1, d});
  for (std::int64_t i = 0; i < c.depth; ++i) {
    const std::string theirs = "blocks." + std::to_string(i) + ".";
    const std::string ours = "layers." + std::to_string(i) + ".";
    pieces.linear(theirs + "attn.qkv", ours + "attn.qkv", d, 3 * d);
    pieces.linear(theirs + "attn.proj", ours + "attn.proj", d, d);
    pieces.linear(theirs + "mlp.fc1", ours + "ffw.0", d, c.ffw_expand * d);
    pieces.linear(theirs + "mlp.fc2", ours + "ffw.2", c.ffw_expand * d, d);
    pieces.add(modulation_piece(theirs + "adaLN_modulation.1", ours, ".weight", {6 * d, d}));
    pieces.add(modulation_piece(theirs + "adaLN_modulation.1", ours, ".bias", {6 * d}));
  }
  const bool turned = origin == Origin::sit;
  pieces.add(last_linear(".weight", {c.outputs(), d}, turned));
  pieces.add(last_linear(".bias", {c.outputs()}, turned));
  pieces.add(last_modulation(".weight", {2 * d, d}));
  pieces.add(last_modulation(".bias", {2 * d}));
  return pieces.take();
}

const char* time_input_of(Origin origin) {
  return origin == Origin::sit ? "1-t" : "1000t-1";
}

at::Tensor dit_positions(std::int64_t side, std::int64_t dim) {  // (1, side * side, dim)
  return nn::position_code(side, side, dim, at::kDouble, nn::PositionForm::dit).unsqueeze(0);
}

// Its side in tokens; 0 where the file does not have it.
std::int64_t check_positions(const StateDict& dict, std::int64_t dim) {
  if (!dict.has("pos_embed")) return 0;
  const std::vector<std::int64_t>& shape = dict.shape("pos_embed", 3);
  const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(shape[1]))));
  check(shape[0] == 1 && side * side == shape[1] && shape[2] == dim, dict.file(), ": tensor \"",
        dict.prefix(), "pos_embed\": expected shape (1, side * side, ", dim, "), got ", shape_list(shape));
  check(dim % 4 == 0 && nearly(dict.read("pos_embed"), dit_positions(side, dim)), dict.file(), ": tensor \"",
        dict.prefix(), "pos_embed\": expected the sines and cosines of a grid of ", side, "x", side,
        ", got other values: a code that was learned is not supported");
  return side;
}

void refuse_homm(const StateDict& dict) {
  for (const char* name : {"classes_emb.weight", "text_emb.weight", "layers.0.ffw.0.weight"})
    if (dict.has(name))
      fail(dict.file(), ": tensor \"", dict.prefix(), name,
           "\": this is a network of the authors of PoM: --from homm, homm-upscale or homm-text2video");
}

}  // namespace

StateDict::Prefixes dit_prefixes() {
  return {"ema.", "model.", "", {}};
}

Layout dit_layout(const StateDict& dict, Origin origin, const KnownFields& known) {
  refuse_homm(dict);
  Layout layout;
  NetworkConfig& c = layout.config;
  const std::vector<std::int64_t>& cut = dict.shape("x_embedder.proj.weight", 4);
  c.dim = cut[0], c.channels = cut[1], c.patch = cut[2];
  c.classes = dict.shape("y_embedder.embedding_table.weight", 2)[0] - 1;
  c.depth = dict.count("blocks.");
  check(c.depth >= 1, dict.file(), ": expected blocks (\"", dict.prefix(), "blocks.0.…\"), got none");
  c.mixer = "attention", c.heads = heads_of(c.dim, known, dict.file());
  c.ffw_expand = multiple_of(dict.shape("blocks.0.mlp.fc1.weight", 2)[0], c.dim, dict.file(),
                             "hidden features of the feed-forward");
  c.time_features = dict.shape("t_embedder.mlp.0.weight", 2)[1];
  c.time_input = time_input_of(origin), c.position = "dit", c.gelu = "tanh";
  c.learned_variance = dict.shape("final_layer.linear.weight", 2)[0] == 2 * c.values();
  overlay(c, known);
  check_config(c, dict.file() + ": network.");
  layout.grid = check_positions(dict, c.dim);
  layout.dropped = {"pos_embed"};
  layout.pieces = dit_pieces(c, origin);
  return layout;
}

Layout dit_layout(const NetworkConfig& c, Origin origin, std::int64_t grid) {
  const auto want = [&](std::string_view field, const auto& expected, const auto& got) {
    check(expected == got, "convert: network.", field, ": expected ", expected, " for ", name_of(origin),
          ", got ", got);
  };
  want("kind", "dipom", c.kind);
  want("mixer", "attention", c.mixer);
  want("position", "dit", c.position);
  want("time_input", time_input_of(origin), c.time_input);
  want("gelu", "tanh", c.gelu);
  check(c.time_features > 0, "convert: network.time_features: expected at least 2 for ", name_of(origin),
        ", got 0");
  check(grid >= 1, "convert: expected the side of the grid of positions, got ", grid);
  Layout layout{.config = c, .pieces = dit_pieces(c, origin)};
  layout.pieces.push_back({"pos_embed", {1, grid * grid, c.dim}, {}, [=, dim = c.dim](const Weights& ours) {
                             return dit_positions(grid, dim).to(ours.at("in_conv.weight").scalar_type());
                           }});
  return layout;
}

}  // namespace pom::models
