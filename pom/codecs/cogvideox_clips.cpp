#include "pom/codecs/cogvideox_clips.h"

#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include "pom/base/error.h"
#include "pom/codecs/cogvideox_codec.h"

namespace pom::codecs {
namespace {

const std::string wide_name = "wide";

}  // namespace

bool all_finite(const at::Tensor& values) {
  return at::isfinite(values).all().item<bool>();
}

CogVideoXClips::Clip CogVideoXClips::opened(bool wide) const {
  return {(wide ? codec_.wide() : codec_.network()).decoder(), wide};
}

at::Tensor CogVideoXClips::next_of(Clip& clip, const at::Tensor& latents) const {
  const bool may_widen = clip.stream.network().options().dtype() == at::kHalf;
  // What is held here is not overwritten.
  const CogVideoXStream::State before = may_widen ? clip.stream.state() : CogVideoXStream::State();
  at::Tensor frames = clip.stream.next(latents);
  if (may_widen && !all_finite(frames) && all_finite(latents)) {
    codec_.tell_wide("decode");
    clip = opened(true);
    clip.stream.set_state(before);
    frames = clip.stream.next(latents);
  }
  return frames;
}

at::Tensor CogVideoXClips::next(const at::Tensor& latents) {
  check(latents.dim() == 5 && latents.size(0) >= 1, "decode: latents: expected shape (B, C, T, H, W), got ",
        latents.sizes());
  check(!failed_, "decode: latents: the stream cannot go on, as a call failed");
  const bool first = clips_.empty();
  check(first || latents.size(0) == std::ssize(clips_), "decode: latents: expected ", clips_.size(),
        " clips, as before, got ", latents.size(0));
  // The first frame of an odd number is a latent of its own, which makes sense only where a clip begins.
  check(first || latents.size(2) % 2 == 0,
        "decode: latents: expected an even number of frames, as they are decoded two by two, got ",
        latents.size(2));
  while (std::ssize(clips_) < latents.size(0)) clips_.push_back(opened(false));
  failed_ = true;
  std::vector<at::Tensor> all;
  for (std::size_t b = 0; b < clips_.size(); ++b) {
    const at::Tensor unscaled =
        latents.narrow(0, static_cast<std::int64_t>(b), 1).div(codec_.scale()).add_(codec_.shift());
    const at::Tensor frames = next_of(clips_[b], unscaled);
    all.push_back(
        frames.to(latents.device(), frames.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  }
  failed_ = false;
  return all.size() == 1 ? all.front() : at::cat(all);
}

std::map<std::string, at::Tensor> CogVideoXClips::state() const {
  check(!failed_, "decode: state: none, as a call failed");
  std::map<std::string, std::vector<at::Tensor>> rows;
  at::Tensor wide = at::zeros({std::ssize(clips_)}, at::kByte);
  for (std::size_t b = 0; b < clips_.size(); ++b) {
    for (const auto& [name, tensor] : clips_[b].stream.state()) rows[name].push_back(tensor);
    if (clips_[b].wide) wide[static_cast<std::int64_t>(b)] = 1;
  }
  const bool any = wide.any().item<bool>();
  std::map<std::string, at::Tensor> state;
  for (auto& [name, tensors] : rows) {
    if (any)
      for (at::Tensor& tensor : tensors) tensor = tensor.to(at::kFloat);
    state[name] = tensors.size() == 1 ? tensors.front() : at::cat(tensors);
  }
  if (any) state[wide_name] = wide;
  return state;
}

void CogVideoXClips::set_state(const std::map<std::string, at::Tensor>& state) {
  std::map<std::string, at::Tensor> tensors = state;
  const auto said = tensors.extract(wide_name);
  const std::int64_t count =
      tensors.empty() || tensors.begin()->second.dim() == 0 ? 0 : tensors.begin()->second.size(0);
  std::vector<std::uint8_t> wide(static_cast<std::size_t>(count), 0);
  if (!said.empty()) {
    const at::Tensor& marks = said.mapped();
    check(marks.scalar_type() == at::kByte && marks.dim() == 1 && marks.size(0) == count,
          "decode: state: wide: expected a mark of 8 bits for each of ", count, " clips, got ",
          marks.scalar_type(), " of shape ", marks.sizes());
    const at::Tensor host = marks.to(at::kCPU).contiguous();
    wide.assign(host.data_ptr<std::uint8_t>(), host.data_ptr<std::uint8_t>() + count);
  }
  CogVideoXStream whole = codec_.network().decoder();
  whole.set_state(tensors);  // which checks them
  std::vector<Clip> clips;
  for (std::int64_t b = 0; b < count; ++b) {
    std::map<std::string, at::Tensor> rows;
    for (const auto& [name, tensor] : tensors) rows[name] = tensor.narrow(0, b, 1);
    clips.push_back(opened(wide[static_cast<std::size_t>(b)] != 0));
    clips.back().stream.set_state(rows);
  }
  clips_ = std::move(clips);
  failed_ = false;
}

}  // namespace pom::codecs
