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
#include "pom/codecs/codec_config.h"
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
                .help = "name of the run and its model: letters, digits, '.', '_', '-' (default: the "
                        "recipe's file name)"},
          name);
    visit(Field{.name = "about", .help = "description"}, about);
    visit(Field{.name = "seed", .help = "seed of all randomness", .least = 0}, seed);
    visit(Field{.name = "steps", .help = "optimizer steps", .least = 1, .most = 1e9}, steps);
    visit(Field{.name = "device", .help = "auto, cpu, cuda or cuda:N"}, device);
    visit(Field{.name = "precision",
                .help = "dtype of GEMMs and activations; weights, sums and moments stay fp32 (fp64)",
                .choices = {"fp32", "bf16", "fp64"}},
          precision);
    visit(Field{.name = "threads", .help = "CPU threads; 0: one per core", .least = 0, .most = 1024},
          threads);
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
    visit(Field{.name = "size", .help = "batch size of an optimizer step", .least = 1, .most = 1e7}, size);
    visit(
        Field{
            .name = "accumulate", .help = "micro-batches per step, to save memory", .least = 1, .most = 1e5},
        accumulate);
    visit(Field{.name = "label_drop",
                .help = "share of dropped labels or captions, for guidance",
                .least = 0,
                .most = 1},
          label_drop);
    visit(Field{.name = "latest_block",
                .help = "first block of a clip is drawn from 0 to this, so that the network sees every time",
                .least = 0,
                .most = 1e6},
          latest_block);
    visit(Field{.name = "cut",
                .help = "share of steps whose clips are cut into shorter ones, so that the network sees "
                        "more than one length",
                .least = 0,
                .most = 1},
          cut);
    visit(Field{.name = "cut_frames",
                .help = "frames of these; must divide data.frames",
                .least = 0,
                .most = 1e6},
          cut_frames);
    visit(Field{.name = "time",
                .help = "how times are drawn: uniform, or logit-normal (more in the middle)",
                .choices = {"uniform", "logit-normal"}},
          time);
    visit(Field{.name = "time_shift",
                .help = "above 1: more times at high noise, like sample.shift",
                .least = 0.001,
                .most = 1000},
          time_shift);
    visit(Field{.name = "checkpointing",
                .help = "activation checkpointing: recompute blocks in the backward pass, to save memory"},
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
    visit(Field{.name = "gamma", .help = "gamma of min-snr", .least = 0.1, .most = 1000}, gamma);
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
                .help = "adamw, or muon (for matrices between layers, adamw for the rest)",
                .choices = {"adamw", "muon"}},
          kind);
    visit(Field{.name = "lr", .help = "learning rate", .least = 0, .most = 100}, lr);
    visit(Field{.name = "beta1", .help = "decay of the first moment", .least = 0, .most = 0.999999}, beta1);
    visit(Field{.name = "beta2", .help = "decay of the second moment", .least = 0, .most = 0.999999999},
          beta2);
    visit(Field{.name = "eps", .help = "added to the root of the second moment", .least = 0, .most = 1}, eps);
    visit(Field{.name = "momentum", .help = "momentum of muon", .least = 0, .most = 0.999999}, momentum);
    visit(Field{.name = "weight_decay",
                .help = "weight decay of matrices; none for biases and embeddings",
                .least = 0,
                .most = 10},
          weight_decay);
    visit(Field{.name = "clip", .help = "largest gradient norm; 0: no clipping", .least = 0, .most = 1e6},
          clip);
    visit(Field{.name = "warmup", .help = "warm-up steps", .least = 0, .most = 1e9}, warmup);
    visit(Field{.name = "cooldown",
                .help = "last steps, over which lr decays to zero as 1 - sqrt",
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
    visit(Field{.name = "decay", .help = "EMA decay; shorter at the start", .least = 0, .most = 0.9999999},
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
                .help = "images per class on a sheet (of the first 10 classes), or per caption (of 16)",
                .least = 1,
                .most = 100},
          sample_count);
    visit(Field{.name = "checkpoint_every", .help = "steps between checkpoints", .least = 1, .most = 1e9},
          checkpoint_every);
    visit(Field{.name = "keep", .help = "checkpoints to keep", .least = 1, .most = 1e6}, keep);
    visit(Field{.name = "model_dtype", .help = "dtype of the saved weights", .choices = {"bf16", "fp32"}},
          model_dtype);
  }
};

