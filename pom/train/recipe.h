// A run as a person writes it down: recipes/*.toml, declared field by field. The resolved copy in a run's
// folder, `--set a.b=c`, help and messages come from these declarations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/fields.h"
#include "pom/codecs/codec.h"
#include "pom/codecs/text.h"
#include "pom/data/dataset.h"
#include "pom/diffusion/loss.h"
#include "pom/generate/folder.h"
#include "pom/models/config.h"

namespace pom::train {

struct RunConfig {
  std::string name;       // of the run, its folder and its model; the recipe's file name where empty
  std::string about;      // one line for people
  std::int64_t seed = 0;  // everything random follows from it
  std::int64_t steps = 1000;
  std::string device = "auto";  // auto, cpu, cuda, cuda:1
  std::string precision = "fp32";
  std::int64_t threads = 0;  // 0: one for each core

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "name",
                .help =
                    "of the run and its model: letters, digits, '.', '_', '-'; the recipe's file name where "
                    "empty"},
          name);
    visit(Field{.name = "about", .help = "one line for people"}, about);
    visit(Field{.name = "seed", .help = "everything random follows from it", .least = 0}, seed);
    visit(Field{.name = "steps", .help = "of the optimizer", .least = 1, .most = 1e9}, steps);
    visit(Field{.name = "device", .help = "auto, cpu, cuda or cuda:N"}, device);
    visit(Field{.name = "precision",
                .help = "of products and activations; weights, sums and moments stay fp32 (fp64)",
                .choices = {"fp32", "bf16", "fp64"}},
          precision);
    visit(Field{.name = "threads", .help = "0: one for each core", .least = 0, .most = 1024}, threads);
  }
};

struct BatchConfig {
  std::int64_t size = 64;       // pictures that the optimizer sees in a step
  std::int64_t accumulate = 1;  // parts in which a batch is computed, one after the other
  double label_drop = 0.1;
  std::int64_t latest_block = 0;  // number that the first block of a clip may get
  double cut = 0;                 // share of the steps whose clips are cut into shorter ones
  std::int64_t cut_frames = 0;    // as long as these
  std::string time = "uniform";
  double time_shift = 1;
  bool checkpointing = false;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "size", .help = "pictures in a step of the optimizer", .least = 1, .most = 1e7},
          size);
    visit(Field{.name = "accumulate",
                .help = "parts in which a batch is computed, to save memory",
                .least = 1,
                .most = 1e5},
          accumulate);
    visit(Field{.name = "label_drop",
                .help = "share of examples without class or caption, for guidance",
                .least = 0,
                .most = 1},
          label_drop);
    visit(Field{.name = "latest_block",
                .help = "clips begin at a block from 0 to this one, so that every time is familiar",
                .least = 0,
                .most = 1e6},
          latest_block);
    visit(Field{.name = "cut",
                .help = "share of the steps whose clips are cut into shorter ones, so that a network meets "
                        "more than one length",
                .least = 0,
                .most = 1},
          cut);
    visit(Field{.name = "cut_frames",
                .help = "of the shorter ones: a divisor of data.frames",
                .least = 0,
                .most = 1e6},
          cut_frames);
    visit(Field{.name = "time",
                .help = "how times are drawn: uniform, or logit-normal (more in the middle)",
                .choices = {"uniform", "logit-normal"}},
          time);
    visit(Field{.name = "time_shift",
                .help = "above 1: more of the times near noise, as shift does with the steps of a sampler",
                .least = 0.001,
                .most = 1000},
          time_shift);
    visit(Field{.name = "checkpointing", .help = "compute blocks again in the backward pass, to save memory"},
          checkpointing);
  }
};

struct LossConfig {
  std::string kind = "mse";
  double gamma = 5;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "kind",
                .help = "mse, or min-snr (weighted by time)",
                .choices = diffusion::Loss::names()},
          kind);
    visit(Field{.name = "gamma", .help = "of min-snr", .least = 0.1, .most = 1000}, gamma);
  }
};

struct OptimizerConfig {
  std::string kind = "adamw";
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.95;      // of muon
  double weight_decay = 0.01;  // of matrices; never of biases and embeddings
  double clip = 1;             // of the gradient's norm; 0: none
  std::int64_t warmup = 0;     // steps over which the rate rises from 0
  std::int64_t cooldown = 0;   // last steps over which it falls, lr·(1 − √(i/cooldown))

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "kind",
                .help = "adamw; or muon, which makes the steps of the matrices between layers orthogonal, "
                        "with adamw for all else",
                .choices = {"adamw", "muon"}},
          kind);
    visit(Field{.name = "lr", .help = "learning rate", .least = 0, .most = 100}, lr);
    visit(Field{.name = "beta1", .help = "of the first moment", .least = 0, .most = 0.999999}, beta1);
    visit(Field{.name = "beta2", .help = "of the second moment", .least = 0, .most = 0.999999999}, beta2);
    visit(Field{.name = "eps", .help = "added to the root of the second moment", .least = 0, .most = 1}, eps);
    visit(Field{.name = "momentum", .help = "of muon", .least = 0, .most = 0.999999}, momentum);
    visit(Field{.name = "weight_decay",
                .help = "of matrices; never of biases and embeddings",
                .least = 0,
                .most = 10},
          weight_decay);
    visit(Field{.name = "clip", .help = "largest norm of the gradient; 0: any", .least = 0, .most = 1e6},
          clip);
    visit(Field{.name = "warmup", .help = "steps over which the rate rises", .least = 0, .most = 1e9},
          warmup);
    visit(Field{.name = "cooldown",
                .help = "last steps over which it falls to zero, as 1 - sqrt",
                .least = 0,
                .most = 1e9},
          cooldown);
  }
};

