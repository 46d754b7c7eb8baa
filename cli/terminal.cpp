#include "cli/terminal.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "pom/base/error.h"
#include "pom/base/progress.h"
#include "pom/base/shown.h"

namespace pom::cli {
namespace {

int output_error = 0;  // errno of the first failure to write to stdout

void note_failure() {
  if (output_error == 0) output_error = errno ? errno : EIO;
}

// How much of the text's beginning is a colour code.
std::size_t colour_code(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.find_first_not_of("0123456789;", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

// Lines and colour are all that a text may do to a terminal; what is foreign in it was made one line before
// (pom/base/shown.h), and should some of it not have been, it does no harm.
std::string visible(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t own = text[0] == '\n' || text[0] == '\t' ? 1 : colour_code(text);
    const ShownCharacter first = first_shown(text);
    line += own > 0 ? text.substr(0, own) : std::string_view(first.text);
    text.remove_prefix(own > 0 ? own : first.bytes);
  }
  return line;
}

}  // namespace

void print(std::string_view text) {
  if (output_error != 0) return;
  // A bar on the same screen gives its line away; it is drawn again at the next step.
  if (is_terminal(1) && is_terminal(2)) std::fputs("\r\x1b[K", stderr);
  const std::string line = is_terminal(1) ? visible(text) : std::string(text);
  errno = 0;
  if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() || std::fputc('\n', stdout) == EOF ||
      std::fflush(stdout) != 0)
    note_failure();
}

void say(std::string_view text) {
  std::fputs((visible(text) + "\n").c_str(), stderr);
}

void finish_output() {
  errno = 0;
  if (output_error == 0 && std::fflush(stdout) != 0) note_failure();
  const int copy = ::dup(STDOUT_FILENO);  // some file systems tell of a failure at closing alone
  if (output_error == 0 && copy >= 0 && ::close(copy) != 0) note_failure();
  if (output_error == 0 || output_error == EPIPE) return;
  fail("stdout: cannot write: ", std::strerror(output_error));
}

bool colours(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return is_terminal(fd) && !(no_color && *no_color);
}

std::string bold(const std::string& text, int fd) {
  return colours(fd) ? "\x1b[1m" + text + "\x1b[0m" : text;
}

std::string paint(const std::string& text, Colour colour, int fd) {
  if (!colours(fd)) return text;
  const char* code = colour == Colour::green ? "32" : colour == Colour::yellow ? "33" : "31";
  return std::string("\x1b[") + code + "m" + text + "\x1b[0m";
}

}  // namespace pom::cli
