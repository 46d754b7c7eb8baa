// `pom dataset`: writes drawings as files, shows any data set as training sees it, or says what is in one.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/common_fields.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/output_names.h"
#include "cli/shard_folder.h"
#include "cli/signals.h"
#include "cli/sprite_files.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/progress.h"
#include "pom/base/suggest.h"
#include "pom/data/folder.h"
#include "pom/data/loader.h"
#include "pom/data/shapes.h"
#include "pom/data/shard_format.h"
#include "pom/generate/request.h"
#include "pom/io/atomic_file.h"
#include "pom/io/picture.h"
#include "pom/io/sheet.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

struct DatasetOptions {
  std::string what, output, preview, size;
  std::optional<std::int64_t> count, frames;
  std::optional<double> fps;
  std::int64_t seed = 0;
  bool flip = false, check = false, yes = false, json = false, quiet = false;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view what_group = "Data", where = "Where it goes", work = "How to work";
    visit(
        Field{.name = "what",
              .help = "shapes, sprites or scenes (drawn here), or a folder with one subfolder of images per "
                      "class",
              .value = "shapes|sprites|scenes|DIR",
              .group = what_group},
        what);
    visit(Field{.name = "count",
                .help = "images or clips to write, or images on the sheet (default: 40)",
                .value = "N",
                .group = what_group,
                .least = 1,
                .most = 1e8},
          count);
    visit(Field{.name = "size",
                .help = "width and height in pixels, 64x48 or 64 (default: 64x64, of sprites 32x32)",
                .value = "WxH",
                .group = what_group},
          size);
    visit(Field{.name = "seed",
                .help = "seed of the drawings, and of the order on a sheet",
                .value = "N",
                .group = what_group,
                .least = 0},
          seed);
    visit(Field{.name = "frames",
                .help = "frames per clip of sprites (default: 16) or scenes (default: 1, an image)",
                .value = "N",
                .group = what_group,
                .least = 1,
                .most = 100000},
          frames);
    visit(Field{.name = "fps",
                .help = "frames per second of sprites and scenes (default: 8)",
                .value = "X",
                .group = what_group,
                .least = 0.01,
                .most = 1000},
          fps);
    visit(Field{.name = "flip", .help = "mirror half of the images on the sheet", .group = what_group}, flip);
    visit(Field{.name = "output",
                .help = "folder for drawings: DIR/CLASS/000017.png, and DIR/shapes.jsonl with what each "
                        "drawing shows; of sprites and scenes DIR/000017.mp4 or .png, and "
                        "DIR/captions.csv",
                .value = "DIR",
                .group = where},
          output);
    visit(Field{.name = "preview",
                .help = "a labelled sheet of images as training sees them",
                .value = "PNG",
                .group = where},
          preview);
    visit(Field{.name = "yes", .help = "write into a non-empty folder and overwrite files", .group = where},
          yes);
    visit(json_field(where), json);
    visit(Field{.name = "quiet", .help = "no progress", .group = where}, quiet);
    visit(Field{.name = "check",
                .help = "read every file, list the unreadable ones, exit 1 if any",
                .group = work},
          check);
  }
};

struct Size {
  std::int64_t width, height;
};

bool is_shapes(const DatasetOptions& options) {
  return options.what == "shapes";
}
bool is_sprites(const DatasetOptions& options) {
  return options.what == "sprites";
}
bool is_scenes(const DatasetOptions& options) {
  return options.what == "scenes";
}
bool has_captions(const DatasetOptions& options) {
  return is_sprites(options) || is_scenes(options);
}

Size size_of(const DatasetOptions& options) {
  generate::Request request;
  try {
    generate::set_size(request, !options.size.empty() ? options.size
                                : is_sprites(options) ? "32x32"
                                                      : "64x64");
  } catch (const Error&) {  // which speaks of a sample
    throw UsageError("--size: expected WIDTHxHEIGHT in pixels, as 64x48, got \"" + options.size + "\"");
  }
  as_usage([&] { io::check_size("--size", *request.width, *request.height); });
  return {*request.width, *request.height};
}

// Whether the first file in a folder of a class is one of latents.
bool holds_latents(const std::string& folder) {
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error))
    if (entry.depth() == 1 && entry->is_regular_file(error))
      return entry->path().extension() == ".safetensors";
  return false;
}

