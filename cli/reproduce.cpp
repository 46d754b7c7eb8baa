// `pom reproduce`: makes an image or clip again from the settings that its file carries, and compares the
// pixels.
#include <iostream>
#include <memory>
#include <optional>
#include <stdlib.h>  // mkdtemp

#include "cli/clip_output.h"
#include "cli/command.h"
#include "cli/common_fields.h"
#include "cli/compare.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/latents_file.h"
#include "cli/output_names.h"
#include "cli/processor.h"
#include "cli/sheet.h"
#include "cli/signals.h"
#include "cli/source.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/build_info.h"
#include "pom/base/progress.h"
#include "pom/base/shown.h"
#include "pom/generate/device.h"
#include "pom/generate/engine.h"
#include "pom/generate/model_names.h"
#include "pom/io/clip.h"
#include "pom/io/picture.h"
#include "pom/io/sha256.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Engine, generate::Job, generate::Origin, generate::Request;

struct ReproduceOptions {
  std::string file, model, device = "cpu", output, init, init_latents, continue_from;
  std::int64_t threads = 0;
  bool yes = false, json = false;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view work = "How to work", result = "Result";
    visit(Field{.name = "file",
                .help = "an image, a clip or a folder of frames made by pom sample",
                .value = "FILE",
                .group = "File"},
          file);
    visit(Field{.name = "model",
                .help = "model folder, or its name (default: that of the same name in $POM_MODELS, "
                        "assets/, models/ or next to the file)",
                .value = "DIR",
                .group = "Model"},
          model);
    visit(Field{.name = "init",
                .help = "the file it started from (default: that of the same name next to it)",
                .value = "FILE",
                .group = "Model"},
          init);
    visit(Field{.name = "init_latents",
                .help = "the noise it started from, where that was not its seed's (default: the file of the "
                        "same name next to it)",
                .value = "FILE",
                .group = "Model"},
          init_latents);
    visit(Field{.name = "continue",
                .help = "the state it continued (default: that of the same name next to it)",
                .value = "FILE",
                .group = "Model"},
          continue_from);
    visit(
        Field{.name = "output", .help = "also write the new image or clip", .value = "FILE", .group = result},
        output);
    visit(yes_field(result), yes);
    visit(json_field(result), json);
    visit(generate::device_field(work), device);
    visit(threads_field(work), threads);
  }
};

bool is_clip(const fs::path& file) {
  std::error_code ignored;
  return io::is_clip_file_name(file) || fs::is_directory(file, ignored);
}

// Which has one more row or column where a side is odd.
bool is_mp4(const fs::path& file) {
  std::string extension = file.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension == ".mp4";
}

std::vector<fs::path> places(const fs::path& picture) {
  std::vector<fs::path> folders = generate::model_places();
  folders.push_back(picture.has_parent_path() ? picture.parent_path() : ".");
  return folders;
}

// A name from a file's metadata is somebody else's text: one part of a path, or nothing.
fs::path find_model(const std::string& name, const fs::path& picture) {
  const bool plain = !name.empty() && name != "." && name != ".." && fs::path(name).filename() == name;
  std::string looked;
  for (const fs::path& folder : places(picture)) {
    std::error_code ignored;  // of names that no folder can have
    if (plain && fs::is_regular_file(folder / name / generate::config_file, ignored)) return folder / name;
    looked += (looked.empty() ? "" : ", ") + folder.string();
  }
  fail("model \"", shown(name), "\" was not found in ", looked, ": give its folder with --model DIR");
}

// A file that the item began with, by its name beside it or as the flag says, whose bytes must be those of
// then.
std::string find_beside(const std::string& name, const std::string& given, const std::string& hash,
                        const fs::path& file, const char* flag) {
  if (name.empty()) return {};
  const bool plain = fs::path(name).filename() == name && name != "." && name != "..";
  const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const fs::path path = !given.empty() ? fs::path(given) : plain ? folder / name : fs::path();
  std::error_code ignored;
  check(!path.empty() && fs::exists(path, ignored), "it began with \"", shown(name), "\", which is not in ",
        folder.string(), ": say where it is with ", flag, " FILE");
  check(hash.empty() || io::sha256_file(path) == hash, path.string(),
        ": expected the file that it began with, got another (the SHA-256 differs)");
  return path.string();
}

