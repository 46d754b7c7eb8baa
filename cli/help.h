// The text of --help: 80 columns, flags in groups, examples at the end.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace CLI {
class App;
}

namespace pom::cli {

std::string command_help(const CLI::App& app, const Command& command);
std::string program_help(std::span<const Command> commands);

// Words put on lines of `width` columns; the first line goes on where it stands, `column` columns in.
std::string wrap(const std::string& text, std::size_t indent, std::size_t column, std::size_t width = 80);

}  // namespace pom::cli
