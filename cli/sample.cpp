// `pom sample`: a request in flags, images or clips in files.
#include <chrono>
#include <iostream>
#include <optional>

#include <ATen/ops/cat.h>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/latents_file.h"
#include "cli/output_names.h"
#include "cli/processor.h"
#include "cli/ranks_launch.h"
#include "cli/sample_options.h"
#include "cli/sample_ranks.h"
#include "cli/sheet.h"
#include "cli/signals.h"
#include "cli/sink.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "cli/vbench.h"
#include "pom/base/progress.h"
#include "pom/generate/device.h"
#include "pom/generate/engine.h"
#include "pom/generate/init_file.h"
#include "pom/generate/model_names.h"
#include "pom/io/atomic_file.h"
#include "pom/io/clip.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Engine, generate::Job, generate::Request;

enum class End { whole, stopped, unread };

// A run of the program: what was asked, and what it stands for.
struct Run {
  const SampleOptions& options;
  Engine& engine;
  Job job = {};
  generate::Limits limits = {};
  generate::Inputs inputs = {};
  std::vector<std::pair<std::int64_t, at::Tensor>> latents = {};  // as they were made, to be saved
  double seconds = 0;
  std::optional<VbenchPlan> vbench = {};
  parallel::Ranks ranks = {};

  bool writes() const { return ranks.first() || !options.split; }
  void remark(const std::string& text) const {
    if (!options.quiet && !text.empty() && ranks.first()) say(text);
  }
};

// ---- before the work ----

// A file that is damaged is no mistake in what was asked for.
void check_files(const Request& request) {
  if (!request.continue_from.empty()) generate::check_state(request.continue_from);
  if (!request.init.empty()) generate::init_shape(request.init);
}

// An image of a model for clips is a clip of one frame: the name of the output says which is wanted.
Request asked(const SampleOptions& options, const generate::ModelConfig& config) {
  Request request = options.request;
  if (!options.prompts.empty()) {
    if (!request.prompt.empty()) throw UsageError("--prompts: cannot be combined with --prompt");
    request.prompt = read_prompts(options.prompts);
  }
  if (!options.size.empty()) {
    check(!request.width && !request.height, "--size: cannot be combined with --width or --height");
    generate::set_size(request, options.size);
  }
  const bool images = is_image_name(options.output) || is_npz_name(options.output);
  if (config.network.video() && !request.frames && images) request.frames = "1";
  return request;
}

void check_new_file(const std::string& path, const char* flag, bool replace) {
  if (path.empty()) return;
  std::error_code ignored;
  const fs::path file = path, folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored))
    throw UsageError(detail::concat(flag, ": no such folder: ", folder.string()));
  if (fs::is_directory(file, ignored)) throw UsageError(detail::concat(flag, ": ", path, " is a folder"));
  if (fs::exists(file, ignored) && !replace)
    throw UsageError(detail::concat(flag, ": ", path, " already exists; use -y to overwrite"));
}

// Flags that would say where clips go, or overwrite them.
void check_vbench(const SampleOptions& options, const generate::ModelConfig& config) {
  const auto refuse = [](bool given, const char* flag) {
    if (given) throw UsageError(detail::concat(flag, ": cannot be combined with --vbench"));
  };
  if (options.vbench.empty()) return;
  if (!config.network.video()) throw UsageError("--vbench: expected a model for clips, got one for images");
  refuse(!options.output.empty(), "--output");
  refuse(options.grid, "--grid");
  refuse(options.preview > 0, "--preview");
  refuse(options.yes, "--yes");
  refuse(options.split, "--split");
  refuse(!options.save_latents.empty(), "--save-latents");
  refuse(!options.init_latents.empty(), "--init-latents");
  if (options.request.seed.size() != 1 || options.request.own_seed() < 0)
    throw UsageError("--seed: expected one of at least 0 with --vbench, from which each clip's follows");
  as_usage([&] { io::check_clip_name("a.mp4"); });
}