// A folder of this run alone, which goes with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "pom-reproduce-XXXXXX").string();
    check(::mkdtemp(pattern.data()) != nullptr, "reproduce: cannot create a folder in ",
          fs::temp_directory_path().string());
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// What is made again: the file as it is, and the request that made it.
struct Again {
  const ReproduceOptions& options;
  Source source;
  Engine& engine;
  bool clip = false;
  io::Image image = {};   // of an image
  ClipShape shape = {};   // of either
  Request request = {};   // with the files that it began with found
  at::Tensor noise = {};  // of the file of --init-latents: of the item, or of all on a sheet
};

// ---- before the work ----

// The request is somebody else's text: what it makes must be what there is to compare with, before anything
// is made.
void check_item(const Again& again, const Job& job) {
  const Request& r = again.request;
  check(*r.width == again.shape.width && *r.height == again.shape.height,
        "the settings: expected the file's size, ", again.shape.width, "x", again.shape.height, ", got ",
        r.width.value_or(0), "x", r.height.value_or(0));
  check(job.items.size() == 1, "the settings: expected those of one ", again.clip ? "clip" : "image",
        ", got class or prompt \"", shown(r.subject()), "\", which makes ", job.items.size());
}

// The same of a sheet, laid out with blank images. Their number is bounded first, by what the sheet can hold.
void check_sheet(const Again& again) {
  const Request& r = again.request;
  check(r.width && r.height, "the settings of the sheet: expected the size of an image, got none");
  check(!again.clip || r.frames == std::to_string(again.shape.frames),
        "the settings of the sheet: expected the file's ", again.shape.frames, " frames, got ",
        shown(r.frames.value_or("none")));
  check(again.clip || r.frames.value_or("1") == "1",
        "the settings of the sheet: expected images, got clips of ", shown(r.frames.value_or("1")),
        " frames");
  const std::int64_t most = again.shape.width * again.shape.height / (*r.width * *r.height);
  const auto check_count = [&](std::int64_t items) {
    check(items <= most, "the settings of the sheet: expected at most ", most, " images of ", *r.width, "x",
          *r.height, " on ", again.shape.width, "x", again.shape.height, " pixels, got ", items);
  };
  check_count(std::max(r.count, std::ssize(r.seed)));  // of each class
  const Job job = again.engine.resolve(r);
  check_count(std::ssize(job.items));
  const std::vector<io::Image> blank(job.items.size(), io::make_image("reproduce", *r.width, *r.height, 1));
  const io::Image sheet = sheet_of(blank, job.items);
  const auto as_file = [&](std::int64_t side) { return is_mp4(again.options.file) ? side + side % 2 : side; };
  check(as_file(sheet.width) == again.shape.width && as_file(sheet.height) == again.shape.height,
        "the settings of the sheet: expected what makes ", again.shape.width, "x", again.shape.height,
        " pixels, as the file has, got ", sheet.width, "x", sheet.height);
}

// A stream may have been stopped: it is made as long as it is. An odd side of an .mp4 has one more row.
void fit_to_file(Again& again) {
  Request& r = again.request;
  if (!again.clip || again.source.sheet) return;
  if (r.stream && !again.engine.config().network.needs_length()) {
    r.frames = std::to_string(again.shape.frames);
    std::erase_if(r.prompt_at, [&](const std::string& change) {  // those that it did not come to
      return std::strtoll(change.c_str(), nullptr, 10) >= again.shape.frames;
    });
  }
  check(r.frames == std::to_string(again.shape.frames), "the settings: expected the file's ",
        again.shape.frames, " frames, got ", shown(r.frames.value_or("none")));
  if (!is_mp4(again.options.file) || !r.width || !r.height) return;
  again.shape.width -= again.shape.width - *r.width == 1;
  again.shape.height -= again.shape.height - *r.height == 1;
}

