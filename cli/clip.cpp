// `pom sample` with a model that makes clips from text.
#include <iostream>
#include <optional>

#include "cli/clip_output.h"
#include "cli/command.h"
#include "cli/json.h"
#include "cli/sample_options.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/build_info.h"
#include "pom/base/progress.h"
#include "pom/generate/clip_engine.h"
#include "pom/generate/engine.h"
#include "pom/generate/metadata.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::ClipEngine, generate::ClipJob, generate::ClipRequest, generate::Request;

enum class End { whole, stopped, unread };

// A state that is damaged is no mistake in what was asked for.
ClipJob resolve(const SampleOptions& options, const ClipEngine& engine) {
  if (!options.clip.continue_from.empty()) generate::check_state(options.clip.continue_from);
  return as_usage([&] {
    Request request = options.request;
    if (!options.size.empty()) {
      check(!request.width && !request.height, "--size: expected alone, got --width or --height as well");
      generate::set_size(request, options.size);
    }
    return engine.resolve(options.clip, request);
  });
}

// "a-red-star_7"
std::string default_name(const ClipEngine& engine, const ClipJob& job) {
  const std::string& prompt = job.prompts.empty() ? job.saved_prompt : job.prompts.front().text;
  return detail::concat(prompt.empty() ? engine.name() : prompt, "_", job.request.seed);
}

void check_state_place(const SampleOptions& options) {
  const fs::path path = options.clip.save_state;
  if (path.empty()) return;
  std::error_code ignored;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored))
    throw UsageError(detail::concat("--save-state: there is no folder ", folder.string()));
  if (fs::is_directory(path, ignored))
    throw UsageError(detail::concat("--save-state: ", path.string(), " is a folder"));
  if (fs::exists(path, ignored) && !options.yes)
    throw UsageError(detail::concat("--save-state: ", path.string(), " already exists; use -y to overwrite"));
}

JsonObject clip_json(const ClipEngine& engine, const ClipJob& job) {
  const std::int64_t block = engine.block_frames();
  std::vector<JsonObject> prompts;
  if (job.prompts.empty() || job.prompts.front().block > 0)
    prompts.push_back(JsonObject().add("frame", std::int64_t{0}).add("prompt", job.saved_prompt));
  for (const ClipJob::Prompt& prompt : job.prompts)
    prompts.push_back(JsonObject().add("frame", prompt.block * block).add("prompt", prompt.text));
  return JsonObject()
      .add("prompts", prompts)
      .add("fps", job.fps)
      .raw("request", generate::request_json(job.request))
      .add("model", JsonObject()
                        .add("name", engine.name())
                        .add("folder", engine.folder().string())
                        .add("sha256", engine.weights_hash())
                        .add("text_encoder_sha256", engine.text_hash()));
}

// What the file says of itself, as far as it is known before the last frame. Nothing of this machine.
std::vector<io::TextEntry> description(const ClipEngine& engine, const ClipJob& job) {
  std::string prompts;
  for (const ClipJob::Prompt& prompt : job.prompts) prompts += (prompts.empty() ? "" : " | ") + prompt.text;
  const Request& r = job.request;
  return {{"parameters",
           detail::concat(prompts.empty() ? job.saved_prompt : prompts, "\nSteps: ", *r.steps, ", Sampler: ",
                          *r.sampler, *r.shift != 1 ? detail::concat(", Shift: ", *r.shift) : "",
                          ", CFG scale: ", *r.cfg_scale, ", Seed: ", r.seed, ", Size: ", *r.width, "x",
                          *r.height, ", Model hash: ", engine.weights_hash().substr(0, 10),
                          ", Text encoder hash: ", engine.text_hash().substr(0, 10),
                          ", Model: ", engine.name(), ", Version: libpom ", build_info().version)}};
}

generate::Limits limits_of(const SampleOptions& options) {
  generate::Limits limits;
  if (!options.memory_limit.empty())
    limits.memory_bytes = parse_bytes(options.memory_limit, "--memory-limit");
  return limits;
}

int forecast(const SampleOptions& options, ClipEngine& engine, const ClipJob& job) {
  const generate::Forecast f = engine.forecast(job, limits_of(options));
  const std::string advice = f.fits || !f.advice.empty() ? f.advice : "a smaller model might";
  if (options.json) {
    print(JsonObject()
              .add("frames", job.frames)
              .add("blocks", job.blocks)
              .add("evaluations", f.evaluations)
              .add("macs", f.macs)
              .add("seconds", f.seconds)
              .add("peak_bytes", f.peak_bytes)
              .add("free_bytes", f.free_bytes)
              .add("fits", f.fits)
              .add("advice", advice)
              .text());
    return f.fits ? Exit::ok : Exit::failed;
  }
  const Request& r = job.request;
  const bool endless = job.frames == 0;
  print(detail::concat("clip      ", endless ? "without end" : detail::concat(job.frames, " frames"), " of ",
                       *r.width, "x", *r.height, job.stream ? ", block by block" : ", whole", "; ",
                       *r.sampler, ", ", *r.steps, " steps, ", f.evaluations, " evaluations",
                       endless ? " a block" : ""));
  print(detail::concat("time      ", f.seconds > 0 ? "about " + seconds_text(f.seconds) : "not measured",
                       endless ? " a block (" : " (", amount_text(f.macs), " multiply-adds)"));
  if (f.peak_bytes == 0)
    print("memory    not forecast on " + engine.device());
  else
    print("memory    " + bytes_text(static_cast<double>(f.peak_bytes)) + " at most, of " +
          bytes_text(static_cast<double>(f.free_bytes)));
  print(f.fits ? "it fits" : "it does not fit: " + advice);
  return f.fits ? Exit::ok : Exit::failed;
}

