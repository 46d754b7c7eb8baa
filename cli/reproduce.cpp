// `pom reproduce`: makes a picture again from the settings it carries, and compares the pixels.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/model_names.h"
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
#include "pom/io/picture.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Engine, generate::Origin, generate::Picture;

struct ReproduceOptions {
  std::string picture, model, device = "cpu", output;
  std::int64_t threads = 0;
  bool yes = false, json = false;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(
        Field{.name = "picture", .help = "a PNG made by pom sample", .value = "PICTURE", .group = "Picture"},
        picture);
    visit(Field{.name = "model",
                .help = "folder of the model, or its name (default: that of the same name in $POM_MODELS, "
                        "assets/, models/ or beside the picture)",
                .value = "DIR",
                .group = "Model"},
          model);
    visit(
        Field{
            .name = "output", .help = "also write the picture made now", .value = "FILE", .group = "Result"},
        output);
    visit(Field{.name = "yes", .help = "replace the file that is there", .group = "Result"}, yes);
    visit(Field{.name = "json", .help = "the result as one JSON object", .group = "Result"}, json);
    visit(generate::device_field("How to work"), device);
    visit(Field{.name = "threads",
                .help = "threads of the processor (default: one for each core)",
                .value = "N",
                .group = "How to work",
                .least = 1,
                .most = 1024},
          threads);
  }
};

std::vector<fs::path> places(const fs::path& picture) {
  std::vector<fs::path> folders = model_places();
  folders.push_back(picture.has_parent_path() ? picture.parent_path() : ".");
  return folders;
}

// A name from a picture's metadata is somebody else's text: one part of a path, or nothing.
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

struct Difference {
  bool shape = false;       // the pictures differ in size or kind
  std::int64_t pixels = 0;  // that differ
  std::int64_t all = 0;
  int largest = 0;  // in grey levels

  bool none() const { return !shape && pixels == 0; }
};

Difference compare(const io::Image& a, const io::Image& b) {
  Difference difference;
  difference.all = std::int64_t{a.width} * a.height;
  difference.shape =
      a.width != b.width || a.height != b.height || a.channels != b.channels || a.bits != b.bits;
  if (difference.shape) return difference;
  const std::size_t step = a.pixel_bytes();
  for (std::size_t at = 0; at < a.data.size(); at += step) {
    int largest = 0;
    for (std::size_t i = at; i < at + step; ++i) largest = std::max(largest, std::abs(a.data[i] - b.data[i]));
    difference.pixels += largest > 0;
    difference.largest = std::max(difference.largest, largest);
  }
  return difference;
}

std::string difference_text(const Difference& d, const io::Image& before, const io::Image& now) {
  if (d.none()) return "the pixels agree";
  if (d.shape)
    return detail::concat("the pictures differ in size or kind: ", before.width, "x", before.height, " with ",
                          before.channels, " channels of ", before.bits, " bits before, ", now.width, "x",
                          now.height, " with ", now.channels, " of ", now.bits, " now");
  return detail::concat(d.pixels, " of ", d.all, " pixels differ, by at most ", d.largest,
                        d.largest == 1 ? " grey level" : " grey levels");
}

// What will take long is told before it begins; whether it will.
bool tell_forecast(Engine& engine, const generate::Request& request) {
  constexpr std::int64_t few = 1000;  // steps of pictures
  const std::vector<generate::Request> pictures = engine.resolve(request);
  const std::int64_t steps = *pictures.front().steps;
  if (steps * std::ssize(pictures) <= few) return false;
  const generate::Forecast f = engine.forecast(request);
  if (!f.fits) return true;  // which the run says in its own words
  say(detail::concat(f.pictures, f.pictures == 1 ? " picture, " : " pictures, ", steps, " steps, ",
                     f.evaluations, " evaluations: about ", seconds_text(f.seconds)));
  return true;
}

io::Image make_again(Engine& engine, const Source& source, const StopSignals& signals) {
  const bool takes_long = tell_forecast(engine, source.request());
  std::vector<Picture> pictures;
  std::optional<Progress> progress;
  generate::Observer observer;
  observer.stop = &signals.asked();
  if (takes_long || is_terminal(2))
    observer.on_evaluation = [&](std::int64_t done, std::int64_t total) {
      if (!progress)
        progress.emplace(
            "sampling", total, progress_sink(std::cerr),
            ProgressOptions{.terminal = is_terminal(2), .width = terminal_width(2), .unit = "evaluation"});
      progress->set(done);
      if (done == total) progress->finish();
    };
  observer.on_picture = [&](Picture&& picture) { pictures.push_back(std::move(picture)); };
  engine.run(source.request(), {}, observer);
  return source.sheet ? sheet_of(pictures) : pictures.front().image;
}

// The picture made now carries what it carried, with the weights and the version of now.
void write_again(const std::string& path, const io::Image& image, const Source& source,
                 const Engine& engine) {
  std::vector<io::TextEntry> text = generate::metadata_of(
      {source.origin.request, engine.name(), engine.weights_hash(), std::string(build_info().version)});
  if (source.sheet) describe_sheet(text, *source.sheet, engine.resolve(*source.sheet));
  make_folder_of(path);
  io::write_picture(path, image, text);
}

