// A clip as a folder: 000000.png, 000001.png, …, and clip.json, which says how many of them a clip wrote.
//
// A folder may hold what is a person's own, numbered pictures of a data set too. So no frame is replaced or
// removed that clip.json does not count. Frames are made in a folder beside (.pom-clip-…). Those of a clip
// that grows take their places at once, but where it replaces another: then, and where it does not grow, all
// of them do at the end. Before a frame takes its place, clip.json counts it: a program that is killed leaves
// none that belongs to nobody.
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <optional>
#include <random>
#include <sys/file.h>
#include <sys/stat.h>

#include "pom/io/atomic_file.h"
#include "pom/io/clip_writers.h"
#include "pom/io/file_descriptor.h"
#include "pom/io/frame_folder.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;
using detail::errno_text;
using detail::frame_name;
using detail::frame_names;
using detail::frame_number;
using detail::record_kind;
using detail::record_name;

constexpr const char* scratch_prefix = ".pom-clip-";

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
          ": cannot create a folder in it: ", errno_text(errno));
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
  check(!error, "clip write: ", folder.string(), ": cannot create the folder: ", error.message());
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
      if (const std::int64_t number = frame_number(file); number >= frames() && number < counted_)
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

std::unique_ptr<ClipWriter> detail::open_frame_folder(const fs::path& path, const ClipOptions& options) {
  return std::make_unique<FrameFolder>(path, options);
}

}  // namespace pom::io
