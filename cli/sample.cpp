// `pom sample`: a request in flags, pictures in files.
#include <optional>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/model_names.h"
#include "cli/output_names.h"
#include "cli/processor.h"
#include "cli/sample_options.h"
#include "cli/sheet.h"
#include "cli/signals.h"
#include "cli/source.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/build_info.h"
#include "pom/base/progress.h"
#include "pom/generate/device.h"
#include "pom/generate/engine.h"
#include "pom/generate/metadata.h"
#include "pom/generate/resolve.h"
#include "pom/io/picture.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Engine, generate::Picture, generate::Request;

// A run of the program: what was asked, what it stands for, and what has been written so far.
struct Run {
  const SampleOptions& options;
  Engine& engine;
  Request request;  // with the size and a seed that is not negative
  generate::Limits limits = {};
  std::vector<Request> resolved = {};  // one per picture
  std::vector<fs::path> names = {};    // one per picture; with --grid for their previews only
  fs::path sheet = {};                 // empty without --grid
  std::vector<Picture> kept = {};      // for the sheet
  std::vector<std::string> files = {}, previews = {};
  double seconds = 0;

  void remark(const std::string& text) const {
    if (!options.quiet) say(text);
  }
};

void announce(const Run& run, const fs::path& path) {
  if (!run.options.json) print(path.string());
}

void write(const fs::path& path, const io::Image& image, const std::vector<io::TextEntry>& text) {
  make_folder_of(path);
  io::write_picture(path, image, text);
}

std::vector<io::TextEntry> metadata(const Run& run, const Request& request) {
  return generate::metadata_of({.request = request,
                                .model = run.engine.name(),
                                .model_hash = run.engine.weights_hash(),
                                .version = std::string(build_info().version)});
}

void take_picture(Run& run, Picture&& picture) {
  if (run.options.grid) {
    run.kept.push_back(std::move(picture));
    return;
  }
  const fs::path& path = run.names.at(static_cast<std::size_t>(picture.index));
  write(path, picture.image, metadata(run, picture.request));
  run.files.push_back(path.string());
  announce(run, path);
}

// Previews carry no metadata: they are not what their settings make.
void take_previews(Run& run, std::int64_t step, const std::vector<Picture>& pictures) {
  for (const Picture& picture : pictures) {
    const fs::path path = preview_name(run.names.at(static_cast<std::size_t>(picture.index)), step);
    write(path, picture.image, {});
    run.previews.push_back(path.string());
  }
}

void write_sheet(Run& run) {
  std::vector<io::TextEntry> text = metadata(run, run.resolved.front());
  describe_sheet(text, run_request(run.request, run.resolved.front()), run.resolved);
  write(run.sheet, sheet_of(run.kept), text);
  run.files.push_back(run.sheet.string());
  announce(run, run.sheet);
}

Run prepare(const SampleOptions& options, Engine& engine) {
  Run run{.options = options, .engine = engine, .request = options.request};
  as_usage([&] {
    if (!options.size.empty()) {
      check(!options.request.width && !options.request.height,
            "--size: expected alone, got --width or --height as well");
      generate::set_size(run.request, options.size);
    }
    run.resolved = engine.resolve(run.request);
  });
  run.limits.batch = options.batch;
  if (!options.memory_limit.empty())
    run.limits.memory_bytes = parse_bytes(options.memory_limit, "--memory-limit");
  run.request.seed = run.resolved.front().seed;  // where one was drawn, it is drawn once
  return run;
}

// A lower bound, without what labels and magnifying add: it is large pictures that take long to make.
void check_sheet_size(const Run& run) {
  const Request& first = run.resolved.front();
  const std::int64_t most = io::max_pixels / (*first.width * *first.height);
  if (std::ssize(run.resolved) > most)
    throw UsageError(detail::concat("--grid: expected at most ", most, " pictures of ", *first.width, "x",
                                    *first.height, " on a sheet, got ", run.resolved.size()));
}

