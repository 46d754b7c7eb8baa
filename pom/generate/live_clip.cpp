#include "pom/generate/live_clip.h"

#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/generate/engine_impl.h"

namespace pom::generate {
namespace {

const std::string beside_text = "live";

}  // namespace

struct LiveClip::Impl {
  Impl(Engine::Impl& engine, Job&& what)
      : job(std::move(what)),
        network(engine.new_denoiser(job.first())),
        run(engine, *network, job, 0, 1, observer, {}, {}),
        prompt(job.first().subject()) {
    observer.on_frames = [this](Frames&& made) { frames = std::move(made); };
    const at::NoGradGuard no_gradients;
    run.begin();
  }

  Job job;
  Observer observer;
  Frames frames;  // of the block that was made last
  std::unique_ptr<models::Denoiser> network;
  BatchRun run;
  std::string prompt;
  std::int64_t block = 0;
};

LiveClip::LiveClip(Engine& engine, Job job) {
  check(job.stream && job.clip, "live clip: expected a clip that streams, got one that is made whole");
  check(job.items.size() == 1, "live clip: expected one item, got ", job.items.size());
  check(job.first().init.empty(), "live clip: init: expected none, got ", job.first().init);
  impl_ = std::make_unique<Impl>(engine.impl(), std::move(job));
}
LiveClip::~LiveClip() = default;
LiveClip::LiveClip(LiveClip&&) noexcept = default;
LiveClip& LiveClip::operator=(LiveClip&&) noexcept = default;

void LiveClip::tell(const std::string& prompt) {
  impl_->prompt = prompt;
  impl_->run.tell(prompt);
}

Frames LiveClip::next(const std::atomic<bool>* stop, const std::function<void()>& on_evaluation) {
  check(impl_->job.blocks == 0 || impl_->block < impl_->job.blocks, "live clip: expected at most ",
        impl_->job.blocks, " blocks, got one more");
  SamplingHooks hooks;
  hooks.before = [&] {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw Stopped();
  };
  hooks.after = on_evaluation;
  impl_->run.pass(impl_->block, 1, hooks);
  ++impl_->block;
  return std::move(impl_->frames);
}

std::int64_t LiveClip::block() const {
  return impl_->block;
}
double LiveClip::fps() const {
  return impl_->job.fps;
}
const std::string& LiveClip::prompt() const {
  return impl_->prompt;
}

bool LiveClip::save(const std::filesystem::path& path, const BesideStream& beside) const {
  StateNotes notes;
  if (!beside.text.empty()) notes.texts[beside_text] = beside.text;
  for (std::size_t i = 0; i < beside.files.size(); ++i) {
    const std::string& file = beside.files[i];
    at::Tensor bytes = at::empty({std::ssize(file)}, at::kByte);
    std::memcpy(bytes.data_ptr(), file.data(), file.size());
    notes.tensors[state_file_prefix + std::to_string(i)] = bytes;
  }
  return impl_->run.save_to(path, notes);
}

BesideStream read_beside(const std::filesystem::path& path) {
  const io::safetensors::Reader reader(path);
  const std::string where = path.string();
  check_stream_file(reader.header(), where);
  BesideStream beside;
  const std::string* const text = reader.header().find_metadata(state_notes_prefix + beside_text);
  check(text != nullptr, where, ": expected the state of a live stream, got that of a clip");
  beside.text = *text;
  constexpr std::uint64_t most = std::uint64_t{64} << 20;  // bytes of all
  std::uint64_t bytes = 0;
  for (std::size_t i = 0;; ++i) {
    const std::string name = state_notes_prefix + state_file_prefix + std::to_string(i);
    const io::safetensors::TensorInfo* const file = reader.header().find(name);
    if (file == nullptr) return beside;
    bytes += file->bytes();
    check(file->dtype == io::safetensors::Dtype::U8 && bytes <= most, where, ": ", name,
          ": expected bytes, at most ", most, " in all, got ", bytes);
    const io::safetensors::Buffer read = reader.read(name);
    beside.files.emplace_back(reinterpret_cast<const char*>(read.data()), read.size());
  }
}

}  // namespace pom::generate
