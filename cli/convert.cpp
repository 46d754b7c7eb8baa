// `pom convert`: networks and autoencoders that others have trained, as folders that pom takes; and back.
#include "pom/generate/convert.h"

#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/common_fields.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/output_names.h"
#include "cli/terminal.h"
#include "pom/generate/convert_vae.h"
#include "pom/generate/set_field.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleVae = "vae-single";

std::vector<std::string> sources() {
  std::vector<std::string> names = models::origin_names();
  names.push_back(kSingleVae);
  return names;
}

struct ConvertFlags {
  std::string source, from, to, output, weights;
  std::vector<std::string> set;
  bool check = false, yes = false, json = false, quiet = false;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view what = "What to convert", result = "Result";
    visit(Field{.name = "source",
                .help = "a .safetensors file (--from), or a model folder (--to)",
                .value = "SOURCE",
                .group = what},
          source);
    visit(Field{.name = "from",
                .help = "whose weights the file has",
                .value = "NAME",
                .group = what,
                .choices = sources()},
          from);
    visit(Field{.name = "to",
                .help = "whose names the file to write has",
                .value = "NAME",
                .group = what,
                .choices = models::origin_names()},
          to);
    visit(Field{.name = "weights",
                .help = "of a training checkpoint: its EMA or its own weights (default: ema, once it has "
                        "begun)",
                .value = "NAME",
                .group = what,
                .choices = {"ema", "model"}},
          weights);
    visit(Field{.name = "set",
                .help = "set a field of config.json that the weights do not tell, e.g. network.order=3; can "
                        "be repeated",
                .value = "A.B=C",
                .group = what},
          set);
    visit(Field{.name = "output",
                .help = "folder to write; with --to a .safetensors file",
                .value = "PATH",
                .group = result},
          output);
    visit(Field{.name = "check",
                .help = "read the result again: there and back bit for bit, and one evaluation",
                .group = result},
          check);
    visit(yes_field(result), yes);
    visit(json_field(result), json);
    visit(quiet_field(result), quiet);
  }
};

void check_flags(const ConvertFlags& flags) {
  if (flags.source.empty()) throw UsageError("expected a .safetensors file or a model folder, got nothing");
  if (flags.from.empty() == flags.to.empty())
    throw UsageError(flags.from.empty() ? "expected --from NAME, or --to NAME of a model folder, got neither"
                                        : "expected --from or --to, got both");
  if (flags.output.empty()) throw UsageError("--output: expected a path to write, got nothing");
  const bool network = !flags.from.empty() && flags.from != kSingleVae;
  if (!flags.weights.empty() && !network)
    throw UsageError("--weights: expected it with --from and a network alone");
  if (!flags.to.empty() && !flags.set.empty())
    throw UsageError("--set: expected it with --from alone: a model folder has its config.json");
  if (flags.check && !network) throw UsageError("--check: expected it with --from and a network alone");
  as_usage([&] {  // here for its mistakes alone
    generate::ModelConfig model;
    generate::VaeConfig vae;
    return network ? generate::set_json_fields(flags.set, model) : generate::set_json_fields(flags.set, vae);
  });
}

// Nothing is overwritten that nobody said may be.
void check_target(const ConvertFlags& flags) {
  std::error_code ignored;
  const fs::path target = flags.output;
  const bool there = fs::exists(target, ignored);
  if (!flags.to.empty()) {
    if (target.extension() != ".safetensors")
      throw UsageError("--output: expected a name that ends in .safetensors, got " + flags.output);
    if (there && (fs::is_directory(target, ignored) || !flags.yes))
      throw UsageError("--output: " + flags.output + " already exists; -y overwrites files");
    return;
  }
  if (there && !fs::is_directory(target, ignored))
    throw UsageError("--output: expected a folder, got the file " + flags.output);
  if (there && !fs::is_empty(target, ignored) && !flags.yes)
    throw UsageError("--output: " + flags.output + " already exists; -y overwrites the model in it");
}