// Everything that can be known to go wrong with the output is found here, before the work.
void plan_output(Run& run) {
  std::vector<NamedPicture> pictures;
  for (const Request& request : run.resolved) pictures.push_back({request.class_name, request.seed});
  if (run.options.grid) {
    check_sheet_size(run);
    run.sheet = sheet_name(run.options.output, run.engine.name(), pictures.front());
    for (std::size_t i = 0; i < pictures.size(); ++i)
      run.names.push_back(numbered(run.sheet, static_cast<std::int64_t>(i)));
    check_outputs(std::vector{run.sheet}, run.options.yes);
  } else {
    run.names = picture_names(run.options.output, run.engine.name(), pictures);
    check_outputs(run.names, run.options.yes);
  }
  if (run.options.preview > 0) check_previews(run.names, run.options.yes);
}

void make_pictures(Run& run, const StopSignals& signals) {
  const double start = steady_seconds();
  std::optional<Progress> progress;
  generate::Observer observer;
  observer.stop = &signals.asked();
  if (!run.options.quiet)
    observer.on_evaluation = [&](std::int64_t done, std::int64_t total) {
      if (!progress)
        progress.emplace(
            "sampling", total, progress_sink(std::cerr),
            ProgressOptions{.terminal = is_terminal(2), .width = terminal_width(2), .unit = "evaluation"});
      progress->set(done);
      if (done == total) progress->finish();  // before the last path, which then is the last line
    };
  observer.on_picture = [&](Picture&& picture) { take_picture(run, std::move(picture)); };
  observer.preview_every = run.options.preview;
  if (run.options.preview > 0)
    observer.on_preview = [&](std::int64_t step, std::vector<Picture>&& pictures) {
      take_previews(run, step, pictures);
    };
  run.engine.run(run.request, run.limits, observer);
  if (run.options.grid) write_sheet(run);
  run.seconds = steady_seconds() - start;
}

void print_result(Run& run, bool stopped) {
  if (!run.options.json) return;
  std::vector<std::int64_t> seeds;
  std::vector<std::string> classes;
  const std::size_t made = run.options.grid ? (stopped ? 0 : run.resolved.size()) : run.files.size();
  for (std::size_t i = 0; i < made; ++i) {
    seeds.push_back(run.resolved[i].seed);
    classes.push_back(run.resolved[i].class_name);
  }
  JsonObject result;
  result.add("files", run.files).add("seeds", seeds).add("classes", classes).add("seconds", run.seconds);
  result.add("model", JsonObject()
                          .add("name", run.engine.name())
                          .add("folder", run.engine.folder().string())
                          .add("sha256", run.engine.weights_hash()));
  result.raw("request", generate::request_json(run_request(run.request, run.resolved.front())));
  if (run.options.preview > 0) result.add("previews", run.previews);
  if (stopped) result.add("stopped", true);
  print(result.text());
}

std::string advice(const Run& run, const generate::Forecast& f) {
  if (!f.advice.empty()) return f.advice;
  const std::string need = std::to_string(f.peak_bytes / (1 << 20) + 1) + "M";
  return run.limits.memory_bytes > 0 ? "--memory-limit " + need + " would do"
                                     : "it needs " + need + " of memory, or a smaller --size";
}

