// Where what is sampled goes: files of images or of clips. Names are checked before the work; files appear
// whole, and those of streams grow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/sample_options.h"
#include "pom/generate/engine.h"

namespace pom::cli {

class Sink {
 public:
  virtual ~Sink() = default;

  // As generate::Observer has them.
  virtual void take(generate::Frames&& frames) = 0;
  virtual void preview(std::int64_t step, const std::vector<generate::Frames>& frames) = 0;
  virtual void end_block() {}
  // Nothing more will come; what is not whole and cannot grow is left out where the run was stopped.
  virtual void finish(bool stopped) = 0;

  virtual bool is_stdout() const { return false; }
  virtual std::int64_t frames() const { return 0; }  // written so far, of all clips
  virtual std::string remark() const { return {}; }  // on where things go, before the work
  // What has been written.
  const std::vector<std::string>& files() const { return files_; }
  const std::vector<std::string>& previews() const { return previews_; }
  std::int64_t items() const { return items_; }

 protected:
  Sink(const SampleOptions& options, const generate::Job& job, generate::Engine& engine);

  void written(const std::string& file, std::int64_t items);  // and says so
  void write_image(const std::string& file, const io::Image& image, const std::vector<io::TextEntry>& text);
  void write_preview(const std::string& file, const io::Image& image);
  // The two texts of the item's file.
  std::vector<io::TextEntry> text_of(std::size_t item) const;
  // Those of a sheet of all items.
  std::vector<io::TextEntry> sheet_text() const;

  const SampleOptions& options_;
  const generate::Job& job_;
  generate::Engine& engine_;
  const std::string noise_hash_;  // of the file of --init-latents

 private:
  std::vector<std::string> files_, previews_;
  std::int64_t items_ = 0;
};

// Throws UsageError or pom::Error for what cannot be written to. All arguments outlive it.
std::unique_ptr<Sink> image_sink(const SampleOptions& options, const generate::Job& job,
                                 generate::Engine& engine);
// All images in one .npz.
std::unique_ptr<Sink> npz_sink(const SampleOptions& options, const generate::Job& job,
                               generate::Engine& engine);
// `names` are the clips' own where they do not follow from the options.
std::unique_ptr<Sink> clip_sink(const SampleOptions& options, const generate::Job& job,
                                generate::Engine& engine, std::vector<std::filesystem::path> names = {});

}  // namespace pom::cli