data::DataConfig config_of(const DatasetOptions& options) {
  const Size size = size_of(options);
  const bool drawn = is_shapes(options) || has_captions(options);
  data::DataConfig config;
  config.kind = drawn ? options.what : holds_latents(options.what) ? "latents" : "folder";
  if (!drawn) config.path = options.what;
  config.frames = options.frames.value_or(is_scenes(options) ? 1 : 16);
  config.fps = options.fps.value_or(8);
  // Of clips a part moves; a picture shows nothing of it.
  if (is_scenes(options) && config.frames > 1) config.scenes.swaying = 0.5;
  config.size = {size.width, size.height};
  config.flip = options.flip;
  config.validation = 0;
  return config;
}

Progress progress_of(const DatasetOptions& options, const char* what, std::int64_t total) {
  return Progress(what, total, options.quiet ? ProgressSink() : progress_sink(std::cerr),
                  {.terminal = is_terminal(2),
                   .width = terminal_width(2),
                   .unit = is_sprites(options) ? "clip" : "image"});
}

// (3, H, W) to rows of pixels.
io::Image to_image(const std::uint8_t* planes, std::int64_t width, std::int64_t height) {
  io::Image image = io::make_image("dataset", width, height, 3);
  const std::int64_t pixels = width * height;
  for (std::int64_t i = 0; i < pixels; ++i)
    for (std::int64_t c = 0; c < 3; ++c)
      image.data[static_cast<std::size_t>(3 * i + c)] = planes[c * pixels + i];
  return image;
}

// ---- drawings as files

std::string shape_line(const data::Shape& shape, const std::string& file) {
  const auto name = [](const std::vector<std::string>& names, std::int64_t i) {
    return names.at(static_cast<std::size_t>(i));
  };
  return JsonObject()
      .add("file", file)
      .add("class", name(data::shape_names(), shape.kind))
      .add("hue", name(data::hue_names(), shape.hue))
      .add("x", static_cast<double>(shape.x))
      .add("y", static_cast<double>(shape.y))
      .add("radius", static_cast<double>(shape.radius))
      .add("angle", static_cast<double>(shape.angle))
      .add("background", name(data::background_names(), shape.background))
      .text();
}

std::string number_name(std::int64_t index) {
  std::string digits = std::to_string(index);
  return std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits + ".png";
}

void check_output_folder(const DatasetOptions& options, const char* list) {
  const fs::path folder = options.output;
  if (fs::exists(folder) && !fs::is_directory(folder))
    throw UsageError("--output: expected a folder, got the file " + options.output);
  if (fs::exists(folder) && !fs::is_empty(folder) && !options.yes)
    throw UsageError("--output: expected an empty folder, got " + options.output +
                     ", which has files; use -y to write into it");
  check_outputs(std::vector{folder / list}, options.yes);
}

struct Written {
  std::vector<std::int64_t> counts = std::vector<std::int64_t>(data::shape_names().size());
  std::string lines;
  std::int64_t total = 0;
};

void write_drawing(const DatasetOptions& options, const Size& size, std::int64_t index, Written& written) {
  const data::Shape shape = data::shape_at(static_cast<std::uint64_t>(options.seed), index);
  std::vector<std::uint8_t> planes(static_cast<std::size_t>(3 * size.width * size.height));
  data::draw_shape(shape, size.width, size.height, planes);
  const auto kind = static_cast<std::size_t>(shape.kind);
  const std::string file = data::shape_names()[kind] + "/" + number_name(index);
  const fs::path path = fs::path(options.output) / file;
  make_folder_of(path);
  io::write_picture(path, to_image(planes.data(), size.width, size.height));
  written.lines += shape_line(shape, file) + "\n";
  ++written.counts[kind];
  ++written.total;
}

JsonObject class_counts(const std::vector<std::string>& names, const std::vector<std::int64_t>& counts) {
  JsonObject object;
  for (std::size_t i = 0; i < names.size(); ++i) object.add(names[i], counts[i]);
  return object;
}

int write_drawings(const DatasetOptions& options) {
  const Size size = size_of(options);
  check_output_folder(options, "shapes.jsonl");
  const StopSignals signals;
  Written written;
  {
    Progress progress = progress_of(options, "drawing", *options.count);
    for (std::int64_t i = 0; i < *options.count && !signals.asked(); ++i) {
      write_drawing(options, size, i, written);
      progress.set(i + 1);
    }
    if (!signals.asked()) progress.finish();
  }
  const fs::path list = fs::path(options.output) / "shapes.jsonl";
  make_folder_of(list);
  io::write_file_atomically(list, written.lines);
  const bool stopped = written.total < *options.count;
  if (stopped)
    say(detail::concat("stopped; ", written.total, " of ", *options.count, " images were written"));
  if (options.json)
    print(JsonObject()
              .add("folder", options.output)
              .add("list", list.string())
              .add("pictures", written.total)
              .add("classes", class_counts(data::shape_names(), written.counts))
              .add("size", std::vector{size.width, size.height})
              .add("seed", options.seed)
              .text());
  else
    print(options.output);
  return stopped ? signals.exit_code() : Exit::ok;
}

