#include "pom/codecs/cogvideox.h"

#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

using Way = CogVideoX::Way;

// ---- weights ----

class VideoPathReader {
 public:
  VideoPathReader(const CogVideoXConfig& config, const TensorSource& source, Way way)
      : c_(config), source_(source), decodes_(way == Way::decode), side_(decodes_ ? "decoder" : "encoder") {}

  VideoPath read() {
    VideoPath path;
    path.groups = c_.norm_num_groups;
    path.conv_in = causal(side_ + ".conv_in");
    const std::int64_t widest = c_.block_out_channels.back();
    // Places among what is remembered follow the way of the data.
    if (decodes_) read_middle(path, widest);
    std::int64_t in = decodes_ ? widest : c_.block_out_channels.front();
    for (std::int64_t i = 0; i < c_.levels(); ++i) in = read_level(path, i, in);
    if (!decodes_) read_middle(path, widest);
    path.norm_out = norm(side_ + ".norm_out", 1e-6);
    path.conv_out = causal(side_ + ".conv_out");
    path.places = std::move(places_);
    return path;
  }

 private:
  CausalConv causal(const std::string& name) { return CausalConv::read(source_, name, level_, places_); }

  VideoNorm norm(const std::string& name, double epsilon) const {
    return decodes_ ? VideoNorm::read_spatial(source_, name, c_.norm_num_groups)
                    : VideoNorm::read(source_, name, c_.norm_num_groups, epsilon);
  }

  VideoResnet resnet(const std::string& name, std::int64_t in, std::int64_t out) {
    VideoResnet r{.norm1 = norm(name + ".norm1", c_.norm_eps),
                  .norm2 = norm(name + ".norm2", c_.norm_eps),
                  .conv1 = causal(name + ".conv1"),
                  .conv2 = causal(name + ".conv2"),
                  .shortcut = {}};
    if (in != out) {
      r.shortcut = Conv::read(source_, name + ".conv_shortcut");
      r.shortcut.weight = r.shortcut.weight.squeeze(2);  // of one frame
    }
    return r;
  }

  void read_middle(VideoPath& path, std::int64_t channels) {
    for (const char* j : {"0", "1"})
      path.middle.push_back(resnet(side_ + ".mid_block.resnets." + j, channels, channels));
  }

  std::int64_t read_level(VideoPath& path, std::int64_t i, std::int64_t in) {
    const std::string name = side_ + (decodes_ ? ".up_blocks." : ".down_blocks.") + std::to_string(i);
    const std::int64_t out = c_.channels_at(decodes_ ? c_.levels() - 1 - i : i);
    VideoLevel level;
    for (std::int64_t j = 0; j < c_.layers_per_block + (decodes_ ? 1 : 0); ++j)
      level.resnets.push_back(resnet(name + ".resnets." + std::to_string(j), j == 0 ? in : out, out));
    if (i + 1 < c_.levels()) {
      ++level_;
      if (decodes_)
        level.up = UpConv::read(source_, name + ".upsamplers.0.conv");
      else
        level.down = Conv::read(source_, name + ".downsamplers.0.conv");
    }
    level.time = i < c_.time_levels();
    path.levels.push_back(std::move(level));
    return out;
  }

  const CogVideoXConfig& c_;
  const TensorSource& source_;
  bool decodes_;
  std::string side_;
  CausalPlaces places_;
  std::int64_t level_ = 0;
};

// ---- one chunk of one clip ----

// A norm comes after each of these but the last, where only what changes the size comes.
Activation through_resnets(Activation x, const std::vector<VideoResnet>& resnets, const at::Tensor& latents,
                           CausalCaches& caches, std::int64_t groups, bool norm_follows) {
  for (const VideoResnet& resnet : resnets)
    x = resnet(x, latents, caches, norm_follows || &resnet != &resnets.back() ? groups : 0);
  return x;
}

Activation smaller_clip(const Activation& x, const VideoLevel& level, std::int64_t groups) {
  const at::Tensor frames = level.time ? average_pairs(as_frames(x.x)) : as_frames(x.x);
  return as_clip(complete(conv_down(frames, level.down), groups));
}