// Of a stream that was stopped, the blocks that there are.
at::Tensor noise_for(const Again& again, const Job& job) {
  const std::int64_t frames = job.blocks * again.engine.config().network.patch_time;
  if (!again.noise.defined() || again.noise.dim() != 5 || again.noise.size(2) <= frames) return again.noise;
  return again.noise.narrow(2, 0, frames);
}

at::Tensor read_noise(const Again& again) {
  const Origin& origin = again.source.origin;
  if (origin.noise_hash.empty()) return {};
  const std::string path = find_beside(origin.noise_file, again.options.init_latents, origin.noise_hash,
                                       again.options.file, "--init-latents");
  const at::Tensor latents = read_latents(path);
  if (again.source.sheet) return latents;
  check(latents.dim() > 0 && origin.noise_row<latents.size(0), path, ": expected latents of more than ",
                                              origin.noise_row, " items, got ", latents.dim()> 0
            ? latents.size(0)
            : 0);
  return latents.narrow(0, origin.noise_row, 1);
}

Again read_again(const ReproduceOptions& options, Source source, Engine& engine) {
  Again again{.options = options, .source = std::move(source), .engine = engine};
  const Origin& origin = again.source.origin;
  again.request = again.source.request();
  again.request.save_state.clear();
  again.request.init =
      find_beside(again.request.init, options.init, origin.init_hash, options.file, "--init");
  again.request.continue_from = find_beside(again.request.continue_from, options.continue_from,
                                            origin.continue_hash, options.file, "--continue");
  again.noise = read_noise(again);
  again.clip = is_clip(options.file);
  if (again.clip) {
    again.shape = clip_shape(options.file);
  } else {
    check(!again.request.frames || *again.request.frames == "1", options.file,
          ": is a frame of a clip: pom reproduce with its folder makes the clip again");
    again.image = io::read_picture(options.file);
    again.shape = {again.image.width, again.image.height, 1};
  }
  fit_to_file(again);
  return again;
}

// What will take long is told before it begins; whether it will.
bool tell_forecast(Engine& engine, const Job& job) {
  constexpr std::int64_t few = 1000;  // steps of items
  const std::int64_t steps = *job.first().steps * std::max<std::int64_t>(1, job.stream ? job.blocks : 1);
  if (steps * std::ssize(job.items) <= few) return false;
  const generate::Forecast f = engine.forecast(job);
  if (!f.fits) return true;  // which the run says in its own words
  say(detail::concat(f.items, job.clip ? " clip" : " image", f.items == 1 ? ", " : "s, ", *job.first().steps,
                     " steps, ", f.evaluations, " evaluations: about ", seconds_text(f.seconds)));
  return true;
}

// ---- the work ----

void run_job(Again& again, const Job& job, generate::Observer observer, const StopSignals& signals) {
  const bool takes_long = tell_forecast(again.engine, job);
  const double began = steady_seconds();
  std::optional<Progress> progress;
  observer.stop = &signals.asked();
  if (takes_long || is_terminal(2))
    observer.on_evaluation = [&](std::int64_t done, std::int64_t total) {
      if (!progress)
        progress.emplace("sampling", total, progress_sink(std::cerr),
                         ProgressOptions{.terminal = is_terminal(2),
                                         .width = terminal_width(2),
                                         .unit = "evaluation",
                                         .began = began});
      progress->set(done);
      if (done == total) progress->finish();
    };
  generate::Limits limits;
  if (again.source.origin.batch > 1 && std::ssize(job.items) == again.source.origin.batch)
    limits.batch = again.source.origin.batch;
  again.engine.run(job, limits, observer, {.noise = noise_for(again, job)});
}

