// Clips in files: written frame by frame, read frame by frame at whatever rate and size are wanted.
//
// .mp4 (H.264) and .webm (VP9, else VP8) go through FFmpeg's libraries, in 4:2:0 as players expect it. .gif,
// .y4m and folders of PNG need none of them. Colours of .mp4 and .webm are BT.709, of .y4m BT.601, in the
// limited range, as players take them where nothing is said.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/error.h"
#include "pom/io/image.h"
#include "pom/io/png.h"

namespace pom::io {

// ---- writing

struct ClipOptions {
  int width = 0, height = 0;
  double fps = 0;
  // Written where it shall lie and playable at any time, also when the program is killed; of .mp4, in
  // fragments. Else the file appears whole at finish(), or not at all. Frames that take the place of others
  // in a folder do so at finish() in either case.
  bool growing = false;
  int quality = 90;  // 1 to 100; of .mp4 and .webm
  // What the file says of itself, for read_file_text (file_text.h); players of .mp4 and .webm show the first.
  std::vector<TextEntry> text = {};
};

// Whoever should have read is gone: the end of a stream, rather than a failure.
class ClosedPipe : public Error {
 public:
  using Error::Error;
};

// Errors are pom::Error with the path and the system's or FFmpeg's reason. After one, a file that is not
// growing is gone, and add(), flush() and finish() are errors. Not for two threads at once.
class ClipWriter {
 public:
  virtual ~ClipWriter() = default;

  // 8-bit RGB of the clip's size.
  void add(const Image& frame);
  // Of a clip that grows: what was added so far is in the file and plays. Without calls, once a second of it.
  void flush();
  // A clip has at least one frame. To destroy a writer without this leaves what is said of `growing`.
  void finish();

  std::int64_t frames() const { return frames_; }

 protected:
  ClipWriter(std::string name, const ClipOptions& options);
  virtual void put(const Image& frame) = 0;
  virtual void put_out() = 0;  // flush
  virtual void end() = 0;      // finish

  const std::string& name() const { return name_; }  // in messages
  const ClipOptions& options() const { return options_; }

 private:
  void check_open(const char* operation) const;
  template <class Action>
  void guarded(Action&& action);

  std::string name_;
  ClipOptions options_;
  std::int64_t frames_ = 0;
  bool broken_ = false, finished_ = false;
};

// By the name: .mp4, .webm, .gif, .y4m (in any case); anything else without an extension, or a folder that is
// there, becomes a folder of 000000.png, 000001.png, … with a clip.json that counts them. A folder with
// frames that no clip wrote is an error. A pipe or device grows, whatever the options say. An odd side of an
// .mp4 gets one more row or column, equal to the last: 4:2:0 has none.
std::unique_ptr<ClipWriter> open_clip(const std::filesystem::path& path, const ClipOptions& options);
// Raw y4m (4:4:4) into an open descriptor, which is not closed: for a player that reads standard output.
// Frames alone, without text.
std::unique_ptr<ClipWriter> open_y4m(int descriptor, const ClipOptions& options,
                                     std::string name = "<stdout>");

// An .mp4 in fragments for those who watch while it is made, without a file: the head comes at once, then a
// fragment at each flush(), and once a second without. Whoever has the head may begin at a fragment that is a
// `key`; there is one at least each second, where fragments begin. There is no end: it plays up to any
// fragment.
struct ClipPiece {
  std::string bytes;
  bool key = false;
};
std::unique_ptr<ClipWriter> open_clip_stream(const ClipOptions& options,
                                             std::function<void(ClipPiece&&)> take);

// That open_clip knows the name and this build can write it: to be asked before an hour of work, not after
// it.
void check_clip_name(const std::filesystem::path& path);
bool is_clip_file_name(const std::filesystem::path& path);  // .mp4, .webm, .gif or .y4m

// What a folder has that is named as frames are.
struct FramesInFolder {
  std::int64_t counted = 0;  // by clip.json, whether they are there or not
  std::int64_t written = 0;  // of these, those that are there
  std::int64_t others =
      0;  // that no clip wrote, and which no clip may replace; a clip.json of another kind too
  std::string first_other;
};
FramesInFolder frames_in(const std::filesystem::path& folder);

// A rate as the files have it: 29.97 is 30000/1001.
struct FrameRate {
  std::int64_t frames = 0, seconds = 1;

  friend bool operator==(const FrameRate&, const FrameRate&) = default;
};
FrameRate frame_rate(double fps);

// ---- reading

struct ClipReading {
  int width = 0, height = 0;  // 0: those of the file. Else scaled to cover them, and the middle kept
  double fps = 0;             // 0: every frame of the file. Else at each 1/fps the frame that is on then
  double start = 0;           // seconds
};

struct ClipInfo {
  int width = 0, height = 0;  // of the file, upright
  double fps = 0;             // the mean; 0: unknown
  double seconds = 0;         // as the file says; 0: it does not
  std::string format, codec;
  std::string comment;
};

// Pixels of a frame that is read, twice those of 8K: what a file says of its frames need not be so.
inline constexpr std::int64_t max_frame_pixels = std::int64_t{1} << 26;

// The usual files (.mp4, .mov, .webm, .mkv, .avi, .gif, .y4m, .mpg, .ts, .ogv, .flv, .wmv) of the usual
// codecs, their first stream of pictures. Errors are pom::Error with the path; damage is one where it is met,
// and not before. Files alone: nothing that a file names is opened. A folder of frames as open_clip writes
// them is read too, without FFmpeg, in its own size and without times: the frames that clip.json counts. Not
// for two threads at once.
class ClipReader {
 public:
  explicit ClipReader(const std::filesystem::path& path, const ClipReading& reading = {});
  ~ClipReader();
  ClipReader(ClipReader&&) noexcept;

  const ClipInfo& info() const;
  // The next frame, 8-bit RGB; false at the end.
  bool next(Image& frame);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "libavformat 59.27.100, libavcodec 59.37.100; libx264, libvpx-vp9"; empty where this build has no FFmpeg,
// and .mp4, .webm and reading of files are errors.
std::string clip_libraries();

}  // namespace pom::io