// ---- sprites and scenes

int write_captioned(const DatasetOptions& options) {
  const SpriteFiles files{.folder = options.output,
                          .config = config_of(options),
                          .count = *options.count,
                          .seed = static_cast<std::uint64_t>(options.seed)};
  const char* unit = files.pictures() ? "pictures" : "clips";
  check_output_folder(options, captions_file);
  const StopSignals signals;
  std::int64_t written = 0;
  {
    Progress progress = progress_of(options, "drawing", files.count);
    written = write_sprites(files, signals.asked(), [&](std::int64_t done) { progress.set(done); });
    if (written == files.count) progress.finish();
  }
  const bool stopped = written < files.count;
  if (stopped)
    say(detail::concat("stopped; ", written, " of ", files.count, files.pictures() ? " images" : " clips",
                       " were written"));
  if (options.json)
    print(JsonObject()
              .add("folder", options.output)
              .add("list", (files.folder / captions_file).string())
              .add(unit, written)
              .add("size", files.config.size)
              .add("frames", files.config.frames)
              .add("fps", files.config.fps)
              .add("seed", options.seed)
              .text());
  else
    print(options.output);
  return stopped ? signals.exit_code() : Exit::ok;
}

// What there is to say of clips without end.
int summarise_captioned(const DatasetOptions& options) {
  const data::DataConfig config = config_of(options);
  const auto examples = data::open_dataset(config, static_cast<std::uint64_t>(options.seed)).training;
  if (options.json) {
    print(
        JsonObject().add("kind", config.kind).add("shape", examples->shape()).add("fps", config.fps).text());
    return Exit::ok;
  }
  print("kind      " + config.kind + ", drawn without end");
  if (is_scenes(options) && config.frames == 1)
    print(detail::concat("images    ", config.size[0], "x", config.size[1]));
  else
    print(detail::concat("clips     ", config.size[0], "x", config.size[1], ", ", config.frames,
                         " frames at ", config.fps, " fps"));
  print("caption   " + examples->get(0, 0).caption);
  return Exit::ok;
}

// ---- a sheet

int columns_for(std::int64_t count) {
  for (const int columns : {10, 8, 12})
    if (count > columns && count % columns == 0) return columns;
  return 0;  // near square
}

std::int64_t preview_count(const DatasetOptions& options, const data::Dataset& set) {
  check(!set.latents(), "dataset: --preview: expected images, got the latents of ", options.what,
        ", which have to be decoded first");
  std::int64_t count = options.count.value_or(40);
  if (!options.count && set.size() > 0) count = std::min(count, set.size());
  const std::vector<std::int64_t> shape = set.shape();
  const std::int64_t height = shape.end()[-2], width = shape.back(), most = io::max_pixels / (width * height);
  if (count > most)
    throw UsageError(detail::concat("--count: expected at most ", most, " images of ", width, "x", height,
                                    " on a sheet, got ", count));
  return count;
}

struct Preview {
  std::vector<io::Image> pictures;
  std::vector<std::string> labels;
  std::int64_t broken = 0;
};

// The first pictures of a training; fewer where it is asked to stop.
Preview take_preview(const DatasetOptions& options, const std::shared_ptr<const data::Dataset>& set,
                     std::int64_t count, const StopSignals& signals) {
  const auto tell = [](const std::string& name, const std::string& why) {
    say("skipped " + name + ": " + why);
  };
  const auto seed = static_cast<std::uint64_t>(options.seed);
  data::Loader loader(set, {.batch = 1, .prefetch = 32, .seed = seed, .on_broken = tell});
  Preview preview;
  while (std::ssize(preview.pictures) < count && !signals.asked()) {
    const data::Batch batch = loader.next();
    const auto label = static_cast<std::size_t>(batch.labels.data_ptr<std::int64_t>()[0]);
    const at::Tensor& picture = batch.pictures;  // of one frame, where it has frames
    preview.pictures.push_back(
        to_image(picture.data_ptr<std::uint8_t>(), picture.size(-1), picture.size(-2)));
    preview.labels.push_back(has_captions(options) ? batch.captions.at(0) : set->classes().at(label));
  }
  preview.broken = loader.broken();
  return preview;
}

