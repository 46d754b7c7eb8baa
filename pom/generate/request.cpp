#include "pom/generate/request.h"

#include <charconv>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/diffusion/guidance.h"
#include "pom/diffusion/sampler.h"

namespace pom::generate {
namespace {

// A number that takes the whole text.
template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

const std::vector<std::string>& sampler_names() {
  static const std::vector<std::string> names = diffusion::sampler_names();
  return names;
}

const std::string& Request::subject() const {
  static const std::string nothing;
  if (!prompt.empty()) return prompt.front();
  return class_name ? *class_name : nothing;
}

void set_size(Request& request, std::string_view text) {
  const std::size_t cross = text.find_first_of("xX");
  const std::string_view left = text.substr(0, cross);
  const std::string_view right = cross == std::string_view::npos ? left : text.substr(cross + 1);
  std::int64_t width = 0, height = 0;
  const bool numbers = parse_number(left, width) && parse_number(right, height);
  check(numbers && width > 0 && height > 0, "sample: size: expected WIDTHxHEIGHT in pixels, as 64x48, got \"",
        shown(text), "\"");
  request.width = width;
  request.height = height;
}

double scale_of_omega(std::string_view omega, std::int64_t width, std::int64_t height, double base) {
  if (omega == "auto")
    return 1 + diffusion::auto_omega(static_cast<double>(width), static_cast<double>(height), base);
  double value = 0;
  check(parse_number(omega, value) && value >= -1 && value <= 999,
        "sample: omega: expected a number from -1 to 999, or auto, got \"", shown(omega), "\"");
  return 1 + value;
}

}  // namespace pom::generate
