#include "cli/values.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "cli/command.h"
#include "pom/base/progress.h"
#include "pom/base/shown.h"

namespace pom::cli {
namespace {

// Three digits and the unit in which the number is at least 1.
std::string scaled(double number, double base, const char* const (&units)[6]) {
  int unit = 0;
  while (std::abs(number) >= base * 0.9995 && unit < 5) {
    number /= base;
    ++unit;
  }
  const int decimals = unit == 0 || number >= 100 ? 0 : number >= 10 ? 1 : 2;
  char text[48];
  std::snprintf(text, sizeof text, "%.*f%s%s", decimals, number, *units[unit] ? " " : "", units[unit]);
  return text;
}

// Powers of 1024 that a suffix stands for, -1 for an unknown one.
int power_of(std::string_view suffix) {
  constexpr std::string_view letters = "bkmgtp";
  std::string lower;
  for (char c : suffix) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.empty()) return 0;
  const std::size_t power = letters.find(lower[0]);
  const std::string rest = lower.substr(1);
  const bool ends_well = rest.empty() || (power != 0 && (rest == "b" || rest == "ib"));
  return power == std::string_view::npos || !ends_well ? -1 : static_cast<int>(power);
}

}  // namespace

std::int64_t parse_bytes(std::string_view text, std::string_view flag) {
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view suffix = text.substr(static_cast<std::size_t>(stop - text.data()));
  while (suffix.starts_with(' ')) suffix.remove_prefix(1);
  const int power = error == std::errc() ? power_of(suffix) : -1;
  const double bytes = power < 0 ? -1 : number * std::pow(1024.0, power);
  if (!(bytes >= 1 && bytes < 9e18))
    throw UsageError(
        detail::concat(flag, ": expected an amount of memory such as 4G or 512M, got \"", shown(text), "\""));
  return static_cast<std::int64_t>(bytes);
}

std::string bytes_text(double bytes) {
  return scaled(bytes, 1024, {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

std::string amount_text(double count) {
  return scaled(count, 1000, {"", "K", "M", "G", "T", "P"});
}

std::string seconds_text(double seconds) {
  if (!(seconds < 100)) return duration_text(seconds);
  char text[32];
  std::snprintf(text, sizeof text, "%.*f s", seconds < 10 ? 2 : 1, seconds);
  return text;
}

std::string grouped(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool starts_group = i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-';
    if (starts_group) text += ',';
    text += digits[i];
  }
  return text;
}

std::string steps_text(std::string_view sampler, std::int64_t steps, double shift) {
  std::string text = detail::concat(sampler, ", ", steps, " steps");
  if (shift != 1) text += detail::concat(", shift ", shift);
  return text;
}

std::string guidance_text(double scale, double from, double to) {
  std::string text = detail::concat("cfg scale ", scale);
  if (from > 0 || to < 1) text += " for ";
  if (from > 0) text += detail::concat(from, " <= ");
  if (from > 0 || to < 1) text += "t";
  if (to < 1) text += detail::concat(" <= ", to);
  return text;
}

}  // namespace pom::cli