// Folders of others' networks that training uses as they are; a model folder gets copies of them.
struct EncodersConfig {
  std::string vae = {};   // of codec.kind autoencoder-kl and cogvideox
  std::string text = {};  // of text.kind t5

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "vae", .help = "folder of the autoencoder, as diffusers writes it"}, vae);
    visit(Field{.name = "text", .help = "folder of the text encoder, as transformers writes it"}, text);
  }
};

// How ranks share the work; nothing of it changes what a checkpoint means.
struct ParallelConfig {
  std::string shard = "none";
  std::int64_t sequence = 1;  // ranks that share the tokens of one example
  bool exact = false;
  std::string gradients = "fp32";
  bool overlap = true;
  double timeout = 600;

  bool divides_gradients() const { return shard == "gradients" || shard == "parameters"; }

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "shard",
                .help = "what ranks divide among them: nothing, optimizer state and average, gradients too, "
                        "parameters too",
                .choices = {"none", "optimizer", "gradients", "parameters"}},
          shard);
    visit(Field{.name = "sequence",
                .help = "ranks that share the tokens of one image or clip",
                .least = 1,
                .most = 4096},
          sequence);
    visit(
        Field{.name = "exact",
              .help = "the same bits with 1, 2 and 4 ranks (always so on CPUs), for more memory and traffic"},
        exact);
    visit(Field{.name = "gradients",
                .help = "dtype in which gradients are sent; bf16 halves the traffic and is never exact",
                .choices = {"fp32", "bf16"}},
          gradients);
    visit(Field{.name = "overlap",
                .help = "send gradients while the backward pass runs; off only to see what that gains"},
          overlap);
    visit(Field{.name = "timeout",
                .help = "seconds that ranks wait for one that does not answer",
                .least = 1,
                .most = 1e6},
          timeout);
  }
};

struct Recipe {
  RunConfig run;
  data::DataConfig data;
  models::NetworkConfig network;
  generate::DiffusionConfig diffusion;
  codecs::CodecConfig codec;
  codecs::TextConfig text;
  EncodersConfig encoders;
  BatchConfig batch;
  LossConfig loss;
  OptimizerConfig optimizer;
  EmaConfig ema;
  LogConfig log;
  ParallelConfig parallel;
  generate::SampleDefaults sample;  // of the sheets, and of the model's config.json

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "run", .help = "the run"}, run);
    visit(Field{.name = "data", .help = "data"}, data);
    visit(Field{.name = "network", .help = "network"}, network);
    visit(Field{.name = "diffusion", .help = "diffusion"}, diffusion);
    visit(Field{.name = "codec", .help = "codec"}, codec);
    visit(Field{.name = "text", .help = "text encoder", .saved = network.video()}, text);
    const bool others = !encoders.vae.empty() || !encoders.text.empty();
    visit(Field{.name = "encoders", .help = "folders of others' networks", .saved = others}, encoders);
    visit(Field{.name = "batch", .help = "batches"}, batch);
    visit(Field{.name = "loss", .help = "loss"}, loss);
    visit(Field{.name = "optimizer", .help = "optimizer"}, optimizer);
    visit(Field{.name = "ema", .help = "EMA of the weights, which is the model"}, ema);
    visit(Field{.name = "log", .help = "logging and checkpoints"}, log);
    visit(Field{.name = "parallel", .help = "several GPUs and machines"}, parallel);
    visit(Field{.name = "sample", .help = "sampling defaults and sample sheets"}, sample);
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

// Classes and channels as the data has them; a Refusal where the recipe says otherwise. Latents are pixels
// divided by `factor`.
void complete_recipe(Recipe& recipe, const data::Dataset& dataset, std::int64_t factor = 1);

// Every field of a complete recipe with its help as a comment; read_recipe gives the same recipe back.
std::string recipe_text(Recipe recipe);

// What differs between two recipes, one "optimizer.lr: 0.0001 -> 0.0002" each.
struct Change {
  std::string field, before, after;
  bool allowed = false;  // by a resumed run: it does not change what the state means
};
std::vector<Change> changes(Recipe before, Recipe after);

}  // namespace pom::train