Run prepare(SampleOptions& options, Engine& engine) {
  Run run{.options = options, .engine = engine, .ranks = parallel::world()};
  check_vbench(options, engine.config());
  if (options.request.count == 0) options.request.count = options.vbench.empty() ? 1 : vbench_clips;
  check_files(options.request);
  if (!options.init_latents.empty()) run.inputs.noise = read_latents(options.init_latents);
  as_usage([&] {
    Request request = asked(options, engine.config());
    run.job = engine.resolve(request);
    share_seed(request, run.job, run.ranks);
    if (!run.ranks.alone()) run.job = engine.resolve(request);
  });
  if (engine.config().network.video() &&
      (options.output == "-" || (!options.output.empty() && io::is_clip_file_name(options.output))))
    run.job.clip = true;  // of one frame, maybe
  if (!options.vbench.empty()) {
    run.job.clip = true;
    if (run.job.stream) throw UsageError("--stream: cannot be combined with --vbench");  // files would grow
    run.vbench = plan_vbench(options, engine, run.job);
    if (run.job.items.empty()) return run;
  }
  run.limits.batch = options.batch;
  if (!options.memory_limit.empty())
    run.limits.memory_bytes = parse_bytes(options.memory_limit, "--memory-limit");
  if (std::ssize(run.job.items) < run.ranks.size()) options.split = true;
  check_ranks(options, run.job, run.ranks);
  limit_to_rank(run.limits, options, run.job, run.ranks);
  return run;
}

// ---- the forecast ----

std::string advice(const Run& run, const generate::Forecast& f) {
  if (f.fits || !f.advice.empty()) return f.advice;
  const std::string need = std::to_string(f.peak_bytes / (1 << 20) + 1) + "M";
  return run.limits.memory_bytes > 0 ? "--memory-limit " + need + " would do"
                                     : "it needs " + need + " of memory, or a smaller --size";
}

// "30 images of 64x64, 8 at a time", "a clip of 48 frames of 32x32, block by block"
std::string work_text(const Job& job, const generate::Forecast& f) {
  const Request& r = job.first();
  const std::string size = detail::concat(*r.width, "x", *r.height);
  if (!job.clip) return detail::concat("images    ", f.items, " of ", size, ", ", f.batch, " at a time");
  const std::string frames = job.frames == 0 ? "without end" : detail::concat(job.frames, " frames");
  return detail::concat(f.items == 1 ? "clip      " : detail::concat("clips     ", f.items, ", each "),
                        frames, " of ", size, job.stream ? ", block by block" : ", whole",
                        f.items == 1 ? "" : detail::concat(", ", f.batch, " at a time"));
}

int forecast(Run& run) {
  const generate::Forecast f = run.engine.forecast(run.job, run.limits);
  const Job& job = run.job;
  const bool endless = job.frames == 0;
  if (run.options.json) {
    print(JsonObject()
              .add("items", f.items)
              .add("frames", job.frames)
              .add("blocks", job.blocks)
              .add("batch", f.batch)
              .add("evaluations", f.evaluations)
              .add("macs", f.macs)
              .add("seconds", f.seconds)
              .add("peak_bytes", f.peak_bytes)
              .add("free_bytes", f.free_bytes)
              .add("fits", f.fits)
              .add("advice", advice(run, f))
              .text());
    return f.fits ? Exit::ok : Exit::failed;
  }
  print(detail::concat(work_text(job, f), "; ", *job.first().sampler, ", ", *job.first().steps, " steps, ",
                       f.evaluations, " evaluations", endless ? " a block" : ""));
  print(detail::concat("time      ", f.seconds > 0 ? "about " + seconds_text(f.seconds) : "not measured",
                       endless ? " a block (" : " (", amount_text(f.macs), " multiply-adds)"));
  if (f.peak_bytes == 0) {
    print("memory    not forecast on " + run.engine.device());
    return Exit::ok;
  }
  print("memory    " + bytes_text(static_cast<double>(f.peak_bytes)) + " at most, of " +
        bytes_text(static_cast<double>(f.free_bytes)));
  print(f.fits ? "it fits" : "it does not fit: " + advice(run, f));
  return f.fits ? Exit::ok : Exit::failed;
}

// ---- the work ----

// Blocks of a batch follow each other in time, batches in items.
void write_latents(Run& run) {
  if (run.options.save_latents.empty() || run.latents.empty()) return;
  std::vector<at::Tensor> batches;
  for (std::size_t i = 0; i < run.latents.size();) {
    const std::int64_t item = run.latents[i].first;
    std::vector<at::Tensor> blocks;
    for (; i < run.latents.size() && run.latents[i].first == item; ++i)
      blocks.push_back(run.latents[i].second);
    batches.push_back(blocks.size() == 1 ? blocks.front() : at::cat(blocks, 2));
  }
  save_latents(run.options.save_latents, at::cat(batches).contiguous());
}

