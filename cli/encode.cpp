// `pom encode`: pictures or clips as a data set of latents, in shards that training streams.
#include "pom/data/encode.h"

#include <charconv>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>

#include <ATen/ops/tensor.h>

#include "cli/command.h"
#include "cli/common_fields.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/processor.h"
#include "cli/ranks_launch.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/progress.h"
#include "pom/generate/device.h"
#include "pom/parallel/ranks.h"

namespace pom::cli {
namespace {

struct EncodeFlags {
  std::string what, source, output, vae, text, size = "256", crop, store = "moments", stored_dtype = "fp16",
                                               part;
  std::string device = "auto", dtype, chunks = "cached";
  std::int64_t text_limit = 64, frames = 80, per_shard = 1000, batch = 8, workers = 0, seed = 0, gpus = 0;
  double fps = 16;
  std::optional<double> scale, shift;
  std::optional<std::int64_t> threads;
  bool mirror = false, dry_run = false, yes = false, json = false, quiet = false;

  template <class Visit>
  void fields(Visit&& visit) {
    source_fields(visit);
    result_fields(visit);
    work_fields(visit);
  }

 private:
  template <class Visit>
  void source_fields(Visit&& visit) {
    constexpr std::string_view group = "What to encode";
    visit(Field{.name = "what",
                .help = "pictures, or clips with captions",
                .value = "pictures|clips",
                .group = group,
                .choices = {"pictures", "clips"}},
          what);
    visit(
        Field{.name = "source",
              .help = "a folder with a subfolder per class, a folder of clips with captions, WebDataset tars "
                      "(data-{000..123}.tar), or a table in WebVid's form (.csv)",
              .value = "SOURCE",
              .group = group},
        source);
    visit(Field{.name = "size",
                .help = "width and height in pixels, 256 or 384x240",
                .value = "WxH",
                .group = group},
          size);
    visit(
        Field{.name = "crop",
              .help = "adm, homm (the authors'), cover (as training reads folders), homm-clips (the authors' "
                      "clips) (default: adm, of clips cover)",
              .value = "NAME",
              .group = group,
              .choices = {"adm", "homm", "homm-clips", "cover"}},
        crop);
    visit(Field{.name = "mirror",
                .help = "the mirrored image follows each, as a sample of its own",
                .group = group},
          mirror);
    visit(Field{.name = "frames",
                .help = "first frames of a clip",
                .value = "N",
                .group = group,
                .least = 1,
                .most = 1e6},
          frames);
    visit(Field{.name = "fps",
                .help = "frames per second of clips",
                .value = "X",
                .group = group,
                .least = 0.01,
                .most = 1000},
          fps);
  }

  template <class Visit>
  void result_fields(Visit&& visit) {
    constexpr std::string_view group = "Result";
    visit(Field{.name = "output",
                .help = "folder for the shards and dataset.json",
                .value = "DIR",
                .group = group},
          output);
    visit(Field{.name = "store",
                .help = "moments (mean and log-variance), or a latent drawn from them",
                .value = "NAME",
                .group = group,
                .choices = {"moments", "latent"}},
          store);
    visit(Field{.name = "stored_dtype",
                .help = "dtype in the files",
                .value = "NAME",
                .group = group,
                .choices = {"fp16", "fp32"}},
          stored_dtype);
    visit(Field{.name = "per_shard",
                .help = "samples in a shard",
                .value = "N",
                .group = group,
                .least = 1,
                .most = 1e7},
          per_shard);
    visit(Field{.name = "scale",
                .help =
                    "scale in (latent - shift) * scale, for dataset.json (default: the VAE's; with --chunks "
                    "alone 1)",
                .value = "X",
                .group = group,
                .least = 1e-6,
                .most = 1e6},
          scale);
    visit(Field{.name = "shift",
                .help = "shift likewise (default: the VAE's; with --chunks alone 0)",
                .value = "X",
                .group = group,
                .least = -1e6,
                .most = 1e6},
          shift);
    visit(Field{.name = "seed",
                .help = "seed of drawn latents",
                .value = "N",
                .group = group,
                .least = 0,
                .most = 8e6},
          seed);
    visit(Field{.name = "yes", .help = "overwrite a finished data set", .group = group}, yes);
    visit(json_field(group), json);
    visit(quiet_field(group), quiet);
  }

