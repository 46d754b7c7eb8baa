#include "cli/terminal.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "pom/base/error.h"
#include "pom/base/progress.h"

namespace pom::cli {
namespace {

int output_error = 0;  // errno of the first failure to write to stdout

void note_failure() {
  if (output_error == 0) output_error = errno ? errno : EIO;
}

}  // namespace

void print(std::string_view text) {
  if (output_error != 0) return;
  // A bar on the same screen gives its line away; it is drawn again at the next step.
  if (is_terminal(1) && is_terminal(2)) std::fputs("\r\x1b[K", stderr);
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fputc('\n', stdout) == EOF ||
      std::fflush(stdout) != 0)
    note_failure();
}

void say(std::string_view text) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

void finish_output() {
  errno = 0;
  if (output_error == 0 && std::fflush(stdout) != 0) note_failure();
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
