// `pom eval`: how well a model draws, by judges that never saw what it draws.
#include "cli/eval/eval.h"

#include <chrono>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/output_names.h"
#include "cli/processor.h"
#include "cli/ranks_launch.h"
#include "cli/terminal.h"
#include "pom/generate/engine.h"
#include "pom/generate/folder.h"
#include "pom/generate/metadata.h"
#include "pom/generate/model_names.h"
#include "pom/io/atomic_file.h"
#include "pom/parallel/share.h"

namespace pom::cli {

void Watch::operator()(std::int64_t done, std::int64_t total, const std::string& note) {
  if (signals_.asked().load(std::memory_order_relaxed)) throw generate::Stopped();
  if (quiet_) return;
  if (!progress_)
    progress_.emplace(
        what_, total, progress_sink(std::cerr),
        ProgressOptions{
            .terminal = is_terminal(2), .width = terminal_width(2), .unit = unit_, .began = began_});
  if (!note.empty()) progress_->note(note);
  progress_->set(done);
  if (done == total) progress_->finish();
}

void add_model(JsonObject& result, const generate::Engine& engine, const generate::Request& request) {
  JsonObject model;
  model.add("name", engine.name())
      .add("folder", engine.folder().string())
      .add("sha256", engine.weights_hash());
  if (!engine.text_hash().empty()) model.add("text_encoder_sha256", engine.text_hash());
  result.add("model", model);
  result.raw("request", generate::request_json(request));
  result.add("device", engine.device());
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  make_folder_of(path);
  io::write_file_atomically(path, text);
}

int print_findings(const EvalOptions& options, const StopSignals& signals,
                   const std::function<Findings()>& work) {
  try {
    Findings findings = work();
    if (!parallel::world().first()) return Exit::ok;
    findings.text.pop_back();  // print() ends the line
    print(options.json ? findings.json : findings.text);
  } catch (const generate::Stopped&) {
    say("stopped; nothing was judged");
    return signals.exit_code();
  }
  return Exit::ok;
}

void run_share(generate::Engine& engine, const generate::Job& job, std::int64_t batch,
               generate::Observer& observer) {
  const parallel::Ranks& ranks = parallel::world();
  const parallel::Share share = parallel::share_of(std::ssize(job.items), ranks.size(), ranks.rank());
  if (share.count > 0) engine.run(job, {.batch = batch, .items = share}, observer);
}

void add_up(at::Tensor bytes) {
  const parallel::Ranks& ranks = parallel::world();
  if (ranks.alone()) return;
  wait_for_all();
  ranks.sum(bytes);
}

void wait_for_all() {
  parallel::world().meet(std::chrono::hours(24));
}

namespace {

// Flags that only other kinds have: what a person asked for is never passed over.
void refuse_flags(const EvalOptions& options) {
  const EvalOptions plain;
  const std::string& what = options.what;
  const bool scores = what == "fid" || what == "reference", scenes = what == "scenes",
             made = what == "shapes" || what == "sprites" || scenes, features = scores || what == "clips";
  const auto only = [&](bool given, const char* flag, bool has, const char* kinds) {
    if (given && !has)
      throw UsageError(detail::concat(flag, ": is only for pom eval ", kinds, ", got ", what));
  };
  only(options.seeds != plain.seeds, "--seeds", what == "shapes", "shapes");
  only(!options.judge.empty(), "--judge", what == "shapes" || scenes, "shapes and scenes");
  only(options.judge_steps.has_value(), "--judge-steps", what == "shapes" || scenes, "shapes and scenes");
  only(options.judge_seed != plain.judge_seed, "--judge-seed", what == "shapes" || scenes,
       "shapes and scenes");
  only(!options.splits.empty(), "--splits", what == "sprites" || scenes, "sprites and scenes");
  only(options.frames.has_value(), "--frames", what == "sprites", "sprites");
  only(!options.lengths.empty(), "--lengths", what == "sprites", "sprites");
  only(!options.window.empty(), "--window", what == "sprites", "sprites");
  only(options.changes > 0, "--changes", what == "sprites", "sprites");
  only(options.drawings, "--drawings", made, "shapes, sprites and scenes");
  only(!options.sheet.empty(), "--sheet", made, "shapes, sprites and scenes");
  only(options.gpus > 0, "--gpus", made || scores, "fid, reference, shapes, sprites and scenes");
  only(!options.samples.empty(), "--samples", what == "fid", "fid");
  only(!options.reference.empty(), "--reference", what == "fid" || what == "clips", "fid and clips");
  only(!options.inception.empty(), "--inception", features, "fid, reference and clips");
  only(!options.dinov2.empty(), "--dinov2", features, "fid, reference and clips");
  only(options.like != plain.like, "--like", features, "fid, reference and clips");
  only(options.count.has_value(), "--count", made || what == "fid", "fid, shapes, sprites and scenes");
  only(!options.other.empty(), "a second file", what == "compare", "compare");
}

// Sprites are clips and scenes are images, both of text; shapes are images of classes.
void check_model(const EvalOptions& options) {
  const bool text = generate::read_config(options.model).network.video();
  if (text == (options.what != "shapes")) return;
  if (options.what == "scenes")
    throw UsageError(detail::concat("expected a model that makes images of text, but ", options.model,
                                    " makes them of classes: use pom eval shapes"));
  const auto makes = [](bool clips) { return clips ? "clips" : "images"; };
  throw UsageError(detail::concat("expected a model for ", makes(!text), ", but ", options.model,
                                  " is one for ", makes(text), ": use pom eval ",
                                  text ? "sprites, or of images scenes" : "shapes"));
}

void check_options(const EvalOptions& options) {
  if (options.what.empty())
    throw UsageError(
        "expected what to judge, got nothing: pom eval shapes MODEL, pom eval sprites MODEL or pom eval "
        "scenes MODEL");
  if (options.drawings && !options.model.empty())
    throw UsageError("--drawings: cannot be combined with a model, got " + options.model);
  if (!options.drawings && options.model.empty())
    throw UsageError("expected a model folder, or --drawings, got neither");
  as_usage([&] { generate::device_named(options.device, "eval"); });
  if (!options.drawings) check_model(options);
}

int evaluate(EvalOptions& options) {
  if (!options.what.empty()) refuse_flags(options);
  if (options.what == "compare") return eval_compare(options);
  if (options.what == "clips") {
    set_threads(options.threads);
    return eval_clips(options);
  }
  if (options.what == "fid" || options.what == "reference") {
    on_ranks(options.gpus);
    options.quiet = options.quiet || !parallel::world().first();
    set_threads(options.threads);
    return options.what == "fid" ? eval_fid(options) : eval_reference(options);
  }
  if (!options.model.empty())
    options.model = as_usage([&] { return generate::model_folder(options.model, "model"); }).string();
  check_options(options);
  on_ranks(options.gpus);
  options.quiet = options.quiet || !parallel::world().first();
  set_threads(options.threads);
  if (options.what == "scenes") return eval_scenes(options);
  return options.what == "sprites" ? eval_sprites(options) : eval_shapes(options);
}

Action declare_eval(Flags& flags) {
  const auto options = std::make_shared<EvalOptions>();
  flags.positional("what");
  flags.positional("model");
  flags.positional("other");
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.letter("quiet", 'q');
  flags.add(*options);
  return [options] { return evaluate(*options); };
}

}  // namespace

Command eval_command() {
  return {
      .name = "eval",
      .summary = "evaluate a model",
      .usage = "eval fid|reference|compare|clips|shapes|sprites|scenes MODEL [flags]",
      .about =
          "fid: FID (or, with --like edm2, the same distance of DINOv2's features) and, where the rules of "
          "--like have them, sFID, IS, KID, precision, recall, density and "
          "coverage of a model's images or of --samples against --reference, with the recipe that makes two "
          "scores comparable. reference: statistics of pictures, to be used again. compare: two files of "
          "scores: better, worse, not distinguishable, or not comparable and why.\n"
          "\n"
          "clips: how much clips flicker (VBench's measure), how evenly they move (ours), and the Frechet "
          "distances of their frames and of stacks of 8 frames to those of --reference; frames by "
          "--inception "
          "or --dinov2, else by their pixels.\n"
          "\n"
          "shapes: trains a small convolutional judge on drawings of shapes, at the size of the model's "
          "images, and asks it about images that the model makes: how many are recognised as what they "
          "should be, what the others are taken for, how much images of one class differ in hue, position "
          "and size, and how far their features are from those of drawings (the Frechet distance). As many "
          "drawings, judged the same way, stand beside each number; the spread is that over the seeds. The "
          "judge never sees a generated image before it judges it, and none of its drawings are those of "
          "a training.\n"
          "\n"
          "sprites: asks a model for clips of captions, those of training and those held out of it, and "
          "tracks what they show: how often shape, colour and direction are those of the caption, each with "
          "its 95 % interval, beside drawings of the same scenes (a shape that none of the drawings fits is "
          "wrong); and with --lengths, whether a stream stays what it was; with --changes, whether it "
          "becomes what a second prompt says.\n"
          "\n"
          "scenes: asks a model for images of captions such as \"a red star above two blue rings\", and "
          "looks "
          "for regions of one hue and for the shapes that fit them, also where one is behind another: how "
          "often the objects, their colours, each shape in its own colour (pairs), the relations, the count, "
          "and everything at once are as the caption says, and how many images have something that fits no "
          "shape. Drawings of the same scenes stand beside it. With --judge a small network, trained on "
          "drawings "
          "alone, reads the images too: how often it agrees, and the Frechet distance of its features.",
      .examples =
          "pom eval fid --samples a.npz --reference b.npz --inception net.safetensors\n"
          "pom eval compare a.json b.json\n"
          "pom eval clips out/clips --reference clips\n"
          "pom eval shapes assets/shapes64 --count 100 --judge out/judge64.safetensors\n"
          "pom eval shapes assets/shapes64 --cfg-scale 1 --json\n"
          "pom eval shapes --drawings --size 64\n"
          "pom eval sprites --drawings --count 20\n"
          "pom eval sprites out/runs/sprites/model --lengths 1,2,5,10 -o out/eval\n"
          "pom eval sprites assets/sprites32 --changes 100\n"
          "pom eval scenes --drawings --count 20",
      .declare = declare_eval,
  };
}

}  // namespace pom::cli
