// `pom sample` into one .npz of all images, as ADM and those after it write their samples: arr_0, uint8
// (N, H, W, 3), and of a model with classes arr_1, their numbers. What made them is in `settings`.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/output_names.h"
#include "cli/sheet.h"
#include "cli/sink.h"
#include "pom/io/npz_stream.h"
#include "pom/io/picture.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Frames, generate::Request;

class NpzSink final : public Sink {
 public:
  NpzSink(const SampleOptions& options, const generate::Job& job, generate::Engine& engine)
      : Sink(options, job, engine), path_(options.output) {
    if (options.grid) throw UsageError("--grid: expected a .png or .jpg behind -o, got " + options.output);
    if (options.preview > 0)
      throw UsageError("--preview: expected a .png or .jpg behind -o, got " + options.output);
    check_outputs(std::vector{path_}, options.yes);
  }

  // Images come in their order; one that is early waits.
  void take(Frames&& frames) override {
    waiting_.emplace(frames.item, io::to_rgb8(frames.images.front()));
    for (auto next = waiting_.find(done_); next != waiting_.end(); next = waiting_.find(done_)) {
      if (!file_) open();
      file_->add(std::as_bytes(std::span(next->second.data)));
      waiting_.erase(next);
      ++done_;
    }
  }
  void preview(std::int64_t, const std::vector<Frames>&) override {}

  void finish(bool stopped) override {
    if (stopped) return;
    check(file_ && done_ == std::ssize(job_.items), "--output: expected ", job_.items.size(), " images, got ",
          done_);
    add_classes();
    add_settings();
    file_->commit();
    written(path_.string(), done_);
  }

 private:
  void open() {
    const Request& first = job_.first();
    const std::vector<std::int64_t> shape = {std::ssize(job_.items), *first.height, *first.width, 3};
    make_folder_of(path_);
    file_.emplace(path_);
    file_->begin("arr_0", io::NpyType::uint8, shape);
  }

  // −1 where an image has none.
  void add_classes() {
    if (!job_.first().class_name) return;
    const std::vector<std::string>& classes = engine_.config().classes;
    std::vector<std::int64_t> numbers;
    for (const Request& item : job_.items) {
      const std::string& name = item.subject();
      const auto found = std::ranges::find(classes, name);
      const bool digits = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
      numbers.push_back(found != classes.end() ? found - classes.begin() : digits ? std::stoll(name) : -1);
    }
    const std::vector<std::int64_t> shape = {std::ssize(numbers)};
    file_->begin("arr_1", io::NpyType::int64, shape);
    file_->add(std::as_bytes(std::span(numbers)));
  }

  // The request of all items, as JSON.
  void add_settings() {
    const std::string text = generate::request_json(run_request(options_.request, job_));
    const std::vector<std::int64_t> shape = {std::ssize(text)};
    file_->begin("settings", io::NpyType::uint8, shape);
    file_->add(std::as_bytes(std::span(text)));
  }

  fs::path path_;
  std::map<std::int64_t, io::Image> waiting_;  // by item
  std::optional<io::NpzStream> file_;
  std::int64_t done_ = 0;
};

}  // namespace

std::unique_ptr<Sink> npz_sink(const SampleOptions& options, const generate::Job& job,
                               generate::Engine& engine) {
  return std::make_unique<NpzSink>(options, job, engine);
}

}  // namespace pom::cli
