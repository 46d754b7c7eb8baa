#include "pom/generate/live_clip.h"

#include <utility>

#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/generate/engine_impl.h"

namespace pom::generate {

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

bool LiveClip::save(const std::filesystem::path& path) const {
  return impl_->run.save_to(path);
}

}  // namespace pom::generate
