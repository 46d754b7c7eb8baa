// forecast_tool MODEL [--field value ...] [--batch N]: what Engine::forecast says of a run, in one process,
// and what the run then takes, in another, side by side.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "pom/base/error.h"
#include "pom/generate/engine.h"
#include "pom/generate/metadata.h"

namespace {

using namespace pom;
using namespace pom::generate;

struct Cost {
  double seconds = 0;
  double bytes = 0;
};

double peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
  return 0;
}

// The work in a process of its own, so that the one's memory is not the other's.
template <class Work>
Cost apart(Work work) {
  int ends[2];
  check(::pipe(ends) == 0, "forecast_tool: no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      const Cost cost = work();
      code = ::write(ends[1], &cost, sizeof cost) == sizeof cost ? 0 : 1;
    } catch (const Error& error) {
      std::cerr << error.what() << "\n";
      code = 1;
    }
    ::_exit(code);
  }
  Cost cost;
  ::close(ends[1]);
  const bool got = ::read(ends[0], &cost, sizeof cost) == sizeof cost;
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  check(got && status == 0, "forecast_tool: the process failed");
  return cost;
}

// "--steps 4" as a member of a JSON object: numbers stay numbers.
std::string member(const std::string& flag, const std::string& value) {
  const bool text = flag == "class" || flag == "omega" || flag == "sampler" || flag == "dtype";
  const char* quote = text ? "\"" : "";
  return pom::detail::concat('"', flag, "\":", quote, value, quote);
}

}  // namespace

int main(int count, char** arguments) try {
  check(count >= 2 && count % 2 == 0, "usage: forecast_tool MODEL [--field value ...] [--batch N]");
  const std::string folder = arguments[1];
  std::string json = "{";
  Limits limits;
  for (int i = 2; i < count; i += 2) {
    const std::string flag = arguments[i] + 2;
    if (flag == "batch") {
      limits.batch = std::stoll(arguments[i + 1]);
      continue;
    }
    if (json.size() > 1) json += ',';
    json += member(flag, arguments[i + 1]);
  }
  const Request request = request_from_json(json + "}", "forecast_tool");
  const Cost forecast = apart([&] {
    Engine engine(folder);
    const Forecast f = engine.forecast(engine.resolve(request), limits);
    std::printf("%lld items in batches of %lld, %.4g multiply-adds%s\n", static_cast<long long>(f.items),
                static_cast<long long>(f.batch), f.macs,
                f.fits ? "" : (", does not fit: " + f.advice).c_str());
    std::fflush(stdout);
    return Cost{f.seconds, static_cast<double>(f.peak_bytes)};
  });
  const Cost measured = apart([&] {
    Engine engine(folder);
    const auto start = std::chrono::steady_clock::now();
    Observer observer;
    engine.run(engine.resolve(request), limits, observer);
    return Cost{std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                peak_bytes()};
  });
  std::printf("            forecast   measured   ratio\n");
  std::printf("seconds   %10.3f %10.3f %7.3f\n", forecast.seconds, measured.seconds,
              forecast.seconds / measured.seconds);
  std::printf("MiB       %10.1f %10.1f %7.3f\n", forecast.bytes / 1048576, measured.bytes / 1048576,
              forecast.bytes / measured.bytes);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