// The file made now carries what it carried, with the weights and the version of now.
std::vector<io::TextEntry> text_again(const Again& again) {
  Origin origin = again.engine.origin(again.source.origin.request);
  const Origin& before = again.source.origin;
  origin.init_hash = before.init_hash, origin.continue_hash = before.continue_hash;
  origin.noise_file = before.noise_file, origin.noise_hash = before.noise_hash;
  origin.noise_row = before.noise_row, origin.batch = before.batch;
  std::vector<io::TextEntry> text = generate::metadata_of(origin);
  if (again.source.sheet)
    describe_sheet(text, *again.source.sheet, again.engine.resolve(again.request).items);
  return text;
}

// As JPEG changes it, where the file is one.
io::Image as_written(const io::Image& image, const fs::path& file) {
  if (!is_jpeg(file)) return image;
  const TemporaryFolder folder;
  io::write_picture(folder.path() / "again.jpg", image);
  return io::read_picture(folder.path() / "again.jpg");
}

Difference make_image(Again& again, const StopSignals& signals) {
  Job job = again.engine.resolve(again.request);
  const std::size_t items = job.items.size();
  // On a GPU bits are those of a batch of so many; whatever else was in it is the same to them.
  if (!again.source.sheet && again.engine.device() != "cpu" && again.source.origin.batch > 1)
    job.items.resize(static_cast<std::size_t>(again.source.origin.batch), job.items.front());
  std::vector<io::Image> images;
  generate::Observer observer;
  observer.on_frames = [&](generate::Frames&& frames) {
    if (images.size() < items) images.push_back(std::move(frames.images.front()));
  };
  run_job(again, job, observer, signals);
  job.items.resize(items);
  const io::Image now = again.source.sheet ? sheet_of(images, job.items) : images.front();
  if (!again.options.output.empty()) {
    make_folder_of(again.options.output);
    io::write_picture(again.options.output, now, text_again(again));
  }
  return compare(again.image, as_written(now, again.options.file));
}

// Written as it was written and read as it is read: what an encoder does to frames it does to both.
Difference make_clip(Again& again, const StopSignals& signals) {
  const TemporaryFolder folder;
  const fs::path file = again.options.file;
  const std::string name = fs::is_directory(file) ? "again" : "again" + file.extension().string();
  const fs::path path = again.options.output.empty() ? folder.path() / name : fs::path(again.options.output);
  Job job = again.engine.resolve(again.request);
  job.clip = true;
  ClipOutput output(path, again.options.yes || again.options.output.empty());
  output.describe({.fps = job.fps, .growing = job.stream && !again.source.sheet, .text = text_again(again)});
  std::vector<std::vector<io::Image>> kept(job.items.size());  // of a sheet
  generate::Observer observer;
  observer.on_frames = [&](generate::Frames&& frames) {
    std::vector<io::Image>& clip = kept.at(static_cast<std::size_t>(frames.item));
    for (io::Image& image : frames.images) {
      if (!again.source.sheet) output.add(image);
      if (again.source.sheet) clip.push_back(std::move(image));
    }
  };
  observer.on_block = [&] {
    if (job.stream && !again.source.sheet) output.flush();
  };
  run_job(again, job, observer, signals);
  for (std::size_t t = 0; t < kept.front().size(); ++t) {
    std::vector<io::Image> images;
    for (std::vector<io::Image>& clip : kept) images.push_back(std::move(clip.at(t)));
    output.add(sheet_of(images, job.items));
  }
  output.finish();
  return compare_clips(again.options.file, path);
}

// ---- what came of it ----

std::string short_hash(const std::string& hash) {
  return hash.substr(0, 12);
}

void print_result(const Again& again, const Difference& difference, bool same_weights) {
  if (!again.options.json) return print(difference.text());
  print(JsonObject()
            .add("agree", difference.none())
            .add("text", difference.text())
            .add("different_pixels", difference.pixels)
            .add("pixels", difference.all)
            .add("frames", difference.of_frames)
            .add("different_frames", difference.frames)
            .add("largest_difference", std::int64_t{difference.largest})
            .add("same_size", difference.shape.empty())
            .add("same_weights", same_weights)
            .add("model", again.engine.folder().string())
            .raw("request", generate::request_json(again.source.request()))
            .text());
}

