#include "pom/base/failpoint.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

#include "pom/base/error.h"

namespace pom {
namespace {

struct Plan {
  std::string name;
  std::int64_t when = 0;  // the how-manieth time, from 1
  int error = 0;          // 0: kill
  std::atomic<std::int64_t> times = 0;
};

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

// What files meet, by name; whatever else, by number.
std::optional<int> errno_named(std::string_view name) {
  constexpr std::pair<std::string_view, int> named[] = {
      {"EACCES", EACCES}, {"EAGAIN", EAGAIN}, {"EBADF", EBADF},   {"EDQUOT", EDQUOT}, {"EEXIST", EEXIST},
      {"EFBIG", EFBIG},   {"EINTR", EINTR},   {"EINVAL", EINVAL}, {"EIO", EIO},       {"EISDIR", EISDIR},
      {"EMFILE", EMFILE}, {"ENFILE", ENFILE}, {"ENOENT", ENOENT}, {"ENOMEM", ENOMEM}, {"ENOSPC", ENOSPC},
      {"EPERM", EPERM},   {"EROFS", EROFS},   {"ESTALE", ESTALE},
  };
  for (const auto& [text, value] : named)
    if (text == name) return value;
  return number<int>(name);
}

void read_plan(Plan& plan, std::string_view text, std::string_view all) {
  const std::size_t first = std::min(text.find(':'), text.size());
  const std::size_t second = std::min(text.find(':', first + 1), text.size());
  const auto when = number<std::int64_t>(text.substr(std::min(first + 1, text.size()), second - first - 1));
  const auto error = second == text.size() ? 0 : errno_named(text.substr(second + 1));
  check(first > 0 && when && error,
        "POM_FAILPOINT: expected NAME:COUNT or NAME:COUNT:ERRNO, for instance atomic_file.rename:3 or "
        "atomic_file.write:1:ENOSPC, got \"",
        all, "\"");
  plan.name = text.substr(0, first);
  plan.when = *when;
  plan.error = *error;
}

using Plans = std::list<Plan>;  // which, being counted from any thread, do not move

// None where the variable is not set.
Plans read_plans() {
  const char* variable = std::getenv("POM_FAILPOINT");
  Plans plans;
  if (variable == nullptr || *variable == '\0') return plans;
  const std::string_view all = variable;
  for (std::size_t begin = 0; begin <= all.size();) {
    const std::size_t end = std::min(all.find(',', begin), all.size());
    read_plan(plans.emplace_back(), all.substr(begin, end - begin), all);
    begin = end + 1;
  }
  return plans;
}

// Null where no plan has this name.
Plan* plan_named(std::string_view name) {
  static Plans plans = read_plans();
  for (Plan& plan : plans)
    if (plan.name == name) return &plan;
  return nullptr;
}

}  // namespace

int failpoint(std::string_view name) {
  Plan* const planned = plan_named(name);
  if (planned == nullptr) return 0;
  if (planned->times.fetch_add(1) + 1 != planned->when) return 0;
  if (planned->error == 0) ::kill(::getpid(), SIGKILL);
  return planned->error;
}

bool failpoint_is_set(std::string_view name) {
  return plan_named(name) != nullptr;
}

}  // namespace pom