std::string short_hash(const std::string& hash) {
  return hash.substr(0, 12);
}

void print_result(const Difference& difference, const std::string& text, bool same_weights,
                  const Engine& engine, const Source& source, bool json) {
  if (!json) return print(text);
  print(JsonObject()
            .add("agree", difference.none())
            .add("text", text)
            .add("different_pixels", difference.pixels)
            .add("pixels", difference.all)
            .add("largest_difference", std::int64_t{difference.largest})
            .add("same_size", !difference.shape)
            .add("same_weights", same_weights)
            .add("model", engine.folder().string())
            .raw("request", generate::request_json(source.request()))
            .text());
}

void check_output(const ReproduceOptions& options) {
  if (options.output.empty()) return;
  as_usage([&] { io::check_picture_name(options.output); });
  check_outputs(std::vector<fs::path>{options.output}, options.yes);
}

// The request is somebody else's text: what it makes must be what there is to compare with, before anything
// is made. A class that stands for several would make more.
void check_picture(const Engine& engine, const Source& source, const io::Image& before) {
  const generate::Request& r = source.request();
  check(r.width == before.width && r.height == before.height, "the settings: expected the picture's size, ",
        before.width, "x", before.height, ", got ", r.width.value_or(0), "x", r.height.value_or(0));
  const std::size_t pictures = engine.resolve(r).size();
  check(pictures == 1, "the settings: expected those of one picture, got class \"", shown(r.class_name),
        "\", which makes ", pictures);
}

// The same of a sheet, laid out with blank pictures. Their number is bounded first, by what the sheet can
// hold.
void check_sheet(const Engine& engine, const generate::Request& run, const io::Image& before) {
  check(run.width && run.height, "the settings of the sheet: expected the size of a picture, got none");
  const std::int64_t most = std::int64_t{before.width} * before.height / (*run.width * *run.height);
  const auto check_count = [&](std::int64_t pictures) {
    check(pictures <= most, "the settings of the sheet: expected at most ", most, " pictures of ", *run.width,
          "x", *run.height, " on ", before.width, "x", before.height, " pixels, got ", pictures);
  };
  check_count(run.count);  // of each class
  std::vector<Picture> blank;
  const std::vector<generate::Request> requests = engine.resolve(run);
  check_count(std::ssize(requests));
  for (const generate::Request& request : requests)
    blank.push_back({io::make_image("reproduce", *run.width, *run.height, 1), request, std::ssize(blank)});
  const io::Image sheet = sheet_of(blank);
  check(sheet.width == before.width && sheet.height == before.height,
        "the settings of the sheet: expected what makes ", before.width, "x", before.height,
        " pixels, as the file has, got ", sheet.width, "x", sheet.height);
}

// Says so where the weights are not those that made the picture.
bool compare_weights(const Engine& engine, const Origin& origin) {
  if (engine.weights_hash() == origin.model_hash) return true;
  say(detail::concat("the weights are others: the picture was made with ", short_hash(origin.model_hash),
                     ", ", engine.folder().string(), " has ", short_hash(engine.weights_hash())));
  return false;
}

int reproduce(const ReproduceOptions& options) {
  if (options.picture.empty()) throw UsageError("expected a picture, got nothing");
  as_usage([&] { generate::device_named(options.device, "reproduce"); });
  const Source source = read_source(options.picture);
  const io::Image before = io::read_picture(options.picture);
  check_output(options);
  set_threads(options.threads);
  Engine engine(options.model.empty() ? find_model(source.origin.model, options.picture)
                                      : model_folder(options.model, "--model"),
                options.device);
  if (source.sheet)
    check_sheet(engine, *source.sheet, before);
  else
    check_picture(engine, source, before);
  const bool same_weights = compare_weights(engine, source.origin);
  const StopSignals signals;
  io::Image now;
  try {
    now = make_again(engine, source, signals);
  } catch (const generate::Stopped&) {
    say("stopped");
    return signals.exit_code();
  }
  if (!options.output.empty()) write_again(options.output, now, source, engine);
  const Difference difference = compare(before, now);
  print_result(difference, difference_text(difference, before, now), same_weights, engine, source,
               options.json);
  if (!difference.none() && source.origin.version != build_info().version)
    say(detail::concat("it was made by libpom ", shown(source.origin.version, 40), "; this is ",
                       build_info().version));
  return difference.none() ? Exit::ok : Exit::failed;
}

Action declare_reproduce(Flags& flags) {
  const auto options = std::make_shared<ReproduceOptions>();
  flags.positional("picture");
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.add(*options);
  return [options] { return reproduce(*options); };
}

}  // namespace

Command reproduce_command() {
  return {
      .name = "reproduce",
      .summary = "make a picture again from its settings, and compare",
      .usage = "reproduce PICTURE [flags]",
      .about =
          "Reads the settings that a PNG carries, makes the picture again, and says whether the pixels "
          "agree (exit 0), or how many differ and by how much (exit 1).\n"
          "\n"
          "With the same build and kind of processor they are equal bit for bit; elsewhere some may "
          "differ by a grey level.",
      .examples =
          "pom reproduce circle.png\n"
          "pom reproduce circle.png --model assets/shapes64 -o again.png",
      .declare = declare_reproduce,
  };
}

}  // namespace pom::cli
