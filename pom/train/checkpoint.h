// Checkpoints: everything that training needs to go on as if it had never stopped, in one safetensors file.
//
//   checkpoints/step_00001000.safetensors
//     tensors    "weights/NAME", "ema/NAME", "moment1/NAME", "moment2/NAME" of every parameter NAME
//     metadata   "format" 1, "state" (JSON of State), "recipe" (TOML), "sha256" of all else: of state, recipe
//                and of each tensor by name its name, dtype, shape and bytes, each after its length and ":"
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pom/base/fields.h"
#include "pom/models/weights.h"

namespace pom::train {

// What is not a tensor. Whatever is random in training is a function of `seed` and `draws`, and of the place
// in the data.
struct State {
  std::int64_t step = 0;     // of the optimizer, done
  std::int64_t updates = 0;  // of them those that changed the weights: what Adam's corrections count
  std::int64_t seed = 0;
  std::int64_t draws = 0;    // batches for which noise, times and dropped labels were drawn
  std::int64_t place = 0;    // of the loader
  std::int64_t skipped = 0;  // steps that were not finite
  std::int64_t bad_in_row = 0;
  std::int64_t rollbacks = 0;
  std::int64_t cooldown_from = -1;  // the step at which a cooldown began that the recipe does not plan
  std::int64_t cooldown_steps = 0;
  std::int64_t examples = 0;  // in the data; 0: without end
  std::string classes;        // SHA-256 of their names
  std::string words;          // of a text encoder, one a line
  double seconds = 0;         // spent in training, over all calls

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "step", .help = "steps done", .least = 0}, step);
    visit(Field{.name = "updates", .help = "steps that changed the weights", .least = 0}, updates);
    visit(Field{.name = "seed", .help = "of everything random"}, seed);
    visit(Field{.name = "draws", .help = "batches noise was drawn for", .least = 0}, draws);
    visit(Field{.name = "place", .help = "examples taken", .least = 0}, place);
    visit(Field{.name = "skipped", .help = "steps that were not finite", .least = 0}, skipped);
    visit(Field{.name = "bad_in_row", .help = "of them, the last in a row", .least = 0}, bad_in_row);
    visit(Field{.name = "rollbacks", .help = "returns to an earlier checkpoint", .least = 0}, rollbacks);
    visit(
        Field{
            .name = "cooldown_from", .help = "step at which a cooldown was asked for; -1: none", .least = -1},
        cooldown_from);
    visit(Field{.name = "cooldown_steps", .help = "its length", .least = 0}, cooldown_steps);
    visit(Field{.name = "examples", .help = "in the data; 0: without end", .least = 0}, examples);
    visit(Field{.name = "classes", .help = "SHA-256 of their names"}, classes);
    visit(Field{.name = "words", .help = "of a text encoder, one a line", .saved = !words.empty()}, words);
    visit(Field{.name = "seconds", .help = "spent in training", .least = 0}, seconds);
  }
};

struct Checkpoint {
  State state;
  std::string recipe;                              // TOML
  models::Weights weights, ema, moment1, moment2;  // on the CPU
};

// "step_00001000.safetensors"
std::filesystem::path checkpoint_name(std::int64_t step);

// Whole or not at all, with its digest inside. `folder` exists. The tensors are fp32 or fp64, and are written
// from where they are, without a copy.
void write_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint);

// Digest, names and shapes are checked: anything that is not what was written is a pom::Error that says how.
Checkpoint read_checkpoint(const std::filesystem::path& path);

// All files that are named like checkpoints, the newest first.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

// The newest that is whole, or the newest but so many of them; the oldest where there are fewer, nothing
// where there is none. Each one that is damaged is told to `on_damaged` and left where it is. No more than
// one is in memory at a time.
std::optional<Checkpoint> newest_checkpoint(
    const std::filesystem::path& folder,
    const std::function<void(const std::filesystem::path&, const std::string& why)>& on_damaged,
    std::int64_t passed_over = 0);

// The step of the newest of them, by its name; -1 where there is none.
std::int64_t newest_step(const std::filesystem::path& folder);

// Removes all but the newest `keep`, and temporaries that a crash has left: for who holds the run's lock.
// Newest by step, and newest by the time of writing: they differ where a later one was found damaged and
// training went on before it, and then both are kept.
void prune_checkpoints(const std::filesystem::path& folder, std::int64_t keep);

}  // namespace pom::train
