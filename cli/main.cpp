// The program `pom`: finds the subcommand, parses its flags, runs it, and turns what went wrong into a
// message and a number.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <new>
#include <optional>

#include <c10/util/Exception.h>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/foreign_flags.h"
#include "cli/help.h"
#include "cli/parts.h"
#include "cli/processor.h"
#include "cli/ranks_launch.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "pom/base/build_info.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"

namespace pom::cli {
namespace {

struct Entry {
  Command command;
  CLI::App* app = nullptr;
  Action action;
};

// What was left out of the build is not there; parts.h says why.
std::vector<Command> all_commands() {
  std::vector<Command> commands = {sample_command(), reproduce_command()};
#ifdef POM_WITH_SERVE
  commands.push_back(serve_command());
#endif
#ifdef POM_WITH_TRAIN
  commands.push_back(train_command());
  commands.push_back(plan_command());
  commands.push_back(export_command());
#endif
#ifdef POM_WITH_DATA
  commands.push_back(eval_command());
  commands.push_back(dataset_command());
  commands.push_back(encode_command());
#endif
#ifdef POM_WITH_TRAIN
  commands.push_back(bench_command());
  commands.push_back(experiment_command());
#endif
  commands.push_back(convert_command());
  commands.push_back(info_command());
  commands.push_back(doctor_command());
  return commands;
}

std::vector<Entry> declare_commands(CLI::App& program) {
  std::vector<Entry> entries;
  for (const Command& command : all_commands()) {
    CLI::App* app = program.add_subcommand(command.name, command.summary);
    app->set_help_flag("-h,--help", "this text")->group("Other");
    app->allow_extras();  // reported below, with what may have been meant
    Flags flags(*app);
    entries.push_back({command, app, command.declare(flags)});
  }
  return entries;
}

std::vector<Command> commands_of(const std::vector<Entry>& entries) {
  std::vector<Command> commands;
  for (const Entry& entry : entries) commands.push_back(entry.command);
  return commands;
}

[[noreturn]] void refuse_command(const std::string& given, const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.push_back(entry.command.name);
  for (const std::string& absent : absent_commands(this_build())) names.push_back(absent);
  if (given.starts_with('-'))
    throw UsageError("unknown flag " + shown(given) + "; flags come after the command");
  throw UsageError("unknown command \"" + shown(given) + "\"" + suggestion(given, names));
}

// --guidance_scale and --guidance-scale are one flag to those who type it.
std::string hyphens(std::string flag) {
  std::ranges::replace(flag, '_', '-');
  return flag;
}

// Whether the first flag that an answer names ("use --steps, and …") is one of this command's.
bool names_flag_of(std::string_view answer, const std::vector<std::string>& flags) {
  const std::size_t begin = answer.find("--");
  if (begin == std::string_view::npos) return false;
  const std::string_view flag = answer.substr(begin, answer.find_first_of(", ", begin) - begin);
  return std::ranges::find(flags, flag) != flags.end();
}

void refuse_extras(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return;
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  for (const std::string& extra : extras) {
    if (!extra.starts_with('-')) continue;
    const std::string name = extra.substr(0, extra.find('='));
    if (const std::string_view answer = foreign_flag(hyphens(name)); names_flag_of(answer, flags))
      throw UsageError(detail::concat("unknown flag ", shown(name), ": ", answer));
    const std::vector<std::string> near = nearest_names(name, flags, 1);
    throw UsageError("unknown flag " + shown(name) +
                     (near.empty() ? "" : "; did you mean " + near.front() + "?"));
  }
  throw UsageError("unexpected argument \"" + shown(extras.front()) + "\"");
}

// The chosen command, or nothing where a text was asked for and printed.
const Entry* parse(CLI::App& program, const std::vector<Entry>& entries, int argc, char** argv) {
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    for (const Entry& entry : entries)
      if (entry.app->parsed()) {
        print(command_help(*entry.app, entry.command));
        return nullptr;
      }
    print(program_help(commands_of(entries)));
    return nullptr;
  } catch (const CLI::CallForVersion&) {
    print(version_text());
    return nullptr;
  } catch (const CLI::ArgumentMismatch& error) {  // "--class: 1 required NAME missing"
    const std::string text = error.what();
    throw UsageError(text.substr(0, text.find(':')) + ": expected a value, got nothing");
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  for (const Entry& entry : entries)
    if (entry.app->parsed()) {
      refuse_extras(*entry.app);
      return &entry;
    }
  if (!program.remaining().empty()) refuse_command(program.remaining().front(), entries);
  throw UsageError("expected a command");
}

// Whatever part of a message was too long, its beginning and its end tell the most.
std::string shortened(const std::string& message) {
  constexpr std::size_t beginning = 1500, end = 400;
  if (message.size() <= beginning + end) return message;
  return message.substr(0, beginning) + " … " + message.substr(message.size() - end);
}

// `where` is "pom sample"; a message of the library that begins with the same word need not say it twice.
int report(const std::string& where, std::string message, int code) {
  std::fflush(stdout);
  const std::string name = where.substr(where.rfind(' ') + 1) + ": ";
  if (message.starts_with(name)) message.erase(0, name.size());
  message = shortened(message);
  say(paint(where + ":", Colour::red, 2) + " " + message);
  if (code == Exit::usage) say("see " + where + " --help");
  return code;
}

int run(int argc, char** argv) {
  if (argc > 1)
    if (const std::string why = why_absent(argv[1], this_build()); !why.empty()) {
      say(paint(detail::concat("pom ", argv[1], ":"), Colour::red, 2) + " " + why);
      return Exit::usage;
    }
  CLI::App program;
  program.set_help_flag("-h,--help");
  program.set_version_flag("--version", std::string(build_info().version));
  program.require_subcommand(0, 1);
  program.allow_extras();
  const std::vector<Entry> entries = declare_commands(program);
  const auto where = [&] {  // the command's name is known as soon as it is parsed
    for (const Entry& entry : entries)
      if (entry.app->parsed()) return "pom " + entry.command.name;
    return std::string("pom");
  };
  try {
    const Entry* chosen = parse(program, entries, argc, argv);
    const int code = chosen ? chosen->action() : Exit::ok;
    finish_output();
    return code;
  } catch (const UsageError& error) {
    return report(where(), error.what(), Exit::usage);
  } catch (const c10::Error& error) {
    return report(where(), error.what_without_backtrace(), Exit::failed);
  } catch (const std::bad_alloc&) {
    return report(where(), "not enough memory; a smaller --batch or --size needs less", Exit::failed);
  } catch (const Error& error) {
    return report(where(), error.what(), Exit::failed);
  } catch (const std::exception& error) {  // whose words, and the names in them, are not ours
    return report(where(), shown(error.what(), 1000), Exit::failed);
  }
}

}  // namespace
}  // namespace pom::cli

// Called by launcher.cpp.
extern "C" int pom_main(int argc, char** argv) {
  pom::cli::ignore_write_signals();
  pom::cli::avoid_amx();
  pom::cli::keep_order_of_sums();
  pom::cli::remember_command(argc, argv);
  return pom::cli::run(argc, argv);
}
