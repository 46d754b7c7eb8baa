// `pom serve`: models behind HTTP, until it is stopped.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <thread>

#include "cli/command.h"
#include "cli/common_fields.h"
#include "cli/flags.h"
#include "cli/processor.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/generate/device.h"
#include "pom/generate/model_names.h"
#include "pom/generate/process.h"
#include "pom/net/forwarded.h"
#include "pom/serve/batch_size.h"
#include "pom/serve/server.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

struct ServeFlags {
  std::vector<std::string> model, allow_host, allow_origin, trusted_proxy;
  std::string host = "127.0.0.1", device = "auto", dtype, api_key_file, gallery, state, page, most_memory,
              gallery_limit, batch_sizes;
  std::int64_t port = 8000, gpus = 0, threads = 0;
  double drain = 30, gather = 30;
  bool insecure = false, quiet = false;
  serve::QueueLimits limits;
  std::int64_t most_streams = 4;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view what = "What to serve", where = "Where", who = "Who may ask", most = "Limits",
                               work = "How to work";
    visit(Field{.name = "model",
                .help = "folder or name of a model; can be repeated (default: all in assets)",
                .value = "MODEL",
                .group = what},
          model);
    visit(Field{.name = "gallery",
                .help = "folder that keeps what is made, also over a restart (default: memory, for an hour)",
                .value = "DIR",
                .group = what},
          gallery);
    visit(Field{.name = "gallery_limit",
                .help = "bytes of the gallery, e.g. 10G: the oldest go first (default: no limit)",
                .value = "SIZE",
                .group = what},
          gallery_limit);
    visit(Field{.name = "state",
                .help = "folder in which live streams outlive a restart (default: they end with the server)",
                .value = "DIR",
                .group = what},
          state);
    visit(Field{.name = "page",
                .help = "the page's files from here, for whoever works on them",
                .value = "DIR",
                .group = what},
          page);
    visit(Field{.name = "host",
                .help = "address, localhost, or unix:/path; one that others reach needs a key",
                .value = "NAME",
                .group = where},
          host);
    visit(Field{.name = "port",
                .help = "0: any that is free",
                .value = "N",
                .group = where,
                .least = 0,
                .most = 65535},
          port);
    visit(quiet_field(where), quiet);
    visit(Field{.name = "api_key_file",
                .help = "file of keys, one a line; or keys in POM_API_KEY, with commas between",
                .value = "FILE",
                .group = who},
          api_key_file);
    visit(Field{.name = "allow_host",
                .help = "name by which the server may be called, as behind a proxy; can be repeated",
                .value = "NAME",
                .group = who},
          allow_host);
    visit(Field{.name = "allow_origin",
                .help = "origin whose pages may use it, https://example.org; can be repeated",
                .value = "URL",
                .group = who},
          allow_origin);
    visit(
        Field{.name = "trusted_proxy",
              .help = "proxy whose X-Forwarded-For or Forwarded says who a client is: 10.0.0.1, 10.0.0.0/8, "
                      "unix; can be repeated",
              .value = "ADDR",
              .group = who},
        trusted_proxy);
    visit(Field{.name = "insecure", .help = "let others reach it without a key", .group = who}, insecure);
    visit(Field{.name = "most_items",
                .help = "pictures or clips of one request",
                .value = "N",
                .group = most,
                .least = 1,
                .most = 10'000},
          limits.items);
    visit(Field{.name = "most_steps",
                .help = "steps of the sampler",
                .value = "N",
                .group = most,
                .least = 1,
                .most = 10'000},
          limits.steps);
    visit(Field{.name = "most_pixels",
                .help = "width times height",
                .value = "N",
                .group = most,
                .least = 1,
                .most = 1 << 28},
          limits.pixels);
    visit(Field{.name = "most_frames",
                .help = "frames of a clip",
                .value = "N",
                .group = most,
                .least = 1,
                .most = 1e9},
          limits.frames);
    visit(Field{.name = "most_prompt_bytes",
                .help = "bytes of a prompt",
                .value = "N",
                .group = most,
                .least = 1,
                .most = 1 << 20},
          limits.prompt_bytes);
    visit(Field{.name = "most_seconds",
                .help = "work of one request, as forecast",
                .value = "X",
                .group = most,
                .least = 0.001,
                .most = 1e9},
          limits.seconds);
    visit(Field{.name = "most_memory",
                .help =
                    "memory of what is made at one time, with the streams, e.g. 4G (default: nine tenths of "
                    "what is free at the start)",
                .value = "SIZE",
                .group = most},
          most_memory);
    visit(Field{.name = "most_waiting",
                .help = "jobs that wait",
                .value = "N",
                .group = most,
                .least = 1,
                .most = 100'000},
          limits.waiting);
    visit(Field{.name = "most_waiting_a_client",
                .help = "of one client",
                .value = "N",
                .group = most,
                .least = 1,
                .most = 100'000},
          limits.waiting_a_client);
    visit(Field{.name = "most_streams",
                .help = "live streams at a time",
                .value = "N",
                .group = most,
                .least = 0,
                .most = 1000},
          most_streams);
    Field where_to_run = generate::device_field(work);
    where_to_run.help =
        "device: cpu, cuda, cuda:N, several with commas between them, or auto (a GPU if available)";
    visit(where_to_run, device);
    visit(Field{.name = "gpus",
                .help = "serve on N GPUs of this machine, with one queue",
                .value = "N",
                .group = work,
                .least = 1,
                .most = 64},
          gpus);
    visit(Field{.name = "batch_sizes",
                .help =
                    "images at a time, filled up with repeats (default: 1,4,16,64 on a GPU, any number on a "
                    "CPU)",
                .value = "N,N",
                .group = work},
          batch_sizes);
    visit(Field{.name = "gather",
                .help = "milliseconds that a free GPU waits for more of the same kind at most, while they "
                        "keep coming",
                .value = "MS",
                .group = work,
                .least = 0,
                .most = 10000},
          gather);
    visit(Field{.name = "dtype",
                .help = "dtype of all networks (default: each model's own)",
                .value = "NAME",
                .group = work,
                .choices = {"fp32", "bf16", "fp16", "fp64", "fp8"}},
          dtype);
    visit(Field{.name = "drain",
                .help = "seconds that what is under way may take to end when the server is stopped",
                .value = "X",
                .group = work,
                .least = 0,
                .most = 86400},
          drain);
    visit(threads_field(work), threads);
  }
};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1" || host == "[::1]" ||
         host.starts_with("unix:");
}

std::vector<fs::path> folders_of(const ServeFlags& flags) {
  std::vector<fs::path> folders;
  for (const std::string& name : flags.model) folders.push_back(generate::model_folder(name, "--model"));
  if (!folders.empty()) return folders;
  for (const fs::path& place : generate::model_places()) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(place, ignored))
      if (fs::exists(entry.path() / generate::config_file)) folders.push_back(entry.path());
  }
  std::ranges::sort(folders);
  check(!folders.empty(),
        "--model: expected the folder of a model, got none, and there is none in assets or models of ",
        fs::current_path().string(),
        ": run it where they are, or let POM_MODELS name the folder that has them");
  return folders;
}