// A bar on a terminal, lines elsewhere. Made with the first evaluation, which tells how many there are; its
// time counts from before that.
class Bar {
 public:
  explicit Bar(bool quiet) : quiet_(quiet), began_(steady_seconds()) {}
  void operator()(std::int64_t done, std::int64_t total) {
    if (quiet_) return;
    if (!progress_)
      progress_.emplace(
          "sampling", total, progress_sink(std::cerr),
          ProgressOptions{
              .terminal = is_terminal(2), .width = terminal_width(2), .unit = "evaluation", .began = began_});
    progress_->set(done);
  }
  void note(const std::string& text) {
    if (progress_) progress_->note(text);
  }
  void finish() {
    if (progress_) progress_->finish();
    progress_.reset();
    quiet_ = true;
  }

 private:
  bool quiet_;
  double began_;
  std::optional<Progress> progress_;
};

End make(Run& run, Sink& sink, const StopSignals& signals) {
  const Job& job = run.job;
  Bar bar(run.options.quiet || !run.ranks.first());
  generate::Observer observer;
  observer.stop = &signals.asked();
  observer.on_evaluation = [&](std::int64_t done, std::int64_t total) {
    bar(done, total);
    if (done == total && !job.stream) bar.finish();  // before the last path, which then is the last line
  };
  observer.on_frames = [&](generate::Frames&& frames) { sink.take(std::move(frames)); };
  observer.on_block = [&] {
    if (job.stream) bar.note(detail::concat(sink.frames(), " frames"));
    sink.end_block();
  };
  observer.on_remark = [&](const std::string& remark) { run.remark(remark); };
  observer.preview_every = run.writes() ? run.options.preview : 0;
  observer.on_preview = [&](std::int64_t step, std::vector<generate::Frames>&& frames) {
    sink.preview(step, frames);
  };
  if (!run.options.save_latents.empty())
    observer.on_latents = [&](std::int64_t item, const at::Tensor& latents) {
      run.latents.emplace_back(item, latents.clone());
    };
  End end = End::whole;
  try {
    try {
      run.engine.run(job, run.limits, observer, run.inputs);
      bar.finish();
    } catch (const generate::Stopped&) {
      end = End::stopped;
      if (run.latents.size() > 0) run.remark("the latents were not written: " + run.options.save_latents);
    }
    if (run.writes()) sink.finish(end == End::stopped);
  } catch (const io::ClosedPipe&) {
    end = End::unread;
  }
  if (end != End::stopped && run.writes()) write_latents(run);
  return end;
}

void print_result(const Run& run, const Sink& sink, End end) {
  if (!run.options.json || sink.is_stdout()) return;
  const Job& job = run.job;
  std::vector<std::int64_t> seeds;
  std::vector<std::string> subjects;
  for (std::int64_t i = 0; i < sink.items(); ++i) {
    seeds.push_back(job.items[static_cast<std::size_t>(i)].own_seed());
    subjects.push_back(job.items[static_cast<std::size_t>(i)].subject());
  }
  JsonObject result;
  result.add("files", sink.files()).add("seeds", seeds);
  result.add(job.first().class_name ? "classes" : "prompts", subjects);
  std::vector<JsonObject> changes;
  for (const Job::Change& change : job.changes)
    changes.push_back(
        JsonObject().add("frame", change.block * run.engine.block_frames()).add("prompt", change.prompt));
  if (!changes.empty()) result.add("changes", changes);
  if (job.clip) result.add("frames", sink.frames()).add("fps", job.fps);
  result.add("seconds", run.seconds);
  JsonObject model;
  model.add("name", run.engine.name()).add("folder", run.engine.folder().string());
  model.add("sha256", run.engine.weights_hash());
  if (!run.engine.text_hash().empty()) model.add("text_encoder_sha256", run.engine.text_hash());
  if (const std::string hash = run.engine.codec_hash(); !hash.empty()) model.add("vae_sha256", hash);
  result.add("model", model);
  result.raw("request", generate::request_json(run_request(run.options.request, job)));
  if (run.options.preview > 0) result.add("previews", sink.previews());
  if (!job.save_state.empty() && sink.items() > 0) result.add("state", job.save_state.string());
  if (end == End::stopped) result.add("stopped", true);
  print(result.text());
}

void tell_end(const Run& run, const Sink& sink, End end) {
  const bool clip = run.job.clip;
  if (end == End::unread) {
    if (!run.options.quiet)
      say(detail::concat("nobody reads any more; ", sink.frames(), " frames were written"));
    return;
  }
  if (end != End::stopped) return;
  if (sink.items() == 0) return say(clip ? "stopped; no clip was written" : "stopped; no image was written");
  if (clip && run.job.items.size() == 1)
    return say(detail::concat("stopped; ", sink.frames(),
                              sink.frames() == 1 ? " frame was written" : " frames were written"));
  say(detail::concat("stopped; ", sink.items(), " of ", run.job.items.size(),
                     clip ? " clips were written" : " images were written"));
}