generate::ConvertOptions options_of(const ConvertFlags& flags) {
  return {.origin = models::origin_named(flags.from),
          .copy = flags.weights == "ema"     ? models::WeightCopy::ema
                  : flags.weights == "model" ? models::WeightCopy::model
                                             : models::WeightCopy::best,
          .set = flags.set};
}

std::string converted_text(const models::NetworkConfig& c) {
  return detail::concat(
      c.depth, " blocks of ", c.dim, ", patch ", c.patch, ", ", c.channels, " channels, ",
      c.video() ? detail::concat("text of width ", c.text_width) : detail::concat(c.classes, " classes"));
}

int convert_network(const ConvertFlags& flags) {
  const generate::ConvertOptions options = options_of(flags);
  const generate::ConvertedModel model = generate::convert_model(flags.source, options);
  generate::write_converted(flags.output, model);
  JsonObject result = JsonObject().add("folder", flags.output).add("tensors", std::ssize(model.weights));
  if (!model.copy.empty()) result.add("weights", model.copy);
  if (!flags.quiet) {
    say(converted_text(model.config.network) + (model.copy.empty() ? "" : "; weights: " + model.copy));
    for (const std::string& note : model.notes) say(note);
  }
  if (flags.check) {
    const generate::ConversionCheck done =
        generate::check_converted(flags.source, flags.output, model, options.origin);
    result.add("checked", done.tensors).add("difference", done.difference);
    if (!flags.quiet)
      say(detail::concat("checked: ", done.tensors,
                         " tensors there and back bit for bit; sampling and training "
                         "forms differ by ",
                         done.difference));
  }
  print(flags.json ? result.text() : flags.output);
  return Exit::ok;
}

int convert_back(const ConvertFlags& flags) {
  const models::Weights weights = generate::weights_for(flags.source, models::origin_named(flags.to));
  models::write_weights(flags.output, weights, std::nullopt);
  print(flags.json ? JsonObject().add("file", flags.output).add("tensors", std::ssize(weights)).text()
                   : flags.output);
  return Exit::ok;
}

int convert_vae(const ConvertFlags& flags) {
  const generate::ConvertedVae vae = generate::convert_single_vae(flags.source, flags.set);
  generate::write_vae_folder(flags.output, vae);
  if (!flags.quiet)
    for (const std::string& note : vae.notes) say(note);
  print(flags.json ? JsonObject().add("folder", flags.output).add("tensors", std::ssize(vae.tensors)).text()
                   : flags.output);
  return Exit::ok;
}

int run_convert(const ConvertFlags& flags) {
  check_flags(flags);
  check_target(flags);
  make_folder_of(flags.output);
  if (!flags.to.empty()) return convert_back(flags);
  return flags.from == kSingleVae ? convert_vae(flags) : convert_network(flags);
}

Action declare_convert(Flags& flags) {
  const auto options = std::make_shared<ConvertFlags>();
  flags.positional("source");
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.letter("quiet", 'q');
  flags.repeated("set");
  flags.add(*options);
  return [options] { return run_convert(*options); };
}

}  // namespace

Command convert_command() {
  return {
      .name = "convert",
      .summary = "weights that others trained as a model folder, and back",
      .usage = "convert SOURCE --from NAME -o DIR [flags]",
      .about =
          "Turns weights in a .safetensors file into a model folder: those of the paper's authors (homm, "
          "homm-upscale, homm-text2video) and of the official DiT and SiT. With vae-single it turns an "
          "autoencoder in a single file into a folder as diffusers has it. Every tensor is accounted for. "
          "Checkpoints (.ckpt, .pt, .bin) go through tools/unpickle.py first.\n\n"
          "With --to it writes the weights of a model folder under the names of the other's code.",
      .examples =
          "pom convert last.safetensors --from homm -o out/dipom --check\n"
          "pom convert out/dipom --to homm -o out/dipom.safetensors",
      .declare = declare_convert,
  };
}

}  // namespace pom::cli
