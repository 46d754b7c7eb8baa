// A clip as a folder: 000000.png, 000001.png, …, and clip.json, which says how many of them a clip wrote.
//
// A folder may hold what is a person's own, numbered pictures of a data set too. So no frame is replaced or
// removed that clip.json does not count. Frames are made in a folder beside (.pom-clip-…). Those of a clip
// that grows take their places at once, but where it replaces another: then, and where it does not grow, all
// of them do at the end. Before a frame takes its place, clip.json counts it: a program that is killed leaves
// none that belongs to nobody.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fcntl.h>
#include <limits>
#include <optional>
#include <random>
#include <sys/file.h>
#include <sys/stat.h>

#include "pom/io/atomic_file.h"
#include "pom/io/clip_writers.h"
#include "pom/io/file_descriptor.h"
#include "pom/io/json_header.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;
using detail::errno_text;

constexpr const char* record_name = "clip.json";
constexpr const char* record_kind = "frames of a clip";
constexpr const char* scratch_prefix = ".pom-clip-";

std::string frame_name(std::int64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "%06lld.png", static_cast<long long>(number));
  return name;
}

// Of anything that would be taken for a frame, also "0000012.png".
bool is_frame_name(const std::string& name) {
  constexpr std::size_t least = 6, ending = 4;
  return name.ends_with(".png") && name.size() >= least + ending &&
         std::all_of(name.begin(), name.end() - ending, [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string> frame_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (std::string name = entry->path().filename().string(); is_frame_name(name))
      names.push_back(std::move(name));
  const bool missing = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  check(!error || missing, "clip write: ", folder.string(), ": ", error.message());
  return names;
}

// -1 of a name that no clip gives its frames.
std::int64_t number_of(const std::string& name) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size() - 4, number);
  return error == std::errc() && frame_name(number) == name ? number : -1;
}

// What clip.json counts; nothing where it is none of ours.
std::optional<std::int64_t> read_record(const fs::path& path) try {
  using Kind = SafetensorsError::Kind;
  const std::vector<std::byte> bytes = detail::read_file(path, "clip.json", 4096);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (detail::find_invalid_utf8(text) != text.size()) return {};
  const detail::Site site{.operation = "clip.json", .file = path.string()};
  detail::JsonCursor json(text, site);
  std::string kind;
  std::uint64_t frames = 0;
  json.open('{', Kind::JsonSyntax, "an object");
  for (bool first = true; json.more(first, '}');) {
    if (const std::string key = json.key(); key == "kind")
      kind = json.string(Kind::JsonSyntax, "a kind");
    else if (key == "frames")
      frames = json.integer("a number of frames");
    else
      return {};
  }
  json.finish();
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  if (kind != record_kind) return {};
  return static_cast<std::int64_t>(std::min(frames, most));
} catch (const Error&) {
  return {};
}

// A folder for frames that have no place yet. One whose program was killed is removed by the next that writes
// into the same folder: as long as it runs, a program holds a lock on its own.
class Scratch {
 public:
  explicit Scratch(const fs::path& folder) {
    remove_dead(folder);
    std::random_device entropy;
    char name[40];
    std::snprintf(name, sizeof name, "%s%08x%08x", scratch_prefix, entropy(), entropy());
    path_ = folder / name;
    check(::mkdir(path_.c_str(), 0777) == 0, "clip write: ", folder.string(),
          ": cannot make a folder in it: ", errno_text(errno));
    lock_ = open_folder(path_);
    ::flock(lock_.get(), LOCK_EX | LOCK_NB);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const fs::path& path() const { return path_; }

 private:
  static detail::FileDescriptor open_folder(const fs::path& path) {
    return detail::FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  }

  static void remove_dead(const fs::path& folder) {
    std::vector<fs::path> dead;
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().filename().string().starts_with(scratch_prefix)) dead.push_back(entry.path());
    for (const fs::path& path : dead) {
      const detail::FileDescriptor held = open_folder(path);
      if (held.is_open() && ::flock(held.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, ignored);
    }
  }

  fs::path path_;
  detail::FileDescriptor lock_;
};

bool make_folder(const fs::path& folder) {
  std::error_code error;
  const bool made = fs::create_directories(folder, error);
  check(!error, "clip write: ", folder.string(), ": cannot make the folder: ", error.message());
  return made;
}

class FrameFolder final : public ClipWriter {
 public:
  FrameFolder(const fs::path& path, const ClipOptions& options)
      : ClipWriter(path.string(), options), folder_(path), made_(make_folder(path)) {
    const FramesInFolder there = frames_in(folder_);
    check(there.others == 0, "clip write: ", name(), ": expected no frames but those of a clip, got ",
          there.first_other, ", which ", record_name, " does not count");
    counted_ = there.counted;
    at_once_ = options.growing && there.written == 0;
    scratch_.emplace(folder_);
  }
  ~FrameFolder() override {
    scratch_.reset();
    std::error_code ignored;
    if (made_) fs::remove(folder_, ignored);  // where nothing is in it
  }

 private:
  void put(const Image& frame) override {
    const std::string file = frame_name(frames());
    write_png(scratch_->path() / file, frame, options().text);
    if (!at_once_) return;
    constexpr std::int64_t ahead = 256;  // so that not each frame writes the record
    if (frames() >= counted_) count(frames() / ahead * ahead + ahead);
    place(file);
  }
  void put_out() override {}

  void end() override {
    if (!at_once_) {
      if (frames() > counted_) count(frames());
      for (std::int64_t i = 0; i < frames(); ++i) place(frame_name(i));
    }
    // Frames of a longer clip that was there before would play at the end of this one.
    for (const std::string& file : frame_names(folder_))
      if (const std::int64_t number = number_of(file); number >= frames() && number < counted_)
        fs::remove(folder_ / file);
    count(frames());
    scratch_.reset();
  }

  void place(const std::string& file) {
    std::error_code error;
    fs::rename(scratch_->path() / file, folder_ / file, error);
    check(!error, "clip write: ", name(), ": cannot put ", file, " into its place: ", error.message());
  }

  // A folder whose record says so already is left alone.
  void count(std::int64_t frames) {
    if (frames == counted_ && recorded_) return;
    write_file_atomically(folder_ / record_name, ::pom::detail::concat("{\"kind\": \"", record_kind,
                                                                       "\", \"frames\": ", frames, "}\n"));
    counted_ = frames;
    recorded_ = true;
  }

  fs::path folder_;
  bool made_ = false;         // by this writer
  bool at_once_ = false;      // frames take their places as they come
  bool recorded_ = false;     // clip.json is this writer's
  std::int64_t counted_ = 0;  // by clip.json
  std::optional<Scratch> scratch_;
};

}  // namespace

FramesInFolder frames_in(const fs::path& folder) {
  FramesInFolder found;
  const auto other = [&](const std::string& file) {
    if (found.others++ == 0 || file < found.first_other) found.first_other = file;
  };
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(folder / record_name, ignored))) {
    if (const std::optional<std::int64_t> counted = read_record(folder / record_name))
      found.counted = *counted;
    else
      other(record_name);
  }
  for (const std::string& file : frame_names(folder))
    if (const std::int64_t number = number_of(file); number >= 0 && number < found.counted)
      ++found.written;
    else
      other(file);
  return found;
}

std::unique_ptr<ClipWriter> detail::open_frame_folder(const fs::path& path, const ClipOptions& options) {
  return std::make_unique<FrameFolder>(path, options);
}

}  // namespace pom::io
