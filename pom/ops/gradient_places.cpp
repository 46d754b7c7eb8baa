#include "pom/ops/gradient_places.h"

#include <map>
#include <mutex>

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"

namespace pom::ops {
namespace {

struct Owner {
  GradientPlaces* places;
  std::size_t place;
};
std::mutex mutex;
std::map<const void*, Owner>& owners() {
  static auto& all = *new std::map<const void*, Owner>;
  return all;
}

// to = aᵀ b, or that added to it.
void multiply(at::Tensor to, const at::Tensor& a, const at::Tensor& b, bool add) {
  const at::Tensor left = a.t();
  if (a.scalar_type() == to.scalar_type())
    add ? at::addmm_out(to, to, left, b) : at::mm_out(to, left, b);
  else if (to.is_cuda())
    add ? at::addmm_out(to, to, left, b, to.scalar_type()) : at::mm_out(to, left, b, to.scalar_type());
  else
    multiply(to, a.to(to.scalar_type()), b.to(to.scalar_type()), add);
}

}  // namespace

GradientPlaces::GradientPlaces(at::Tensor flat, std::span<const at::Tensor> weights)
    : flat_(std::move(flat)) {
  std::int64_t end = 0;
  for (const at::Tensor& weight : weights) {
    const at::Tensor gradient = weight.grad();
    const std::int64_t begin =
        gradient.defined() ? gradient.storage_offset() - flat_.storage_offset() : std::int64_t{-1};
    check(gradient.defined() && gradient.is_contiguous() && gradient.is_alias_of(flat_) && begin >= end,
          "gradient places: expected gradients in the flat memory, one after another, got another one of ",
          weight.sizes());
    end = begin + gradient.numel();
    places_.push_back({weight, gradient, begin, 0, false, false});
  }
  for (std::size_t i = 0; i < places_.size(); ++i)
    places_[i].hook = places_[i].weight.register_hook([this, i](const at::Tensor& gradient) {
      if (!gradient.defined()) return;
      const std::lock_guard lock(mutex);
      before_autograd(i);
    });
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < places_.size(); ++i)
    owners()[places_[i].weight.unsafeGetTensorImpl()] = {this, i};
  find_ranges();
}

GradientPlaces::~GradientPlaces() {
  for (Place& place : places_) place.weight.remove_hook(place.hook);
  const std::lock_guard lock(mutex);
  std::erase_if(owners(), [this](const auto& item) { return item.second.places == this; });
}

void GradientPlaces::find_ranges() {
  ranges_.clear();
  bool together = false;
  for (const Place& place : places_) {
    const std::int64_t end = place.begin + place.gradient.numel();
    if (!place.direct && together)
      ranges_.back().second = end - ranges_.back().first;
    else if (!place.direct)
      ranges_.emplace_back(place.begin, end - place.begin);
    together = !place.direct;
  }
}

void GradientPlaces::zero(at::Tensor values) {
  values.zero_();
  zeroed_ += values.numel();
}

void GradientPlaces::begin() {
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(mutex);
  for (const auto& [begin, count] : ranges_) zero(flat_.narrow(0, begin, count));
  for (Place& place : places_) place.there = false;
  open_ = true;
}

void GradientPlaces::finish() {
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(mutex);
  open_ = false;
  for (Place& place : places_)
    if (place.direct && !place.there) zero(place.gradient), place.there = true;
}

// What autograd adds to has to be something of this sum.
void GradientPlaces::before_autograd(std::size_t i) {
  Place& place = places_[i];
  if (!open_) return;
  const c10::NoGradGuard no_grad;
  if (place.direct && !place.there) zero(place.gradient);
  place.there = true;
}

bool GradientPlaces::take(const at::Tensor& weight, const at::Tensor& dout, const at::Tensor& in) {
  const std::lock_guard lock(mutex);
  const auto found = owners().find(weight.unsafeGetTensorImpl());
  if (found == owners().end() || !found->second.places->open_) return false;
  Place& place = found->second.places->places_[found->second.place];
  const c10::NoGradGuard no_grad;
  multiply(place.gradient, dout, in, place.there);
  place.there = true;
  if (!place.direct) {
    place.direct = true;
    found->second.places->find_ranges();
  }
  return true;
}

}  // namespace pom::ops
