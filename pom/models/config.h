// What a network is, as config.json says it, and the table of the variants that have a name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/fields.h"

namespace pom::models {

// DiPoM (mixer "pom") and its baseline DiT (mixer "attention") are one network with another mixer; so are
// V-DiPoM and V-DiT, which make clips from text. What only clips have is not written for pictures.
struct NetworkConfig {
  std::string kind = "dipom";   // or "vdipom"
  std::string variant;          // a name of the table, or empty for a network of free size
  std::int64_t dim = 384;       // width of a token
  std::int64_t depth = 12;      // blocks
  std::int64_t patch = 2;       // side of the square of latent pixels that is a token
  std::int64_t channels = 4;    // of the latent
  std::int64_t classes = 1000;  // the embedding has one row more, for "no class"
  std::string mixer = "pom";
  std::int64_t order = 2, order_expand = 2;  // of the Polynomial Mixer
  std::int64_t heads = 6;                    // of attention
  std::int64_t ffw_expand = 3;               // the feed-forward has ffw_expand * dim hidden features
  std::string position = "odd";              // code of a token's place, or "narrow", "dit": nn/embeddings.h

  // Of pictures: what the official DiT and SiT have otherwise (pom/models/convert_dit.cpp).
  std::int64_t time_features = 0;    // of a time, before an MLP of width dim; 0: dim of them, 4 dim wide
  std::string time_input = "1000t";  // what they are features of; or "1000t-1", "1-t"
  std::string gelu = "erf";          // of the feed-forward; or "tanh", its approximation
  bool learned_variance = false;     // as many outputs again, which nobody reads