// A frame that comes twice is convolved once.
Activation larger_clip(const Activation& x, const VideoLevel& level, std::int64_t groups) {
  const Activation frames = conv_up(as_frames(x.x), level.up, groups);
  return as_clip(level.time ? double_frames(frames) : frames);
}

at::Tensor through_network(const VideoPath& path, Way way, const at::Tensor& piece, CausalCaches& caches) {
  const std::int64_t groups = path.groups;
  const at::Tensor latents =
      way == Way::decode ? piece.contiguous(at::MemoryFormat::ChannelsLast3d) : at::Tensor();
  at::Tensor padded = room_before(piece);
  Activation x = complete_clip(causal_conv(padded, path.conv_in, caches), groups);
  if (way == Way::decode) x = through_resnets(std::move(x), path.middle, latents, caches, groups, true);
  for (const VideoLevel& level : path.levels) {
    const bool resized = level.down.weight.defined() || level.up.weight.defined();
    x = through_resnets(std::move(x), level.resnets, latents, caches, groups, !resized);
    if (resized) x = way == Way::decode ? larger_clip(x, level, groups) : smaller_clip(x, level, groups);
  }
  if (way == Way::encode) x = through_resnets(std::move(x), path.middle, latents, caches, groups, true);
  padded = normed_with_room(x, path.norm_out, latents);
  x = {};
  return complete_clip(causal_conv(padded, path.conv_out, caches), 0).x;
}

// ---- what came in ----

const char* piece_name(Way way) {
  return way == Way::decode ? "decode: latents" : "encode: clips";
}

}  // namespace

CogVideoX::CogVideoX(CogVideoXConfig config, TensorSource source, at::TensorOptions options)
    : config_(std::move(config)), source_(std::move(source)), options_(options) {}

const VideoPath& CogVideoX::path(Way way) const {
  const std::size_t i = way == Way::decode ? 1 : 0;
  std::call_once(paths_->read[i], [&] {
    const at::NoGradGuard no_gradients;
    paths_->paths[i] = VideoPathReader(config_, source_, way).read();
  });
  return paths_->paths[i];
}

at::Tensor CogVideoX::encode_moments(const at::Tensor& clips) const {
  return encoder().next(clips, CogVideoXStream::Then::end);
}

at::Tensor CogVideoX::decode(const at::Tensor& latents) const {
  return decoder().next(latents, CogVideoXStream::Then::end);
}

CogVideoXStream CogVideoX::encoder() const {
  return {*this, Way::encode};
}

CogVideoXStream CogVideoX::decoder() const {
  return {*this, Way::decode};
}

CogVideoXStream::CogVideoXStream(CogVideoX network, Way way)
    : network_(std::move(network)), way_(way), path_(&network_.path(way)) {}

void CogVideoXStream::check_piece(const at::Tensor& piece) const {
  const CogVideoXConfig& c = network_.config();
  const std::int64_t channels = way_ == Way::decode ? c.latent_channels : c.in_channels;
  const std::int64_t least = way_ == Way::decode ? 1 : c.factor();
  check(piece.dim() == 5 && piece.size(1) == channels && piece.is_floating_point(), piece_name(way_),
        ": expected floating point (B, ", channels, ", T, H, W), got ", piece.scalar_type(), " of shape ",
        piece.sizes());
  check(piece.size(0) >= 1 && piece.size(2) >= 1 && piece.size(3) >= least && piece.size(4) >= least,
        piece_name(way_), ": expected at least one frame of ", least, "x", least, ", got the shape ",
        piece.sizes());
  check(!failed_, piece_name(way_), ": the stream cannot go on, as a call failed");
  if (!started()) return;
  check(piece.size(0) == std::ssize(clips_) && piece.size(3) == height_ && piece.size(4) == width_,
        piece_name(way_), ": expected ", clips_.size(), " clips with sides ", height_, " and ", width_,
        ", as those before, got the shape ", piece.sizes());
}