struct EmaConfig {
  double decay = 0.999;
  std::int64_t every = 1;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "decay",
                .help = "of the average of weights; it begins at once, with a shorter memory",
                .least = 0,
                .most = 0.9999999},
          decay);
    visit(Field{.name = "every", .help = "steps between updates", .least = 1, .most = 1e6}, every);
  }
};

struct LogConfig {
  std::int64_t every = 10;
  std::int64_t validate_every = 500;
  std::int64_t sample_every = 0;
  std::int64_t sample_count = 4;
  std::int64_t checkpoint_every = 1000;
  std::int64_t keep = 3;
  std::string model_dtype = "bf16";

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "every", .help = "steps between lines of the log", .least = 1, .most = 1e9}, every);
    visit(
        Field{
            .name = "validate_every", .help = "steps between validations; 0: never", .least = 0, .most = 1e9},
        validate_every);
    visit(
        Field{
            .name = "sample_every", .help = "steps between sample sheets; 0: never", .least = 0, .most = 1e9},
        sample_every);
    visit(Field{.name = "sample_count",
                .help = "pictures of each class on a sheet (of the first 10 classes)",
                .least = 1,
                .most = 100},
          sample_count);
    visit(Field{.name = "checkpoint_every", .help = "steps between checkpoints", .least = 1, .most = 1e9},
          checkpoint_every);
    visit(Field{.name = "keep", .help = "checkpoints that are kept", .least = 1, .most = 1e6}, keep);
    visit(Field{.name = "model_dtype",
                .help = "in which the model's weights are stored",
                .choices = {"bf16", "fp32"}},
          model_dtype);
  }
};

struct Recipe {
  RunConfig run;
  data::DataConfig data;
  models::NetworkConfig network;
  generate::DiffusionConfig diffusion;
  codecs::CodecConfig codec;
  codecs::TextConfig text;
  BatchConfig batch;
  LossConfig loss;
  OptimizerConfig optimizer;
  EmaConfig ema;
  LogConfig log;
  generate::SampleDefaults sample;  // of the sheets, and of the model's config.json

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "run", .help = "the run as a whole"}, run);
    visit(Field{.name = "data", .help = "what it looks at"}, data);
    visit(Field{.name = "network", .help = "what learns"}, network);
    visit(Field{.name = "diffusion", .help = "what it predicts"}, diffusion);
    visit(Field{.name = "codec", .help = "what turns pictures into latents"}, codec);
    visit(Field{.name = "text", .help = "what turns captions into tokens", .saved = network.video()}, text);
    visit(Field{.name = "batch", .help = "what a step sees"}, batch);
    visit(Field{.name = "loss", .help = "how wrong it is"}, loss);
    visit(Field{.name = "optimizer", .help = "how it gets better"}, optimizer);
    visit(Field{.name = "ema", .help = "the average of weights, which is the model"}, ema);
    visit(Field{.name = "log", .help = "what is written, and how often"}, log);
    visit(Field{.name = "sample", .help = "how sheets are sampled, and the model's defaults"}, sample);
  }
};

// Reads a recipe and changes fields as `--set` says ("optimizer.lr=2e-4"). A variant's name gives the
// defaults of the rest of the network, text.width that of network.text_width; classes and channels that the
// recipe does not give come from the data set when it is opened. Errors name file, line and field.
Recipe read_recipe(const std::filesystem::path& path, std::span<const std::string> sets = {});
Recipe parse_recipe(std::string_view toml, std::string_view source, std::span<const std::string> sets = {});

// What the fields cannot say one by one: a name that is no name of a folder, a cooldown longer than the run,
// sides that the patch does not divide, a batch that accumulate does not divide, a sampler that does not
// exist, …. What passes here makes a model folder that can be read.
void check_recipe(const Recipe& recipe, std::string_view source);

// Classes and channels as the data has them; a Refusal where the recipe says otherwise.
void complete_recipe(Recipe& recipe, const data::Dataset& dataset);

// Every field of a complete recipe with its help as a comment; read_recipe gives the same recipe back.
std::string recipe_text(Recipe recipe);

// What differs between two recipes, one "optimizer.lr: 0.0001 -> 0.0002" each.
struct Change {
  std::string field, before, after;
  bool allowed = false;  // by a resumed run: it does not change what the state means
};
std::vector<Change> changes(Recipe before, Recipe after);

}  // namespace pom::train
