// `pom export`: the model of a checkpoint as a folder, ready to sample.
#include "pom/train/export.h"

#include <memory>

#include "cli/command.h"
#include "cli/common_fields.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/output_names.h"
#include "cli/terminal.h"
#include "pom/train/refusal.h"

namespace pom::cli {
namespace {

struct ExportOptions {
  std::string checkpoint, output, weights = "ema";
  bool json = false;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "checkpoint",
                .help = "a file of a run's checkpoints/",
                .value = "CHECKPOINT",
                .group = "Checkpoint"},
          checkpoint);
    visit(Field{.name = "output", .help = "folder of the model to write", .value = "DIR", .group = "Result"},
          output);
    visit(Field{.name = "weights",
                .help = "ema: the EMA of the weights; raw: the weights of the step itself",
                .value = "NAME",
                .group = "Result",
                .choices = {"ema", "raw"}},
          weights);
    visit(json_field("Result"), json);
  }
};

int run(const ExportOptions& options) {
  if (options.checkpoint.empty()) throw UsageError("expected a checkpoint, got nothing");
  if (options.output.empty()) throw UsageError("--output: expected a folder to write, got nothing");
  make_folder_of(options.output);
  train::Exported done;
  try {
    done = train::export_model(
        options.checkpoint, options.output,
        options.weights == "raw" ? train::ExportedWeights::raw : train::ExportedWeights::ema);
  } catch (const train::Refusal& refusal) {
    throw UsageError(refusal.what());
  }
  if (!done.class_names) say("the names of the classes are no longer known: they are numbered");
  if (options.json)
    print(JsonObject().add("folder", options.output).add("step", done.step).text());
  else
    print(options.output);
  return Exit::ok;
}

Action declare_export(Flags& flags) {
  const auto options = std::make_shared<ExportOptions>();
  flags.positional("checkpoint");
  flags.letter("output", 'o');
  flags.add(*options);
  return [options] { return run(*options); };
}

}  // namespace

Command export_command() {
  return {
      .name = "export",
      .summary = "write the model of a checkpoint as a folder",
      .usage = "export CHECKPOINT -o DIR [flags]",
      .about =
          "Writes the model of any checkpoint of a run as a model folder that pom sample, eval and libpom "
          "take. The newest one lies in the run's model/ already, and pom sample --model RUN finds it there.",
      .examples = "pom export out/tiny/checkpoints/step_00000400.safetensors -o out/tiny400",
      .declare = declare_export,
  };
}

}  // namespace pom::cli