// What the clips are is told before the first of them.
void begin_vbench(const Run& run) {
  const VbenchPlan& plan = *run.vbench;
  if (run.ranks.first()) {
    make_folder_of(plan.manifest);
    io::write_file_atomically(plan.manifest, plan.text);
  }
  for (const std::string& remark : plan.remarks) run.remark(remark);
  if (plan.there > 0)
    run.remark(
        detail::concat(plan.there, " clips are there and stay; ", run.job.items.size(), " are missing"));
}

int sample(SampleOptions& options) {
  if (options.model.empty()) throw UsageError("--model: expected a model folder, got nothing");
  options.model = as_usage([&] { return generate::model_folder(options.model, "--model"); }).string();
  if (!options.dry_run) on_ranks(options.gpus);
  set_threads(options.threads);
  as_usage([&] { generate::device_named(options.device, "sample"); });
  Engine engine(options.model, options.device);
  Run run = prepare(options, engine);
  if (run.job.items.empty()) {
    if (run.ranks.first())
      say(detail::concat("all ", run.vbench->there, " clips are there: ", options.vbench));
    return Exit::ok;
  }
  if (options.dry_run) return run.ranks.first() ? forecast(run) : Exit::ok;
  const std::unique_ptr<Sink> sink = run.vbench     ? clip_sink(options, run.job, engine, run.vbench->names)
                                     : run.job.clip ? clip_sink(options, run.job, engine)
                                                    : image_sink(options, run.job, engine);
  check_new_file(options.request.save_state, "--save-state", options.yes);
  check_new_file(options.save_latents, "--save-latents", options.yes);
  if (!options.save_latents.empty() && run.job.frames == 0)
    throw UsageError("--save-latents: expected a clip with an end, got --frames inf");
  run.ranks.meet(std::chrono::minutes(10));  // all have looked at what is there before anyone writes
  if (run.vbench) begin_vbench(run);
  if (run.ranks.first() && options.request.seed.size() == 1 && options.request.own_seed() < 0)  // never lost
    say("using random seed " + std::to_string(run.job.first().own_seed()));
  for (const std::string& remark : run.job.remarks) run.remark(remark);
  run.remark(sink->remark());
  const StopSignals signals;
  const double start = steady_seconds();
  const End end = make(run, *sink, signals);
  run.seconds = steady_seconds() - start;
  if (run.writes()) {
    print_result(run, *sink, end);
    tell_end(run, *sink, end);
  }
  return end == End::stopped ? signals.exit_code() : Exit::ok;
}

Action declare_sample(Flags& flags) {
  const auto options = std::make_shared<SampleOptions>();
  options->request.count = 0;  // not given
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.letter("quiet", 'q');
  flags.repeated("prompt");
  flags.repeated("prompt_at");
  flags.once("class", "write --class a,b");
  flags.once("seed", "write --seed 3,14");
  flags.once("negative_class", "expected one class");
  flags.once("negative_prompt", "expected one text, for all prompts");
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
          "Makes images or clips with a model: images as PNG or JPEG, clips as MP4, WebM, GIF, raw video or "
          "a folder of frames. Each file carries the settings that made it, and `pom reproduce` makes it "
          "again.\n"
          "\n"
          "Paths of finished files go to stdout, progress to stderr. Settings that are not given take the "
          "model's defaults (pom info DIR shows them). One seed, one image: item i of a run has "
          "seed + i, and comes out the same alone, in any batch and with any number of threads.\n"
          "\n"
          "A model that reads text takes --prompt and makes a clip, or, for an output that ends in .png or "
          ".jpg, an image. With --stream a clip comes block by block; Ctrl-C, or closing the "
          "player, finishes the file so that it plays.",
      .examples =
          "pom sample --model assets/shapes64 --class circle --seed 7 -o circle.png\n"
          "pom sample --model assets/shapes64 --class all --count 4 --grid -o sheet.png\n"
          "pom sample --model assets/shapes64 --class 0-2 --size 64x64 --dry-run\n"
          "pom sample --model assets/sprites32 --prompt \"a red star\" -o star.mp4\n"
          "pom sample --model assets/sprites32 --prompts list.txt --vbench out/clips",
      .declare = declare_sample,
  };
}

}  // namespace pom::cli
