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

// How much of the text's beginning is a colour code.
std::size_t colour_code(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.find_first_not_of("0123456789;", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

// Colour is all that a text may do to a terminal: names come from files of others, and what else is a control
// character in them shows as a question mark.
std::string visible(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    const bool upper = byte == 0xc2 && text.size() > 1 &&
                       (static_cast<unsigned char>(text[1]) & 0xe0) == 0x80;  // U+0080 to U+009F
    const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f || upper;
    const std::size_t colour = colour_code(text), length = colour > 0 ? colour : upper ? 2 : 1;
    shown += control && colour == 0 ? "?" : text.substr(0, length);
    text.remove_prefix(length);
  }
  return shown;
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
