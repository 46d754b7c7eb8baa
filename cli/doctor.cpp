// `pom doctor`: what this machine and a model folder are like, line by line, with the fix under what is not
// well.
#include <algorithm>
#include <memory>

#include "cli/checks.h"
#include "cli/command.h"
#include "cli/encoder_folder.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/json.h"
#include "cli/terminal.h"
#include "pom/generate/model_names.h"

namespace pom::cli {
namespace {

struct DoctorOptions {
  std::string model;
  bool json = false;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "model",
                .help = "folder to check as well: of a model, an autoencoder or a text encoder",
                .value = "MODEL",
                .group = "About"},
          model);
    visit(Field{.name = "json",
                .help = "one JSON object: the checks, each with its state, text and fix",
                .group = "Result"},
          json);
  }
};

const char* state_name(State state) {
  return state == State::ok ? "ok" : state == State::note ? "note" : "problem";
}

void print_check(const Check& check) {
  constexpr std::size_t indent = 10;
  const Colour colour = check.state == State::ok     ? Colour::green
                        : check.state == State::note ? Colour::yellow
                                                     : Colour::red;
  std::string name = state_name(check.state);
  const std::string gap(indent - name.size(), ' ');
  const std::string text = check.subject + ": " + check.text;
  print(paint(name, colour, 1) + gap + wrap(text, indent, indent));
  if (!check.fix.empty()) print(std::string(indent, ' ') + "-> " + wrap(check.fix, indent + 3, indent + 3));
}

void print_json(const std::vector<Check>& checks, bool well) {
  std::vector<JsonObject> objects;
  for (const Check& check : checks) {
    JsonObject object;
    object.add("subject", check.subject).add("state", state_name(check.state)).add("text", check.text);
    if (!check.fix.empty()) object.add("fix", check.fix);
    objects.push_back(object);
  }
  print(JsonObject().add("ok", well).add("checks", objects).text());
}

int doctor(const DoctorOptions& options) {
  std::vector<Check> checks = check_machine();
  if (!options.model.empty() && is_encoder_folder(options.model)) {
    for (Check& check : check_encoders(options.model)) checks.push_back(std::move(check));
  } else if (!options.model.empty()) {
    for (Check& check : check_model(as_usage([&] { return generate::model_folder(options.model, "model"); })))
      checks.push_back(std::move(check));
  }
  const bool well =
      std::ranges::none_of(checks, [](const Check& each) { return each.state == State::problem; });
  if (options.json) {
    print_json(checks, well);
  } else {
    for (const Check& check : checks) print_check(check);
  }
  return well ? Exit::ok : Exit::failed;
}

Action declare_doctor(Flags& flags) {
  const auto options = std::make_shared<DoctorOptions>();
  flags.positional("model");
  flags.add(*options);
  return [options] { return doctor(*options); };
}

}  // namespace

Command doctor_command() {
  return {
      .name = "doctor",
      .summary = "check this machine, and a model folder",
      .usage = "doctor [MODEL] [flags]",
      .about =
          "Checks the build, the processor and the kernels it runs, threads, memory, GPU, libraries, "
          "terminal and disk; and a model folder: its config, every tensor, the autoencoder, the text "
          "encoder, "
          "and one step of sampling; or the folder of an autoencoder or a text encoder alone. Each line is "
          "ok, a note or a problem, with the fix below. Exits 1 if there is "
          "a problem.",
      .examples =
          "pom doctor\n"
          "pom doctor assets/shapes64",
      .declare = declare_doctor,
  };
}

}  // namespace pom::cli