  // Of clips. A block is one patch of latent frames: patch_time of them, at all places.
  std::int64_t patch_time = 2;
  std::int64_t text_width = 4096;              // of a token of text
  std::string temporal_mask = "block-causal";  // a block sees itself and those before it; or "none"
  std::int64_t window = 0;                     // blocks seen, the own one included; 0: all
  std::int64_t own_every = 0;                  // every so many layers one sees its own block alone; 0: none
  std::string time_code = "periodic";          // of a block's number: see nn/video_position.h
  std::int64_t time_period = 32;               // of that code, in blocks
  std::string no_text = "token";               // learned; or "mask": no token of text counts

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "kind", .help = "family of networks", .choices = {"dipom", "vdipom"}}, kind);
    visit(Field{.name = "variant", .help = "variant; sets the defaults of the other fields"}, variant);
    visit(Field{.name = "dim", .help = "width of a token", .least = 4, .most = 65536}, dim);
    visit(Field{.name = "depth", .help = "number of blocks", .least = 1, .most = 1000}, depth);
    visit(Field{.name = "patch", .help = "side of a token in latent pixels", .least = 1, .most = 256}, patch);
    visit(Field{.name = "channels", .help = "channels of the latent", .least = 1, .most = 4096}, channels);
    visit(Field{.name = "classes",
                .help = "number of classes, \"no class\" not counted",
                .least = 1,
                .most = 1e7},
          classes);
    visit(Field{.name = "mixer", .help = "token mixer", .choices = {"pom", "attention"}}, mixer);
    visit(Field{.name = "order", .help = "degree of the mixer", .least = 1, .most = 64}, order);
    visit(Field{.name = "order_expand",
                .help = "features per degree, as a multiple of dim",
                .least = 1,
                .most = 64},
          order_expand);
    visit(Field{.name = "heads", .help = "attention heads", .least = 1, .most = 1024}, heads);
    visit(
        Field{.name = "ffw_expand", .help = "hidden features, as a multiple of dim", .least = 1, .most = 64},
        ffw_expand);
    visit(Field{.name = "position",
                .help = "position embedding of a token",
                .choices = {"odd", "narrow", "dit"},
                .saved = position != "odd"},  // folders from before there was another one stay as they are
          position);
    dit_fields(visit);
    video_fields(visit);
  }

  bool video() const { return kind == "vdipom"; }
  bool block_causal() const { return temporal_mask == "block-causal"; }
  bool attention() const { return mixer == "attention"; }
  bool learns_no_text() const { return video() && no_text == "token"; }
  bool needs_length() const { return video() && time_code == "relative"; }  // of a clip, before it begins
  bool sees_own_alone(std::int64_t layer) const { return own_every > 0 && (layer + 1) % own_every == 0; }
  std::int64_t window_of(std::int64_t layer) const { return sees_own_alone(layer) ? 1 : window; }
  std::int64_t features() const { return order * order_expand * dim; }  // of the mixer
  std::int64_t tokens(std::int64_t height, std::int64_t width) const {  // of a latent, or of a block of them
    return (height / patch) * (width / patch);
  }
  std::int64_t values() const {  // of the latent in a token
    return (video() ? patch_time : 1) * patch * patch * channels;
  }
  std::int64_t outputs() const { return (learned_variance ? 2 : 1) * values(); }  // of a token
  std::int64_t time_inputs() const { return time_features > 0 ? time_features : dim; }
  std::int64_t time_hidden() const { return time_features > 0 ? dim : 4 * dim; }

 private:
  // Not in files of networks that have none of it.
  template <class Visit>
  void dit_fields(Visit&& visit) {
    visit(Field{.name = "time_features",
                .help = "features of the time, before an MLP of width dim; 0: dim, before one of 4 dim",
                .least = 0,
                .most = 65536,
                .saved = time_features > 0},
          time_features);
    visit(Field{.name = "time_input",
                .help = "what the features of the time are of",
                .choices = {"1000t", "1000t-1", "1-t"},
                .saved = time_input != "1000t"},
          time_input);
    visit(Field{.name = "gelu",
                .help = "GELU of the feed-forward: exact, or the approximation by tanh",
                .choices = {"erf", "tanh"},
                .saved = gelu != "erf"},
          gelu);
    visit(Field{.name = "learned_variance",
                .help = "the network also predicts a variance, which is not used",
                .saved = learned_variance},
          learned_variance);
  }

  template <class Visit>
  void video_fields(Visit&& visit) {
    const bool saved = video();
    visit(Field{.name = "patch_time",
                .help = "latent frames per block (clips)",
                .least = 1,
                .most = 256,
                .saved = saved},
          patch_time);
    visit(
        Field{
            .name = "text_width", .help = "width of a text token", .least = 1, .most = 65536, .saved = saved},
        text_width);
    visit(Field{.name = "temporal_mask",
                .help = "what a block of frames sees",
                .choices = {"none", "block-causal"},
                .saved = saved},
          temporal_mask);
    visit(Field{.name = "window",
                .help = "blocks a block sees, including itself; 0: all",
                .least = 0,
                .most = 1e6,
                .saved = saved},
          window);
    visit(Field{.name = "own_every",
                .help = "every N-th layer sees only its own block; 0: none",
                .least = 0,
                .most = 1000,
                .saved = saved},
          own_every);
    visit(Field{.name = "time_code",
                .help = "embedding of a block's index",
                .choices = {"periodic", "geometric", "relative", "none"},
                .saved = saved},
          time_code);
    visit(Field{.name = "time_period",
                .help = "period of that embedding, in blocks",
                .least = 2,
                .most = 1e6,
                .saved = saved},
          time_period);
    visit(Field{.name = "no_text",
                .help = "what stands for no text: a learned token, or a mask of zeros",
                .choices = {"token", "mask"},
                .saved = saved && no_text != "token"},
          no_text);
  }
};

// What the fields cannot say one by one: dim divisible by 4 (by 8, by heads), a variant that is what its name
// says. Throws pom::Error that begins with `where`.
void check_config(const NetworkConfig& config, std::string_view where = "network: ");

// "DiPoM-S/2" … "DiPoM-XL/8", "DiT-S/2" … "DiT-XL/8", "V-DiPoM-S/2" … "V-DiPoM-XL/2", "V-DiT-S/2" …
const std::vector<std::string>& variant_names();
// By its name, in any letter case; an unknown one is an error that suggests the nearest.
NetworkConfig variant(std::string_view name);

}  // namespace pom::models
