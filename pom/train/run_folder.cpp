#include "pom/train/run_folder.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <sstream>

#include "pom/base/error.h"
#include "pom/io/atomic_file.h"
#include "pom/io/folder_swap.h"
#include "pom/io/json_fields.h"
#include "pom/train/checkpoint.h"
#include "pom/train/refusal.h"

namespace pom::train {
namespace {

namespace fs = std::filesystem;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

std::string numbers(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) text += (text.size() > 1 ? ", " : "") + number(value);
  return text + "]";
}

// Whatever a file holds; empty where there is none.
std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Adds to the end. A log that cannot be written is an error: a disk that is full would not take the next
// checkpoint either.
void append(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file << text << std::flush;
  check(file.good(), "train: ", path.string(), ": cannot write: ", io::detail::errno_text(errno));
}

std::int64_t step_of_line(std::string_view line) {
  constexpr std::string_view key = "{\"step\": ";
  std::int64_t step = -1;
  if (line.starts_with(key)) std::from_chars(line.data() + key.size(), line.data() + line.size(), step);
  return step;
}

void cut_log(const fs::path& path, std::int64_t step) {
  const std::string all = contents(path);
  if (all.empty()) return;
  std::string kept;
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);)
    if (const std::int64_t of = step_of_line(line); of >= 0 && of <= step && line.ends_with('}'))
      kept += line + "\n";
  if (kept != all) io::write_file_atomically(path, kept);
}

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts;
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  check(!error, "train: ", path.string(), ": cannot create the folder: ", error.message());
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

// The first thing in a folder that a run has left and a new one would replace or add to; empty where there is
// none.
std::string trace_of_run(const fs::path& folder) {
  const fs::path checkpoints = folder / "checkpoints";
  if (const std::int64_t step = newest_step(checkpoints); step >= 0)
    return "checkpoints/" + checkpoint_name(step).string();
  for (const char* name :
       {"model/model.safetensors", "model/config.json", "log.jsonl", "log.txt", "run.json"})
    if (is_there(folder / name)) return name;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (const std::string name = entry.path().filename().string(); name.starts_with("events.out.tfevents"))
      return name;
  return "";
}

struct ModelNote {
  std::int64_t step = -1;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "step", .help = "whose weights are in model/", .least = 0}, step);
  }
};

std::int64_t last_logged_step(const fs::path& log) {
  std::int64_t last = -1;
  std::istringstream lines(contents(log));
  for (std::string line; std::getline(lines, line);) last = std::max(last, step_of_line(line));
  return last;
}

// A run of an earlier version has no note: its log and its checkpoints tell how far it had come.
std::int64_t noted_step(const RunFolder& folder) {
  if (!is_there(folder.model() / "model.safetensors")) return -1;
  const fs::path path = folder.path() / "model.json";
  if (!is_there(path))
    return std::max(last_logged_step(folder.path() / "log.jsonl"), newest_step(folder.checkpoints()));
  ModelNote note;
  io::read_json(io::read_json_text(path), note, path.string());
  return note.step;
}

// Model folders that a killed process had begun to write (io::FolderSwap). The run's lock is ours: nobody
// writes one now.
void remove_begun_folders(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.is_directory(ignored) && !entry.is_symlink(ignored) &&
        entry.path().filename().string().starts_with(".pom-tmp-"))
      fs::remove_all(entry.path(), ignored);
}

fs::path prepared(const fs::path& path) {
  make_folder(path);
  return path;
}

}  // namespace

void check_run_folder(const fs::path& path, bool resume) {
  const std::string trace = trace_of_run(path), folder = path.string();
  const std::string elsewhere =
      detail::concat("start a new run from its weights (--init-from ", (path / "model").string(), " -o DIR)");
  refuse_unless(resume || trace.empty(), "train: ", folder, ": already holds a run (", trace,
                "): continue it with --resume, choose another folder with -o DIR, or ", elsewhere);
  refuse_unless(!resume || !trace.empty(), "train: --resume: expected the folder of a run, got ", folder,
                ", which holds none; without --resume a new run starts there");
  refuse_unless(!resume || newest_step(path / "checkpoints") >= 0,
                "train: --resume: expected a checkpoint in ", (path / "checkpoints").string(),
                ", got none: choose another folder (-o DIR) without --resume, or ", elsewhere);
}

