// A few steps of training with everything laid open, for referees that are not written in C++.
//
//   trainer_tool RECIPE OUT [A.B=C …]   runs the recipe's steps and writes, for N steps of B examples:
//
//     start/NAME                weights before
//     pictures (N, B, …)        uint8 or fp32, as the loader gave them
//     noise, times, labels      (N, B, …) what was drawn, labels with those dropped
//     loss, norm, rate (N)      of each step
//     gradient/NAME             of the first step, before the clip
//     weights/NAME, ema/NAME, moment1/NAME, moment2/NAME   after the last step
#include <iostream>
#include <map>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/io/safetensors.h"
#include "pom/train/device.h"
#include "pom/train/learner.h"

namespace {

using namespace pom;

using Tensors = std::map<std::string, at::Tensor>;

io::safetensors::Dtype dtype_of(const at::Tensor& t) {
  using io::safetensors::Dtype;
  if (t.scalar_type() == at::kByte) return Dtype::U8;
  if (t.scalar_type() == at::kLong) return Dtype::I64;
  return t.scalar_type() == at::kDouble ? Dtype::F64 : Dtype::F32;
}

void write(const char* path, Tensors tensors) {
  std::vector<io::safetensors::TensorView> views;
  for (auto& [name, t] : tensors) {
    t = t.contiguous();
    views.push_back(
        {name,
         dtype_of(t),
         {t.sizes().data(), t.sizes().size()},
         {static_cast<const std::byte*>(t.const_data_ptr()), static_cast<std::size_t>(t.nbytes())}});
  }
  io::safetensors::write(path, views);
}

void add(Tensors& all, const std::string& prefix, const models::Weights& weights) {
  for (const auto& [name, t] : weights) all[prefix + "/" + name] = t;
}

struct Record {
  std::vector<at::Tensor> pictures, noise, times, labels;
  std::vector<double> loss, norm, rate;
};

void record_draws(Record& record, const train::Prepared& prepared) {
  std::vector<at::Tensor> noise, times, labels;
  for (std::size_t i = 0; i < prepared.draws.size(); ++i) {
    noise.push_back(prepared.draws[i].noise);
    times.push_back(prepared.draws[i].times);
    labels.push_back(prepared.told[i][0]);
  }
  record.pictures.push_back(prepared.batch.pictures);
  record.noise.push_back(at::cat(noise));
  record.times.push_back(at::cat(times));
  record.labels.push_back(at::cat(labels));
}

void run(const char* recipe_path, const char* out, std::vector<std::string> sets) {
  train::Recipe recipe = train::read_recipe(recipe_path, sets);
  const data::Split data = data::open_dataset(recipe.data, static_cast<std::uint64_t>(recipe.run.seed));
  train::complete_recipe(recipe, *data.training);
  train::Learner learner(recipe, at::kCPU);
  data::Loader loader(data.training,
                      {.batch = recipe.batch.size, .seed = static_cast<std::uint64_t>(recipe.run.seed)});
  Tensors all;
  add(all, "start", learner.parameters().named(learner.parameters().values()));
  Record record;
  train::State state;
  state.seed = recipe.run.seed;
  while (state.step < recipe.run.steps) {
    const train::Prepared prepared = learner.prepare(loader.next(), state.seed, state.draws);
    record_draws(record, prepared);
    const train::StepResult result = learner.step(prepared, state);
    check(result.finite, "trainer_tool: step ", state.step, " was not finite: ", result.culprit);
    record.loss.push_back(result.loss);
    record.norm.push_back(result.norm);
    record.rate.push_back(result.rate);
    if (state.step == 1) add(all, "gradient", learner.parameters().named(learner.parameters().gradients()));
  }
  const train::Checkpoint end = learner.snapshot(state);
  add(all, "weights", end.weights);
  add(all, "ema", end.ema);
  add(all, "moment1", end.moment1);
  add(all, "moment2", end.moment2);
  all["pictures"] = at::stack(record.pictures);
  all["noise"] = at::stack(record.noise);
  all["times"] = at::stack(record.times);
  all["labels"] = at::stack(record.labels);
  all["loss"] = at::tensor(record.loss, at::kDouble);
  all["norm"] = at::tensor(record.norm, at::kDouble);
  all["rate"] = at::tensor(record.rate, at::kDouble);
  write(out, all);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: trainer_tool RECIPE OUT [A.B=C ...]\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], {argv + 3, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "trainer_tool: " << error.what() << "\n";
    return 1;
  }
}