int write_preview(const DatasetOptions& options) {
  const fs::path path = options.preview;
  as_usage([&] { io::check_picture_name(path); });
  check_outputs(std::vector{path}, options.yes);
  const auto set = data::open_dataset(config_of(options), static_cast<std::uint64_t>(options.seed)).training;
  const std::int64_t count = preview_count(options, *set);
  const StopSignals signals;
  const Preview preview = take_preview(options, set, count, signals);
  if (std::ssize(preview.pictures) < count) {
    say("stopped; no sheet was written");
    return signals.exit_code();
  }
  io::SheetOptions sheet;
  sheet.columns = columns_for(count);
  if (has_captions(options)) {
    sheet.scale = static_cast<int>(std::max<std::int64_t>(192 / preview.pictures[0].width, 1));
    sheet.label_lines = 5;
  }
  sheet.labels = preview.labels;
  make_folder_of(path);
  io::write_picture(path, io::make_sheet(preview.pictures, sheet));
  if (options.json)
    print(JsonObject()
              .add("file", path.string())
              .add("pictures", count)
              .add("labels", preview.labels)
              .add("broken", preview.broken)
              .text());
  else
    print(path.string());
  return Exit::ok;
}

// ---- a summary

struct Summary {
  std::string kind;
  std::vector<std::string> classes;
  std::vector<std::int64_t> counts;  // of files; empty where the data set has no end
  std::vector<std::int64_t> shape;
  std::vector<std::string> broken;
  bool stopped = false;
};

void read_all(const DatasetOptions& options, const data::Dataset& set, const StopSignals& signals,
              Summary& summary) {
  Progress progress = progress_of(options, "reading", set.size());
  for (std::int64_t i = 0; i < set.size() && !signals.asked(); ++i) {
    try {
      set.get(i, 0);
    } catch (const Error& error) {
      summary.broken.push_back(set.name_of(i));
      progress.say(error.what());
    }
    progress.set(i + 1);
  }
  summary.stopped = signals.asked();
  if (!summary.stopped) progress.finish();
}

void print_summary(const DatasetOptions& options, const Summary& summary) {
  print("kind      " + summary.kind + (summary.counts.empty() ? ", drawn without end" : ""));
  print(detail::concat(summary.kind == "latents" ? "latents   " : "images    ", summary.shape[2], "x",
                       summary.shape[1], ", ", summary.shape[0], " channels"));
  if (!summary.counts.empty()) {
    std::int64_t files = 0;
    for (const std::int64_t count : summary.counts) files += count;
    print("files     " + grouped(files));
  }
  std::size_t widest = 0;
  for (const std::string& name : summary.classes) widest = std::max(widest, name.size());
  print(detail::concat("classes   ", summary.classes.size()));
  for (std::size_t i = 0; i < summary.classes.size(); ++i) {
    std::string name = "          " + summary.classes[i];
    if (!summary.counts.empty()) {
      name.resize(12 + widest, ' ');
      name += grouped(summary.counts[i]);
    }
    print(name);
  }
  if (!options.check) return;
  print(detail::concat("broken    ", summary.broken.size()));
  for (const std::string& name : summary.broken) print("          " + name);
}

void print_json(const DatasetOptions& options, const Summary& summary) {
  JsonObject result;
  result.add("kind", summary.kind).add("shape", summary.shape).add("class_names", summary.classes);
  if (!summary.counts.empty()) result.add("classes", class_counts(summary.classes, summary.counts));
  if (options.check) result.add("broken", summary.broken);
  print(result.text());
}

// The first that reads them all finds every flipped bit: each sample has its CRCs.
int summarise_shards(const DatasetOptions& options) {
  if (!options.check) {
    tell_shards(options.what, options.json);
    return Exit::ok;
  }
  data::DataConfig config;
  const fs::path folder = options.what;
  config.kind = data::read_shard_set(folder / data::shard_set_file).clips() ? "clip_shards" : "shards";
  config.path = options.what;
  config.validation = 0;
  const data::Split split = data::open_dataset(config, 0);
  Summary summary;
  const StopSignals signals;
  read_all(options, *split.training, signals, summary);
  if (summary.stopped) {
    say("stopped; not all samples were read");
    return signals.exit_code();
  }
  tell_shards(options.what, options.json, &summary.broken);
  return summary.broken.empty() ? Exit::ok : Exit::failed;
}