int forecast(Run& run) {
  const generate::Forecast f = run.engine.forecast(run.request, run.limits);
  const Request& first = run.resolved.front();
  if (run.options.json) {
    print(JsonObject()
              .add("pictures", f.pictures)
              .add("batch", f.batch)
              .add("evaluations", f.evaluations)
              .add("macs", f.macs)
              .add("seconds", f.seconds)
              .add("peak_bytes", f.peak_bytes)
              .add("free_bytes", f.free_bytes)
              .add("fits", f.fits)
              .add("advice", f.fits ? "" : advice(run, f))
              .text());
    return f.fits ? Exit::ok : Exit::failed;
  }
  print(detail::concat("pictures  ", f.pictures, " of ", *first.width, "x", *first.height, ", ", f.batch,
                       " at a time; ", *first.sampler, ", ", *first.steps, " steps, ", f.evaluations,
                       " evaluations"));
  print(f.seconds > 0
            ? "time      about " + seconds_text(f.seconds) + " (" + amount_text(f.macs) + " multiply-adds)"
            : "time      not measured (" + amount_text(f.macs) + " multiply-adds)");
  if (f.peak_bytes == 0) {
    print("memory    not forecast on " + run.engine.device());
    return Exit::ok;
  }
  print("memory    " + bytes_text(static_cast<double>(f.peak_bytes)) + " at most, of " +
        bytes_text(static_cast<double>(f.free_bytes)));
  print(f.fits ? "it fits" : "it does not fit: " + advice(run, f));
  return f.fits ? Exit::ok : Exit::failed;
}

void remark_before(const Run& run) {
  if (run.options.request.seed < 0)
    say("using random seed " + std::to_string(run.request.seed));  // never lost
  if (const std::string size = generate::size_remark(run.resolved.front(), run.engine.config());
      !size.empty())
    run.remark(size);
  if (run.options.preview > 0)
    run.remark("previews go beside the output, as " +
               preview_name(run.names.front(), run.options.preview).string());
  const fs::path& first = run.options.grid ? run.sheet : run.names.front();
  if (is_jpeg(first)) run.remark("JPEG changes pixels and `pom reproduce` cannot read it: .png keeps both");
}

int sample(SampleOptions& options) {
  if (options.model.empty()) throw UsageError("--model: expected the folder of a model, got nothing");
  options.model = model_folder(options.model, "--model").string();
  set_threads(options.threads);
  as_usage([&] { generate::device_named(options.device, "sample"); });
  if (generate::read_config(options.model).network.video()) return sample_clip(options);
  refuse_clip_flags(options);
  Engine engine(options.model, options.device);
  Run run = prepare(options, engine);
  if (options.dry_run) return forecast(run);
  plan_output(run);
  remark_before(run);
  const StopSignals signals;
  try {
    make_pictures(run, signals);
  } catch (const generate::Stopped&) {
    print_result(run, true);
    say(run.files.empty() ? std::string("stopped; no picture was written")
                          : detail::concat("stopped; ", run.files.size(), " of ", run.resolved.size(),
                                           " pictures were written"));
    return signals.exit_code();
  }
  print_result(run, false);
  return Exit::ok;
}

Action declare_sample(Flags& flags) {
  const auto options = std::make_shared<SampleOptions>();
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.letter("quiet", 'q');
  flags.repeated("prompt_at");
  flags.add(*options);
  return [options] { return sample(*options); };
}

}  // namespace

Command sample_command() {
  return {
      .name = "sample",
      .summary = "make images or clips with a model",
      .usage = "sample --model DIR [flags]",
      .about =
          "Makes images with a model and writes them as PNG or JPEG. Each PNG carries the settings "
          "that made it.\n"
          "\n"
          "Paths of finished images go to stdout, progress to stderr. What is left open, the model's "
          "own settings decide (pom info DIR shows them). One seed, one image: image i of a run has "
          "seed + i, and comes out the same alone, in any batch and with any number of threads.\n"
          "\n"
          "A model that makes clips takes --prompt and writes a clip. With --stream it comes block by "
          "block, and Ctrl-C or a player that is closed ends it with a file that plays.",
      .examples =
          "pom sample --model assets/shapes64 --class circle --seed 7 -o circle.png\n"
          "pom sample --model assets/shapes64 --class all --count 4 --grid -o sheet.png\n"
          "pom sample --model assets/shapes64 --class 0-2 --size 64x64 --dry-run",
      .declare = declare_sample,
  };
}

}  // namespace pom::cli
