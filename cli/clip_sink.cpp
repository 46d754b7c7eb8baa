// `pom sample` into clips, one file each or all side by side in one.
#include "cli/clip_output.h"
#include "cli/command.h"
#include "cli/output_names.h"
#include "cli/sheet.h"
#include "cli/sink.h"
#include "pom/io/sheet.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Frames, generate::Request;

std::vector<NamedItem> named_items(const generate::Job& job) {
  std::vector<NamedItem> items;
  for (const Request& item : job.items) items.push_back({item.subject(), item.own_seed()});
  return items;
}

// Some of a clip's frames beside each other.
io::Image strip_of(const std::vector<io::Image>& frames) {
  constexpr std::size_t most = 8;
  const std::size_t count = std::min(most, frames.size());
  std::vector<io::Image> shown;
  for (std::size_t i = 0; i < count; ++i) shown.push_back(frames[i * frames.size() / count]);
  io::SheetOptions options;
  options.columns = static_cast<int>(count);
  return io::make_sheet(shown, options);
}

fs::path strip_name(const fs::path& clip, std::int64_t step) {
  return preview_name(fs::path(clip).replace_extension(".png"), step);
}

class ClipSink : public Sink {
 public:
  ClipSink(const SampleOptions& options, const generate::Job& job, generate::Engine& engine,
           std::vector<fs::path> names)
      : Sink(options, job, engine) {
    const bool to_stdout = options.output == "-";
    if (to_stdout && options.json)
      throw UsageError("--json: expected a file behind -o, got -, which is the clip itself");
    if (to_stdout && job.items.size() > 1)
      throw UsageError(detail::concat("--output: expected one clip for -, got ", job.items.size()));
    if (to_stdout && options.preview > 0)
      throw UsageError("--preview: expected a file behind -o, got -, beside which there is no place");
    if (to_stdout) names = {"-"};
    if (names.empty()) names = item_names(options.output, engine.name(), named_items(job), OutputKind::clip);
    for (const fs::path& name : names) outputs_.emplace_back(name, options.yes);
    if (options.preview > 0 && !to_stdout) check_previews(strips(), options.yes);
  }

  void take(Frames&& frames) override {
    const auto item = static_cast<std::size_t>(frames.item);
    ClipOutput& output = outputs_.at(item);
    if (output.frames() == 0) output.describe(options_of(item));
    for (const io::Image& frame : frames.images) output.add(frame);
    count_ += std::ssize(frames.images);
    if (!frames.last) return;
    output.finish();
    written(output.path().string(), 1);
  }

  void end_block() override {
    for (ClipOutput& output : outputs_)
      if (job_.stream && !output.finished()) output.flush();
  }

  void preview(std::int64_t step, const std::vector<Frames>& all) override {
    for (const Frames& frames : all)
      write_preview(strip_name(outputs_.at(static_cast<std::size_t>(frames.item)).path(), step).string(),
                    strip_of(frames.images));
  }

  // Streams that were stopped end where they are.
  void finish(bool) override {
    for (ClipOutput& output : outputs_) {
      if (output.frames() == 0 || output.finished()) continue;
      output.finish();
      written(output.path().string(), 1);
    }
  }

  bool is_stdout() const override { return outputs_.front().is_stdout(); }
  std::int64_t frames() const override { return count_; }

 private:
  io::ClipOptions options_of(std::size_t item) const {
    return {.fps = job_.fps, .growing = job_.stream, .text = text_of(item)};
  }
  std::vector<fs::path> strips() const {
    std::vector<fs::path> names;
    for (const ClipOutput& output : outputs_)
      names.push_back(fs::path(output.path()).replace_extension(".png"));
    return names;
  }

  std::vector<ClipOutput> outputs_;
  std::int64_t count_ = 0;
};

// One clip whose frames are sheets of all clips' frames.
class GridSink final : public Sink {
 public:
  GridSink(const SampleOptions& options, const generate::Job& job, generate::Engine& engine)
      : Sink(options, job, engine),
        output_(options.output == "-"
                    ? fs::path("-")
                    : sheet_name(options.output, engine.name(), named_items(job).front(), OutputKind::clip),
                options.yes) {
    if (!job.save_state.empty()) throw UsageError("--grid: expected clips without a state, got --save-state");
    check_memory();
    if (options.preview > 0) throw UsageError("--preview: expected a file for each clip, got --grid");
    kept_.resize(job.items.size());
  }

  void take(Frames&& frames) override {
    std::vector<io::Image>& kept = kept_.at(static_cast<std::size_t>(frames.item));
    for (io::Image& image : frames.images) kept.push_back(std::move(image));
  }
  void preview(std::int64_t, const std::vector<Frames>&) override {}

  void finish(bool stopped) override {
    if (stopped) return;
    output_.describe({.fps = job_.fps, .growing = false, .text = sheet_text()});
    for (std::size_t t = 0; t < kept_.front().size(); ++t) {
      std::vector<io::Image> images;
      for (std::vector<io::Image>& clip : kept_) images.push_back(std::move(clip.at(t)));
      output_.add(sheet_of(images, job_.items));
    }
    output_.finish();
    written(output_.path().string(), std::ssize(job_.items));
  }

  bool is_stdout() const override { return output_.is_stdout(); }
  std::int64_t frames() const override { return output_.frames(); }

 private:
  // All frames wait for the last.
  void check_memory() const {
    constexpr double most = 4e9;
    const Request& first = job_.first();
    const double bytes = 3.0 * static_cast<double>(*first.width * *first.height) *
                         static_cast<double>(job_.items.size()) * static_cast<double>(job_.frames);
    if (job_.frames == 0) throw UsageError("--grid: expected clips with an end, got --frames inf");
    if (bytes > most)
      throw UsageError(detail::concat("--grid: expected at most 4 GB of frames, got ", job_.items.size(),
                                      " clips of ", job_.frames));
  }

  ClipOutput output_;
  std::vector<std::vector<io::Image>> kept_;  // of each item
};

}  // namespace

std::unique_ptr<Sink> clip_sink(const SampleOptions& options, const generate::Job& job,
                                generate::Engine& engine, std::vector<fs::path> names) {
  if (options.grid) return std::make_unique<GridSink>(options, job, engine);
  return std::make_unique<ClipSink>(options, job, engine, std::move(names));
}

}  // namespace pom::cli