std::vector<std::string> devices_of(const ServeFlags& flags) {
  if (flags.gpus == 0) {
    std::vector<std::string> devices;  // "cuda:0,cuda:1"
    for (std::size_t at = 0; at <= flags.device.size();) {
      const std::size_t end = std::min(flags.device.find(',', at), flags.device.size());
      devices.push_back(generate::device_named(flags.device.substr(at, end - at), "serve").str());
      check(devices.back().substr(0, 3) == devices.front().substr(0, 3),
            "--device: expected devices of one kind, got ", flags.device);
      at = end + 1;
    }
    return devices;
  }
  check(flags.device == "auto" || flags.device == "cuda", "--gpus: expected --device cuda, got ",
        flags.device);
  std::vector<std::string> devices;
  for (std::int64_t i = 0; i < flags.gpus; ++i) {
    devices.push_back(detail::concat("cuda:", i));
    generate::device_named(devices.back(), "serve");
  }
  return devices;
}

serve::ServeOptions options_of(const ServeFlags& flags) {
  serve::ServeOptions options;
  options.host = flags.host, options.port = static_cast<std::uint16_t>(flags.port);
  if (!flags.api_key_file.empty()) options.keys.add_file(flags.api_key_file);
  options.keys.add_environment("POM_API_KEY");
  check(is_loopback(flags.host) || !options.keys.empty() || flags.insecure, "--host ", flags.host,
        ": expected a key where others can reach the server (--api-key-file, POM_API_KEY), or --insecure");
  options.hosts = flags.allow_host, options.origins = flags.allow_origin;
  // Whoever listens at an address may be called by it; one for all addresses by any name if it has keys.
  const bool everywhere = flags.host == "0.0.0.0" || flags.host == "::";
  if (everywhere && !options.keys.empty()) options.hosts.push_back("*");
  if (everywhere && options.keys.empty())
    check(!flags.allow_host.empty(), "--host ", flags.host,
          ": expected a name by which it may be called where there is no key (--allow-host)");
  if (!everywhere && !is_loopback(flags.host)) options.hosts.push_back(flags.host);
  options.gallery = flags.gallery, options.page = flags.page;
  if (!flags.gallery_limit.empty()) {
    check(!flags.gallery.empty(), "--gallery-limit: expected a --gallery, got none");
    options.gallery_bytes = parse_bytes(flags.gallery_limit, "--gallery-limit");
  }
  options.proxies = flags.trusted_proxy;
  net::TrustedProxies{options.proxies};  // which finds mistakes
  options.limits = flags.limits;
  options.limits.memory = flags.most_memory.empty() ? generate::available_bytes() / 10 * 9
                                                    : parse_bytes(flags.most_memory, "--most-memory");
  options.limits.gather = flags.gather / 1000;
  if (!flags.batch_sizes.empty())
    options.limits.batch_sizes = serve::parse_batch_sizes(flags.batch_sizes, "--batch-sizes");
  options.live.streams = static_cast<std::size_t>(flags.most_streams);
  options.live.state = flags.state;
  options.remark = [](const std::string& line) { say("pom serve: " + line); };
  if (!flags.quiet) options.log = [](const std::string& line) { say(line); };
  return options;
}