End make_clip(ClipEngine& engine, const ClipJob& job, ClipOutput& output, const StopSignals& signals,
              const SampleOptions& options) {
  std::optional<Progress> progress;
  generate::ClipObserver observer;
  observer.stop = &signals.asked();
  if (!options.quiet)
    observer.on_step = [&](std::int64_t done, std::int64_t total) {
      if (!progress)
        progress.emplace("sampling", total, progress_sink(std::cerr),
                         ProgressOptions{.terminal = is_terminal(2), .width = terminal_width(2)});
      progress->set(done);
    };
  const auto note_frames = [&] {
    if (progress && job.stream) progress->note(detail::concat(output.frames(), " frames"));
  };
  observer.on_frame = [&](io::Image&& frame) { output.add(frame); };
  observer.on_block = [&] {
    note_frames();
    if (job.stream) output.flush();
  };
  End end = End::whole;
  try {
    try {
      engine.run(job, observer, limits_of(options));
      if (progress) progress->finish();
    } catch (const generate::Stopped&) {
      end = End::stopped;
    }
    output.finish();
  } catch (const io::ClosedPipe&) {
    end = End::unread;
  }
  return end;
}

void tell_end(const SampleOptions& options, const ClipOutput& output, End end) {
  const std::string frames =
      detail::concat(output.frames(), output.frames() == 1 ? " frame was" : " frames were");
  if (end == End::stopped)
    say(output.frames() == 0 ? "stopped; no clip was written" : "stopped; " + frames + " written");
  if (end == End::unread && !options.quiet) say("nobody reads any more; " + frames + " written");
}

void print_result(const SampleOptions& options, const ClipEngine& engine, const ClipJob& job,
                  const ClipOutput& output, End end, double seconds) {
  if (output.is_stdout()) return;
  const bool written = output.frames() > 0;
  if (!options.json) {
    if (written) print(output.path().string());
    return;
  }
  JsonObject result = clip_json(engine, job);
  result.add("files", written ? std::vector{output.path().string()} : std::vector<std::string>());
  result.add("frames", output.frames()).add("seconds", seconds);
  if (!job.save_state.empty()) result.add("state", job.save_state.string());
  if (end == End::stopped) result.add("stopped", true);
  print(result.text());
}

}  // namespace

void refuse_clip_flags(const SampleOptions& options) {
  const ClipRequest& clip = options.clip;
  const char* flag = clip.prompt                   ? "--prompt"
                     : !clip.prompt_at.empty()     ? "--prompt-at"
                     : clip.frames                 ? "--frames"
                     : clip.fps                    ? "--fps"
                     : clip.stream                 ? "--stream"
                     : !clip.save_state.empty()    ? "--save-state"
                     : !clip.continue_from.empty() ? "--continue"
                                                   : nullptr;
  if (flag != nullptr)
    throw UsageError(detail::concat(flag, ": expected a model that makes clips, and ", options.model,
                                    " makes pictures, of a --class"));
}

void refuse_picture_flags(const SampleOptions& options) {
  const SampleOptions plain;
  const char* flag = options.request.class_name != plain.request.class_name ? "--class"
                     : options.request.count != plain.request.count         ? "--count"
                     : options.grid                                         ? "--grid"
                     : options.preview > 0                                  ? "--preview"
                     : options.batch > 0                                    ? "--batch"
                                                                            : nullptr;
  if (flag != nullptr)
    throw UsageError(detail::concat(flag, ": expected a model that makes pictures, and ", options.model,
                                    " makes clips, of a --prompt"));
}

int sample_clip(const SampleOptions& options) {
  refuse_picture_flags(options);
  ClipEngine engine(options.model, options.device);
  const ClipJob job = resolve(options, engine);
  if (options.dry_run) return forecast(options, engine, job);
  ClipOutput output(options.output, default_name(engine, job), options.yes);
  if (output.is_stdout() && options.json)
    throw UsageError("--json: expected a file behind -o, got -, which is the clip itself");
  check_state_place(options);
  if (options.request.seed < 0) say("using random seed " + std::to_string(job.request.seed));
  if (!options.quiet)
    for (const std::string& remark : job.remarks) say(remark);
  output.describe({.fps = job.fps, .growing = job.stream, .text = description(engine, job)});
  const StopSignals signals;
  const double start = steady_seconds();
  const End end = make_clip(engine, job, output, signals, options);
  print_result(options, engine, job, output, end, steady_seconds() - start);
  tell_end(options, output, end);
  return end == End::stopped ? signals.exit_code() : Exit::ok;
}

}  // namespace pom::cli