at::Tensor CogVideoXStream::next(const at::Tensor& piece, Then then) {
  const at::NoGradGuard no_gradients;
  check_piece(piece);
  const CogVideoXConfig& c = network_.config();
  const bool decodes = way_ == Way::decode;
  const std::int64_t at_once = decodes ? c.latents_at_once : c.frames_at_once;
  const std::vector<std::int64_t> chunks = video_chunks(piece.size(2), at_once);
  if (!started()) clips_.assign(static_cast<std::size_t>(piece.size(0)), CausalCaches(path_->places.size()));
  height_ = piece.size(3), width_ = piece.size(4);
  failed_ = true;
  at::Tensor all;
  for (std::int64_t b = 0; b < piece.size(0); ++b) {
    CausalCaches& caches = clips_[static_cast<std::size_t>(b)];
    std::int64_t first = 0, made = 0;
    for (const std::int64_t& count : chunks) {
      caches.set_more(then == Then::more || &count != &chunks.back());
      const at::Tensor chunk = through_network(
          *path_, way_, piece.narrow(0, b, 1).narrow(2, first, count).to(network_.options()), caches);
      if (!all.defined())
        all = at::empty(
            {piece.size(0), chunk.size(1), decodes ? c.frames_of(piece.size(2)) : c.latents_of(piece.size(2)),
             chunk.size(3), chunk.size(4)},
            chunk.options());
      all.narrow(0, b, 1).narrow(2, made, chunk.size(2)).copy_(chunk);
      first += count, made += chunk.size(2);
    }
  }
  failed_ = false;
  if (then == Then::end) clips_.clear();
  return all;
}

CogVideoXStream::State CogVideoXStream::state() const {
  check(!failed_, piece_name(way_), ": no state, as a call failed");
  State state;
  for (std::size_t i = 0; started() && i < path_->places.size(); ++i) {
    std::vector<at::Tensor> rows;
    for (const CausalCaches& clip : clips_) rows.push_back(clip.frames()[i]);
    state[path_->places[i].name] = rows.size() == 1 ? rows.front() : at::cat(rows);
  }
  return state;
}

std::vector<std::int64_t> CogVideoXStream::remembered_shape(const CausalPlace& place) const {
  const bool grows = way_ == Way::decode;
  const auto side = [&](std::int64_t first) { return grows ? first << place.level : first >> place.level; };
  return {std::ssize(clips_), place.channels, 2, side(height_), side(width_)};
}

void CogVideoXStream::set_state(const State& state) {
  const CausalPlaces& places = path_->places;
  const std::string what = way_ == Way::decode ? "decode: state" : "encode: state";
  CogVideoXStream read(network_, way_);
  if (!state.empty()) {
    check(state.size() == places.size(), what, ": expected ", places.size(), " tensors, got ", state.size());
    const auto first = state.find(places.front().name);
    check(first != state.end() && first->second.dim() == 5 && first->second.numel() > 0, what, ": expected ",
          places.front().name, " of shape (B, ", places.front().channels, ", 2, H, W)");
    read.height_ = first->second.size(3), read.width_ = first->second.size(4);
    read.clips_.resize(static_cast<std::size_t>(first->second.size(0)));
  }
  std::vector<std::vector<at::Tensor>> clips(read.clips_.size());
  for (std::size_t i = 0; i < places.size() && !state.empty(); ++i) {
    const auto found = state.find(places[i].name);
    check(found != state.end(), what, ": no ", places[i].name);
    const std::vector<std::int64_t> shape = read.remembered_shape(places[i]);
    check(found->second.is_floating_point() && found->second.sizes() == shape, what, ": ", places[i].name,
          ": expected floating point of shape ", at::IntArrayRef(shape), ", got ",
          found->second.scalar_type(), " of shape ", found->second.sizes());
    const at::Tensor all = found->second.to(network_.options()).contiguous(at::MemoryFormat::ChannelsLast3d);
    for (std::size_t b = 0; b < clips.size(); ++b)
      clips[b].push_back(all.narrow(0, static_cast<std::int64_t>(b), 1));
  }
  for (std::size_t b = 0; b < clips.size(); ++b) read.clips_[b].set(std::move(clips[b]));
  *this = std::move(read);
}

}  // namespace pom::codecs