RunFolder::RunFolder(fs::path path, bool resume) : path_(prepared(path)), lock_(path_) {
  io::restore_folder(model());
  check_run_folder(path_, resume);  // once more, now that nobody else can change it
  for (const fs::path& folder : {checkpoints(), samples(), model()}) make_folder(folder);
  for (const fs::path& folder : {path_, checkpoints(), samples(), model()}) io::remove_temporaries(folder);
  remove_begun_folders(path_);
  model_step_ = noted_step(*this);
}

void RunFolder::note_model(std::int64_t step) {
  check(step >= model_step_, "train: ", model().string(), ": expected a step from ", model_step_,
        " on, which it holds, got ", step);
  ModelNote note{step};
  io::write_file_atomically(path_ / "model.json", io::write_json(note) + "\n");
  model_step_ = step;
}

RunLog::RunLog(const fs::path& folder, std::int64_t step) : folder_(folder), events_(folder, wall_seconds()) {
  cut_log(folder_ / "log.jsonl", step);
  if (step >= 0) events_.restart(step + 1, wall_seconds());
}

void RunLog::line(const std::string& json) {
  append(folder_ / "log.jsonl", json + "\n");
}

void RunLog::figures(const Figures& f) {
  line(detail::concat(
      "{\"step\": ", f.step, ", \"loss\": ", number(f.loss), ", \"rate\": ", number(f.rate), ", \"norm\": ",
      number(f.norm), ", \"pictures_per_second\": ", number(std::round(f.pictures_per_second * 10) / 10),
      ", \"seconds\": ", number(std::round(f.seconds * 100) / 100), ", \"skipped\": ", f.skipped,
      f.ranks > 1 ? detail::concat(", \"ranks\": ", f.ranks,
                                   ", \"waiting\": ", number(std::round(f.waiting * 1000) / 1000))
                  : std::string(),
      ", \"loss_by_time\": ", numbers(f.loss_by_time), "}"));
  const double now = wall_seconds();
  events_.scalar("train/loss", f.loss, f.step, now);
  events_.scalar("train/rate", f.rate, f.step, now);
  events_.scalar("train/gradient norm", f.norm, f.step, now);
  events_.scalar("train/pictures per second", f.pictures_per_second, f.step, now);
  if (f.ranks > 1) events_.scalar("train/share of time waiting for others", f.waiting, f.step, now);
  for (std::size_t i = 0; i < f.loss_by_time.size(); ++i)
    if (std::isfinite(f.loss_by_time[i]))
      events_.scalar(detail::concat("train loss by time/0.", i), f.loss_by_time[i], f.step, now);
}

void RunLog::validation(std::int64_t step, const ValidationResult& result) {
  line(detail::concat("{\"step\": ", step, ", \"validation_loss\": ", number(result.loss),
                      ", \"validation_loss_by_time\": ", numbers(result.by_time), "}"));
  const double now = wall_seconds();
  events_.scalar("validation/loss", result.loss, step, now);
  for (std::size_t i = 0; i < result.by_time.size(); ++i)
    if (std::isfinite(result.by_time[i]))
      events_.scalar(detail::concat("validation loss by time/0.", i), result.by_time[i], step, now);
}

void RunLog::message(std::string_view text) {
  append(folder_ / "log.txt", detail::concat(time_text(), "  ", text, "\n"));
}

void RunLog::recipe(std::int64_t step, const std::string& toml) {
  events_.text("recipe", "```toml\n" + toml + "```\n", step, wall_seconds());
}

void RunLog::sheet(std::int64_t step, const fs::path& png, int width, int height) {
  const std::string bytes = contents(png);
  events_.image("samples", std::as_bytes(std::span(bytes)), width, height, step, wall_seconds());
}

void note_launch(const fs::path& folder, const std::string& launch) {
  if (!launch.empty()) io::write_file_atomically(folder / "launch", launch + "\n");
}

bool was_launched_by(const fs::path& folder, const std::string& launch) {
  return !launch.empty() && contents(folder / "launch") == launch + "\n" &&
         newest_step(folder / "checkpoints") >= 0;
}

void note_start(const fs::path& folder, const std::string& json) {
  const fs::path path = folder / "run.json";
  std::string before = contents(path);
  const std::size_t end = before.rfind(']');
  before =
      end == std::string::npos ? "[" : before.substr(0, before.find_last_not_of(" \n", end - 1) + 1) + ",";
  io::write_file_atomically(path, before + "\n" + json + "\n]\n");
}

}  // namespace pom::train