int summarise(const DatasetOptions& options) {
  const data::DataConfig config = config_of(options);
  const data::Split split = data::open_dataset(config, static_cast<std::uint64_t>(options.seed));
  Summary summary{.kind = config.kind,
                  .classes = split.training->classes(),
                  .counts = {},
                  .shape = split.training->shape(),
                  .broken = {}};
  if (!is_shapes(options)) {
    const bool latents = split.training->latents();
    const data::FileTree tree =
        data::find_files(options.what, latents ? data::latent_endings() : data::picture_endings(),
                         latents ? "latents" : "images");
    summary.counts.resize(tree.classes.size());
    for (const data::FileTree::Entry& file : tree.files)
      ++summary.counts[static_cast<std::size_t>(file.label)];
  }
  const StopSignals signals;
  if (options.check) read_all(options, *split.training, signals, summary);
  if (summary.stopped) {
    say("stopped; not all files were read");
    return signals.exit_code();
  }
  if (options.json)
    print_json(options, summary);
  else
    print_summary(options, summary);
  return summary.broken.empty() ? Exit::ok : Exit::failed;
}

// ----

void check_usage(const DatasetOptions& options) {
  if (options.what.empty()) throw UsageError("expected shapes, sprites, scenes or a folder, got nothing");
  if (!options.output.empty() && !options.preview.empty())
    throw UsageError("--preview: cannot be combined with --output");
  const bool drawn = is_shapes(options) || has_captions(options);
  const bool clips = is_sprites(options) || (is_scenes(options) && options.frames.value_or(1) > 1);
  if (clips && !options.preview.empty())
    throw UsageError("--preview: expected shapes, scenes or a folder of images, got " + options.what +
                     ", which are clips");
  if (has_captions(options) && options.flip)
    throw UsageError("--flip: expected shapes or a folder of images, got " + options.what +
                     ", whose captions say left and right");
  if (!has_captions(options) && (options.frames || options.fps))
    throw UsageError(detail::concat(options.frames ? "--frames" : "--fps",
                                    ": is only for sprites and scenes, got ", options.what));
  if (!options.output.empty() && !drawn)
    throw UsageError("--output: is only for shapes, sprites and scenes; " + options.what +
                     " already consists of files");
  if (!options.output.empty() && !options.count) throw UsageError("--output: needs --count");
  if (options.check && (drawn || !options.preview.empty()))
    throw UsageError("--check: is only for the summary of a folder");
  const std::vector<std::string> near =
      nearest_names(options.what, std::vector<std::string>{"shapes", "sprites", "scenes"}, 1);
  if (!drawn && !fs::exists(options.what) && !near.empty())
    throw UsageError("\"" + options.what + "\": no such folder; did you mean " + near.front() + "?");
}

int dataset(const DatasetOptions& options) {
  check_usage(options);
  if (has_captions(options) && !options.output.empty()) return write_captioned(options);
  if (has_captions(options) && options.preview.empty()) return summarise_captioned(options);
  if (!options.output.empty()) return write_drawings(options);
  if (!has_captions(options) && is_shard_folder(options.what)) {
    if (!options.preview.empty())
      throw UsageError("--preview: " + options.what + " has latents, which have to be decoded first");
    return summarise_shards(options);
  }
  if (!options.preview.empty()) return write_preview(options);
  return summarise(options);
}

Action declare_dataset(Flags& flags) {
  const auto options = std::make_shared<DatasetOptions>();
  flags.positional("what");
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.letter("quiet", 'q');
  flags.add(*options);
  return [options] { return dataset(*options); };
}

}  // namespace

Command dataset_command() {
  return {
      .name = "dataset",
      .summary = "write shapes, sprites or scenes, or inspect a data set",
      .usage = "dataset shapes|sprites|scenes|DIR [flags]",
      .about =
          "Writes drawings of shapes or scenes or clips of sprites as files (-o), shows any data set of "
          "images as training sees it (--preview), or says what is in one.\n"
          "\n"
          "shapes is procedural and endless: ten classes, eight hues; drawing i of a seed is always the "
          "same. A folder has one subfolder per class, with PNG or JPEG images, or with latents in "
          ".safetensors files; or shards of latents, as pom encode writes them, of which --check compares "
          "every checksum. A folder that is called shapes is ./shapes.\n"
          "\n"
          "sprites are clips of moving shapes with captions, as training draws them. Written as files, a "
          "recipe takes them with data.kind = \"clips\". scenes are images, or with --frames clips, of two "
          "to "
          "four objects, with captions that say what is above, left of or in front of what.",
      .examples =
          "pom dataset shapes --preview shapes.png\n"
          "pom dataset shapes --count 1000 --size 64x64 -o drawings\n"
          "pom dataset sprites --count 100 -o clips\n"
          "pom dataset scenes --preview scenes.png\n"
          "pom dataset drawings --check",
      .declare = declare_dataset,
  };
}

}  // namespace pom::cli
