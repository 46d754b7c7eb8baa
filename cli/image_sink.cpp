// `pom sample` into images, one file each or all on a sheet.
#include "cli/command.h"
#include "cli/output_names.h"
#include "cli/sheet.h"
#include "cli/sink.h"
#include "cli/source.h"
#include "cli/terminal.h"
#include "pom/io/picture.h"
#include "pom/io/sha256.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Frames, generate::Request;

class ImageSink final : public Sink {
 public:
  ImageSink(const SampleOptions& options, const generate::Job& job, generate::Engine& engine)
      : Sink(options, job, engine) {
    std::vector<NamedItem> items;
    for (const Request& item : job.items) items.push_back({item.subject(), item.own_seed()});
    if (options.grid) {
      check_sheet_size();
      sheet_ = sheet_name(options.output, engine.name(), items.front(), OutputKind::image);
      for (std::int64_t i = 0; i < std::ssize(items); ++i) names_.push_back(numbered(sheet_, i));
      check_outputs(std::vector{sheet_}, options.yes);
    } else {
      names_ = item_names(options.output, engine.name(), items, OutputKind::image);
      check_outputs(names_, options.yes);
    }
    if (options.preview > 0) check_previews(names_, options.yes);
  }

  void take(Frames&& frames) override {
    const auto item = static_cast<std::size_t>(frames.item);
    if (options_.grid) return kept_.push_back(std::move(frames.images.front()));
    write_image(names_.at(item).string(), frames.images.front(), text_of(item));
    written(names_.at(item).string(), 1);
  }

  void preview(std::int64_t step, const std::vector<Frames>& all) override {
    for (const Frames& frames : all)
      write_preview(preview_name(names_.at(static_cast<std::size_t>(frames.item)), step).string(),
                    frames.images.front());
  }

  void finish(bool stopped) override {
    if (!options_.grid || stopped) return;
    write_image(sheet_.string(), sheet_of(kept_, job_.items), sheet_text());
    written(sheet_.string(), std::ssize(job_.items));
  }

  std::string remark() const override {
    std::string text;
    if (options_.preview > 0)
      text = "previews are written next to the output, as " +
             preview_name(names_.front(), options_.preview).string();
    return text;
  }

 private:
  // A lower bound, without what labels and magnifying add: it is large images that take long to make.
  void check_sheet_size() const {
    const Request& first = job_.first();
    const std::int64_t most = io::max_pixels / (*first.width * *first.height);
    if (std::ssize(job_.items) > most)
      throw UsageError(detail::concat("--grid: expected at most ", most, " images of ", *first.width, "x",
                                      *first.height, " on a sheet, got ", job_.items.size()));
  }

  std::vector<fs::path> names_;  // one per item; with --grid for their previews only
  fs::path sheet_;
  std::vector<io::Image> kept_;  // for the sheet
};

}  // namespace

Sink::Sink(const SampleOptions& options, const generate::Job& job, generate::Engine& engine)
    : options_(options),
      job_(job),
      engine_(engine),
      noise_hash_(options.init_latents.empty() ? std::string() : io::sha256_file(options.init_latents)) {}

void Sink::written(const std::string& file, std::int64_t items) {
  files_.push_back(file);
  items_ += items;
  if (!options_.json && !is_stdout()) print(file);
}

void Sink::write_image(const std::string& file, const io::Image& image,
                       const std::vector<io::TextEntry>& text) {
  make_folder_of(file);
  io::write_picture(file, image, text);
}

// Previews carry no settings: they are not what their settings make.
void Sink::write_preview(const std::string& file, const io::Image& image) {
  write_image(file, image, {});
  previews_.push_back(file);
}

std::vector<io::TextEntry> Sink::text_of(std::size_t item) const {
  generate::Origin origin = engine_.origin(job_.items.at(item));
  origin.noise_file = options_.init_latents, origin.noise_hash = noise_hash_;
  origin.noise_row = static_cast<std::int64_t>(item);
  return generate::metadata_of(origin);
}

std::vector<io::TextEntry> Sink::sheet_text() const {
  std::vector<io::TextEntry> text = text_of(0);
  describe_sheet(text, run_request(options_.request, job_), job_.items);
  return text;
}

std::unique_ptr<Sink> image_sink(const SampleOptions& options, const generate::Job& job,
                                 generate::Engine& engine) {
  if (is_npz_name(options.output)) return npz_sink(options, job, engine);
  return std::make_unique<ImageSink>(options, job, engine);
}

}  // namespace pom::cli