void check_output(const ReproduceOptions& options) {
  if (options.output.empty()) return;
  const bool clip = is_clip(options.file);
  as_usage([&] { clip ? io::check_clip_name(options.output) : io::check_picture_name(options.output); });
  const std::string before = fs::path(options.file).extension().string(),
                    now = fs::path(options.output).extension().string();
  if (clip && before != now)
    throw UsageError(detail::concat("--output: expected a name that ends as the clip's, \"", before,
                                    "\", got \"", now, "\""));
  std::error_code ignored;
  if (clip && fs::equivalent(options.file, options.output, ignored))
    throw UsageError("--output: expected another file than the clip itself, got " + options.output);
  if (!clip) check_outputs(std::vector<fs::path>{options.output}, options.yes);
}

// Says so where the weights are not those that made the file.
bool compare_weights(const Engine& engine, const Origin& origin) {
  bool same = engine.weights_hash() == origin.model_hash;
  if (!same)
    say(detail::concat("the weights differ: the file was made with ", short_hash(origin.model_hash), ", ",
                       engine.folder().string(), " has ", short_hash(engine.weights_hash())));
  const auto compare = [&](const char* what, const std::string& made, const std::string& has) {
    if (made.empty() || made == has) return;
    say(detail::concat("the ", what, " differs: the file was made with ", short_hash(made), ", ",
                       engine.folder().string(), " has ", has.empty() ? "none" : short_hash(has)));
    same = false;
  };
  compare("text encoder", origin.text_hash, engine.text_hash());
  compare("autoencoder", origin.codec_hash, engine.codec_hash());
  return same;
}

int reproduce(ReproduceOptions& options) {
  while (options.file.size() > 1 && options.file.ends_with('/')) options.file.pop_back();
  if (options.file.empty()) throw UsageError("expected an image or a clip, got nothing");
  as_usage([&] { generate::device_named(options.device, "reproduce"); });
  Source source = read_source(options.file);
  check_output(options);
  set_threads(options.threads);
  Engine engine(options.model.empty() ? find_model(source.origin.model, options.file) : as_usage([&] {
                  return generate::model_folder(options.model, "--model");
                }),
                options.device);
  Again again = read_again(options, std::move(source), engine);
  if (again.source.sheet)
    check_sheet(again);
  else
    check_item(again, engine.resolve(again.request));
  const bool same_weights = compare_weights(engine, again.source.origin);
  const StopSignals signals;
  Difference difference;
  try {
    difference = again.clip ? make_clip(again, signals) : make_image(again, signals);
  } catch (const generate::Stopped&) {
    say("stopped");
    return signals.exit_code();
  }
  print_result(again, difference, same_weights);
  const std::string& version = again.source.origin.version;
  if (!difference.none() && version != build_info().version)
    say(detail::concat("it was made by libpom ", shown(version, 40), "; this is ", build_info().version));
  return difference.none() ? Exit::ok : Exit::failed;
}

Action declare_reproduce(Flags& flags) {
  const auto options = std::make_shared<ReproduceOptions>();
  flags.positional("file");
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.add(*options);
  return [options] { return reproduce(*options); };
}

}  // namespace

Command reproduce_command() {
  return {
      .name = "reproduce",
      .summary = "reproduce an image or clip from its settings, and compare",
      .usage = "reproduce FILE [flags]",
      .about =
          "Reads the settings stored in a file of pom sample (an image, a clip, or a folder of frames), "
          "samples it again, and says whether the pixels agree (exit 0), or how many differ and by how much "
          "(exit 1).\n"
          "\n"
          "With the same build and kind of processor they are equal bit for bit; elsewhere some may "
          "differ by a grey level. Files whose format changes pixels (JPEG, MP4, WebM, GIF, y4m) are "
          "compared with what is sampled again, written in the same format.",
      .examples =
          "pom reproduce circle.png\n"
          "pom reproduce circle.png --model assets/shapes64 -o again.png\n"
          "pom reproduce star.mp4",
      .declare = declare_reproduce,
  };
}

}  // namespace pom::cli