int run(const ServeFlags& flags) {
  const std::vector<fs::path> folders = as_usage([&] { return folders_of(flags); });
  const std::vector<std::string> devices = as_usage([&] { return devices_of(flags); });
  serve::ServeOptions options = as_usage([&] { return options_of(flags); });
  set_threads(flags.threads);
  const bool open = options.keys.empty() && !is_loopback(flags.host);
  const StopSignals signals;
  serve::Server server(std::move(options), [&] {
    std::vector<std::unique_ptr<serve::Backend>> backends;
    for (const std::string& device : devices)
      backends.push_back(serve::engine_backend(folders, device, flags.dtype));
    return backends;
  });
  for (const std::string& address : server.addresses()) print(address);
  if (const char* tests = std::getenv("POM_FAILPOINT"); tests != nullptr && *tests != '\0')
    say("pom serve: POM_FAILPOINT is set, which switches protections off: for tests alone");
  if (open) say("pom serve: everybody who reaches this address may use it (--insecure)");
  while (!signals.asked().load()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (!flags.quiet) say("pom serve: going down; what is under way may end");
  server.drain(flags.drain);
  return Exit::ok;
}

Action declare(Flags& flags) {
  const auto options = std::make_shared<ServeFlags>();
  for (const char* name : {"model", "allow_host", "allow_origin", "trusted_proxy"}) flags.repeated(name);
  flags.letter("quiet", 'q');
  flags.add(*options);
  return [options] { return run(*options); };
}

}  // namespace

Command serve_command() {
  return {
      .name = "serve",
      .summary = "serve models to a browser and to other programs, over HTTP",
      .usage = "serve [--model MODEL]... [--port N] [flags]",
      .about =
          "Starts a server for pictures, clips and live streams, prints its address and runs until it is "
          "stopped. The address opens a page in a browser; programs use it through its own interface "
          "(/openapi.json), OpenAI's images and videos (/v1) or Automatic1111's (/sdapi/v1).\n"
          "\n"
          "It listens on this machine alone. For others, put it behind a proxy that has TLS, or give it a "
          "--host and keys.",
      .examples =
          "pom serve\n"
          "pom serve --model assets/sprites32 --port 8080\n"
          "pom serve --gallery out/gallery --api-key-file keys.txt --host 0.0.0.0",
      .declare = declare};
}

}  // namespace pom::cli
