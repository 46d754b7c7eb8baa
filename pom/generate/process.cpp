#include "pom/generate/process.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace pom::generate {
namespace {

// The number after a key in one of the system's lists: "VmRSS:   1234 kB".
std::int64_t listed(const std::string& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(key)) return std::stoll(line.substr(key.size()));
  return 0;
}

// A number alone in a file; nothing where it says "max" or is not there.
std::optional<std::int64_t> number_in(const std::string& file) {
  std::ifstream stream(file);
  std::int64_t number = 0;
  if (stream >> number) return number;
  return {};
}

// What the control group leaves, as it is seen from inside a container. Files it has cached can go.
std::int64_t group_bytes() {
  struct Group {
    std::string folder, limit, usage;
  };
  for (const Group& group :
       {Group{"/sys/fs/cgroup/", "memory.max", "memory.current"},
        Group{"/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes"}})
    if (const std::optional<std::int64_t> limit = number_in(group.folder + group.limit)) {
      const std::int64_t cached = listed(group.folder + "memory.stat", "inactive_file ");
      const std::int64_t used = number_in(group.folder + group.usage).value_or(0) - cached;
      return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, used));
    }
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace

std::int64_t resident_bytes() {
  return listed("/proc/self/status", "VmRSS:") * 1024;
}

std::int64_t peak_bytes() {
  return listed("/proc/self/status", "VmHWM:") * 1024;
}

std::int64_t available_bytes() {
  return std::min(listed("/proc/meminfo", "MemAvailable:") * 1024, group_bytes());
}

}  // namespace pom::generate
