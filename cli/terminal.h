// What the program writes: results to stdout, everything else to stderr, colour only where a person watches.
#pragma once

#include <string>
#include <string_view>

namespace pom::cli {

// A line of the result. A reader that has gone away (a closed pipe) ends the writing, not the work.
void print(std::string_view text);
// A line about the work, to stderr. Control characters within a line reach no terminal.
void say(std::string_view text);

// Whether everything print() was given has arrived, or nobody wants it; throws pom::Error on a full disk.
void finish_output();

// Colour on file descriptor fd: none where it isn't a terminal or NO_COLOR is set.
bool colours(int fd);
std::string bold(const std::string& text, int fd);
enum class Colour { green, yellow, red };
std::string paint(const std::string& text, Colour colour, int fd);

}  // namespace pom::cli
