#include "cli/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "cli/parts.h"
#include "cli/terminal.h"
#include "pom/base/build_info.h"

namespace pom::cli {
namespace {

constexpr std::size_t kColumn = 24;  // where descriptions begin

std::string heading(const std::string& text) {
  return bold(text, 1) + "\n";
}

// "  -o, --output FILE    where images go": the description on the next line where the flag is long.
std::string entry(const std::string& flag, const std::string& description) {
  std::string line = "  " + flag;
  if (line.size() + 2 > kColumn) {
    line += "\n" + std::string(kColumn, ' ');
  } else {
    line.resize(kColumn, ' ');
  }
  return line + wrap(description, kColumn, kColumn) + "\n";
}

std::string flag_text(const CLI::Option& option) {
  if (option.get_positional()) return option.get_type_name();
  std::string text = option.get_snames().empty() ? "    " : "-" + option.get_snames().front() + ", ";
  if (!option.get_lnames().empty()) text += "--" + option.get_lnames().front();
  const bool takes_value = option.get_items_expected_max() > 0;
  return takes_value ? text + " " + option.get_type_name() : text;
}

std::string indented(const std::string& lines) {
  std::string text;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) text += (text.empty() ? "  " : "\n  ") + line;
  return text;
}

std::string paragraphs(const std::string& about) {
  std::string text;
  std::istringstream stream(about);
  for (std::string line; std::getline(stream, line);) text += wrap(line, 0, 0) + "\n";
  return text;
}

}  // namespace

std::string wrap(const std::string& text, std::size_t indent, std::size_t column, std::size_t width) {
  std::string wrapped;
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && column + 1 + word.size() > width) {
      wrapped += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += word.size();
  }
  return wrapped;
}

std::string command_help(const CLI::App& app, const Command& command) {
  std::string text = paragraphs(command.about) + "\n" + heading("Usage") + "  pom " + command.usage + "\n";
  std::vector<std::string> groups;
  for (const CLI::Option* option : app.get_options())
    if (const std::string& group = option->get_group();  // what has none is not shown
        !group.empty() && std::ranges::find(groups, group) == groups.end())
      groups.push_back(group);
  // -h was declared first, and is the least of what a person looks for.
  std::ranges::rotate(groups, std::ranges::find(groups, app.get_help_ptr()->get_group()) + 1);
  for (const std::string& group : groups) {
    text += "\n" + heading(group);
    for (const CLI::Option* option : app.get_options())
      if (option->get_group() == group) text += entry(flag_text(*option), option->get_description());
  }
  return text + "\n" + heading("Examples") + indented(command.examples);
}

std::string program_help(std::span<const Command> commands) {
  std::string text = "pom: image and video generation with the Polynomial Mixer\n\n" + heading("Usage") +
                     "  pom COMMAND [flags]\n\n" + heading("Commands");
  for (const Command& command : commands) text += entry(command.name, command.summary);
  for (const std::string& name : absent_commands(this_build()))
    text += entry(name, "left out of this build: pom --version says why");
  text += "\n" + heading("Flags") + entry("-h, --help", "this text; after a command, that command's") +
          entry("    --version", detail::concat("what this build is and has: ", build_info().version));
  text += "\n" + heading("Environment") +
          entry("POM_MODELS",
                "folders of model folders, where --model NAME and reproduce look; separated by ':'") +
          entry("POM_CPU_ISA", "lowers the instruction set of our kernels: base, avx2, avx512, avx512bf16") +
          entry("POM_GRAPHS", "CUDA graphs on a GPU: 0 none; always: a failed capture is an error") +
          entry("POM_TILES", "file of the fastest kernels on this GPU; off: nothing is measured or kept") +
          entry("NO_COLOR", "no colours, also on a terminal");
  text +=
      "\n" + heading("Exit status") + "  " +
      wrap(
          "0 done; 1 the work failed, or a result disagrees; 2 wrong usage; 130 stopped by Ctrl-C, 143 by "
          "SIGTERM, 129 by SIGHUP",
          2, 2) +
      "\n";
  return text + "\n" + heading("Examples") +
         indented(
             "pom sample --model assets/shapes64 --class circle -o circle.png\n"
             "pom reproduce circle.png\n"
             "pom info DiPoM-XL/2 --size 512x512\n"
             "pom doctor assets/shapes64");
}

}  // namespace pom::cli