  template <class Visit>
  void work_fields(Visit&& visit) {
    constexpr std::string_view group = "How to work";
    visit(Field{.name = "vae",
                .help = "folder of the autoencoder, as diffusers writes it",
                .value = "DIR",
                .group = group},
          vae);
    visit(Field{.name = "text",
                .help = "folder of a T5 encoder: its states are stored beside the latents of clips",
                .value = "DIR",
                .group = group},
          text);
    visit(Field{.name = "text_limit",
                .help = "tokens of a caption",
                .value = "N",
                .group = group,
                .least = 1,
                .most = 65536},
          text_limit);
    visit(Field{.name = "chunks",
                .help =
                    "how clips are encoded: cached (as diffusers), or alone (each 8 frames by themselves, as "
                    "the authors)",
                .value = "NAME",
                .group = group,
                .choices = {"cached", "alone"}},
          chunks);
    visit(generate::device_field(group), device);
    visit(Field{.name = "dtype",
                .help = "dtype of the networks (default: bf16 on a GPU, else fp32)",
                .value = "NAME",
                .group = group,
                .choices = {"fp32", "bf16", "fp16"}},
          dtype);
    visit(Field{.name = "batch",
                .help = "samples at once",
                .value = "N",
                .group = group,
                .least = 1,
                .most = 65536},
          batch);
    visit(Field{.name = "workers",
                .help = "threads that decode files; 0: one per core",
                .value = "N",
                .group = group,
                .least = 0,
                .most = 1024},
          workers);
    visit(threads_field(group), threads);
    visit(gpus_field(group), gpus);
    visit(Field{.name = "part",
                .help = "this machine's share, from 0: 2/8 is the third of eight; the last one joins them",
                .value = "I/N",
                .group = group},
          part);
    visit(Field{.name = "dry_run", .help = "say how much there is to do, and do nothing", .group = group},
          dry_run);
  }
};

// Two numbers with a sign between them, or nothing.
std::optional<std::pair<std::int64_t, std::int64_t>> two_numbers(const std::string& text, char sign) {
  std::int64_t first = 0, second = 0;
  const char* end = text.data() + text.size();
  const auto one = std::from_chars(text.data(), end, first);
  if (one.ec != std::errc() || one.ptr == end || *one.ptr != sign) return std::nullopt;
  const auto two = std::from_chars(one.ptr + 1, end, second);
  if (two.ec != std::errc() || two.ptr != end) return std::nullopt;
  return std::pair{first, second};
}

void take_size(const EncodeFlags& flags, data::EncodeFormat& format) {
  const std::string& text = flags.size;
  const bool square = text.find('x') == std::string::npos;
  const auto sides = two_numbers(square ? text + "x" + text : text, 'x');
  if (!sides || sides->first < 1 || sides->second < 1 || sides->first > 65536 || sides->second > 65536)
    throw UsageError("--size: expected WIDTHxHEIGHT in pixels, as 384x240 or 256, got \"" + text + "\"");
  format.width = sides->first, format.height = sides->second;
}

at::ScalarType dtype_named(const EncodeFlags& flags, const c10::Device& device) {
  const std::string name = !flags.dtype.empty() ? flags.dtype : device.is_cpu() ? "fp32" : "bf16";
  return name == "fp16" ? at::kHalf : name == "bf16" ? at::kBFloat16 : at::kFloat;
}

void check_words(const EncodeFlags& flags) {
  if (flags.what.empty() || flags.source.empty())
    throw UsageError("expected pictures or clips and their source, got " +
                     (flags.what.empty() ? std::string("nothing") : "only " + flags.what));
  if (flags.output.empty()) throw UsageError("--output: expected a folder, got nothing");
  if (flags.vae.empty()) throw UsageError("--vae: expected the folder of an autoencoder, got nothing");
}

// Each rank has a part of its own, of what is this machine's.
data::EncodeOptions options_of(const EncodeFlags& flags, const parallel::Ranks& ranks) {
  const bool clips = flags.what == "clips";
  data::EncodeOptions options;
  options.source = flags.source, options.output = flags.output, options.vae = flags.vae,
  options.text = flags.text;
  options.text_limit = flags.text_limit;
  take_size(flags, options.format);
  options.format.crop = !flags.crop.empty() ? flags.crop : clips ? "cover" : "adm";
  options.format.frames = clips ? flags.frames : 0;
  options.format.fps = flags.fps;
  options.mirror = flags.mirror;
  options.store = flags.store, options.stored_dtype = flags.stored_dtype, options.seed = flags.seed;
  options.per_shard = flags.per_shard, options.batch = flags.batch, options.workers = flags.workers;
  options.scale = flags.scale, options.shift = flags.shift;
  options.device = as_usage([&] { return generate::device_named(flags.device, "encode"); });
  options.dtype = dtype_named(flags, options.device);
  options.chunks = flags.chunks;
  options.overwrite = flags.yes;
  if (!flags.part.empty()) {
    const auto part = two_numbers(flags.part, '/');
    if (!part || part->second < 1 || part->first < 0 || part->first >= part->second)
      throw UsageError("--part: expected I/N with I from 0 to N - 1, as 0/8, got \"" + flags.part + "\"");
    options.part = part->first, options.parts = part->second;
  }
  options.part = options.part * ranks.size() + ranks.rank();
  options.parts *= ranks.size();
  return options;
}

int tell_plan(const EncodeFlags& flags, const data::EncodePlan& plan) {
  if (flags.json)
    print(JsonObject()
              .add("items", plan.items)
              .add("samples", plan.samples)
              .add("shards", plan.shards)
              .add("bytes", plan.bytes)
              .add("all_items", plan.all_items)
              .add("all_shards", plan.all_shards)
              .text());
  else
    print(detail::concat(grouped(plan.samples), " samples of ", grouped(plan.items), " ", flags.what, ", ",
                         grouped(plan.shards), " shards, about ",
                         bytes_text(static_cast<double>(plan.bytes))));
  return Exit::ok;
}

int tell_result(const EncodeFlags& flags, const data::EncodeResult& result,
                const std::vector<std::string>& names, int stopped_code) {
  if (!flags.quiet || result.broken > 0) {
    if (result.stopped) say("stopped; the same command goes on after the last whole shard");
    if (result.before) say("finished before: nothing was done");
    if (result.broken > 0) say(detail::concat(result.broken, " broken ", flags.what, " were left out"));
    if (!result.stopped && !result.whole) say("this part is done; the last one of them writes dataset.json");
  }
  if (flags.json)
    print(JsonObject()
              .add("folder", flags.output)
              .add("samples", result.samples)
              .add("shards", result.shards)
              .add("bytes", result.bytes)
              .add("broken", result.broken)
              .add("broken_files", names)
              .add("whole", result.whole)
              .add("stopped", result.stopped)
              .text());
  else if (!result.stopped)
    print(flags.output);
  return result.stopped ? stopped_code : Exit::ok;
}

// What all ranks have done, who wait for the last of them.
data::EncodeResult together(data::EncodeResult mine, std::vector<std::string>& names,
                            const parallel::Ranks& ranks) {
  if (ranks.alone()) return mine;
  ranks.meet(std::chrono::hours(24 * 7));
  at::Tensor sums =
      at::tensor({mine.samples, mine.shards, mine.bytes, mine.broken, std::int64_t{mine.stopped},
                  std::int64_t{mine.whole}, std::int64_t{mine.before}},
                 at::kLong);
  ranks.sum(sums);
  const auto* sum = sums.const_data_ptr<std::int64_t>();
  std::string lines;
  for (const std::string& name : names) lines += name + "\n";
  names.clear();
  for (const std::string& theirs : ranks.gather_text(lines)) {
    std::istringstream all(theirs);
    for (std::string name; std::getline(all, name);) names.push_back(name);
  }
  mine.samples = sum[0], mine.shards = sum[1], mine.bytes = sum[2], mine.broken = sum[3];
  mine.stopped = sum[4] > 0, mine.whole = sum[5] > 0, mine.before = sum[6] == ranks.size();
  return mine;
}

int run_encode(const EncodeFlags& flags) {
  check_words(flags);
  if (!flags.dry_run) on_ranks(flags.gpus);
  const parallel::Ranks& ranks = parallel::world();
  set_threads(flags.threads.value_or(0));
  const data::EncodeOptions options = options_of(flags, ranks);
  std::error_code ignored;
  if (std::filesystem::exists(flags.output, ignored) && !std::filesystem::is_directory(flags.output, ignored))
    throw UsageError("--output: expected a folder, got the file " + flags.output);
  data::EncodeRun run(options);
  const data::EncodePlan plan = run.plan();
  if (flags.dry_run) return ranks.first() ? tell_plan(flags, plan) : Exit::ok;
  const bool quiet = flags.quiet || !ranks.first();
  const StopSignals signals;
  std::optional<Progress> progress;  // made when it is known how much was done before
  std::vector<std::string> names;
  data::EncodeWatcher watcher;
  const auto tell = [&](const std::string& line) { progress && !quiet ? progress->say(line) : say(line); };
  watcher.on_items = [&](std::int64_t done) {
    if (progress) return progress->set(done);
    progress.emplace("encoding", plan.items, quiet ? ProgressSink() : progress_sink(std::cerr),
                     ProgressOptions{.terminal = is_terminal(2),
                                     .width = terminal_width(2),
                                     .unit = options.format.clips() ? "clip" : "image",
                                     .first = done});
  };
  watcher.on_broken = [&](const std::string& name, const std::string& why) {
    names.push_back(name);
    tell("skipped " + name + ": " + why);
  };
  watcher.on_remark = [&](const std::string& text) {
    if (!quiet) tell(text);
  };
  watcher.stop = [&] { return signals.asked().load(); };
  data::EncodeResult result = run.run(watcher);
  if (progress && !result.stopped) progress->finish();
  progress.reset();
  result = together(result, names, ranks);
  return ranks.first()    ? tell_result(flags, result, names, signals.exit_code())
         : result.stopped ? signals.exit_code()
                          : Exit::ok;
}

Action declare_encode(Flags& flags) {
  const auto options = std::make_shared<EncodeFlags>();
  flags.positional("what");
  flags.positional("source");
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.letter("quiet", 'q');
  flags.add(*options);
  return [options] { return run_encode(*options); };
}

}  // namespace

Command encode_command() {
  return {
      .name = "encode",
      .summary = "pictures or clips as shards of latents to train from",
      .usage = "encode pictures|clips SOURCE --vae DIR -o DIR [flags]",
      .about =
          "Encodes a source with an autoencoder into WebDataset tars of moments with a class or a caption "
          "each, "
          "and a dataset.json that says how. Files that cannot be read are named and left out.\n\n"
          "A run that was stopped or killed goes on after its last whole shard when the same command is "
          "given "
          "again; the files are then the same as those of a run that was not. With --part several machines "
          "share "
          "the work in one folder.",
      .examples =
          "pom encode pictures imagenet/train --vae sd-vae-ft-mse -o latents --mirror\n"
          "pom encode clips webvid.csv --vae CogVideoX-2b/vae --text flan-t5-large --size 384x240 --crop "
          "homm-clips "
          "--chunks alone -o clips",
      .declare = declare_encode,
  };
}

}  // namespace pom::cli
