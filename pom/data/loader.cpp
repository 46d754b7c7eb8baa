// Batches are prepared in slices, so that many threads share one, and handed out in order. B examples each.
//
// A batch under way is a Slot. Slots stand in a queue in the order of their places; workers claim the next
// slice of the oldest slot that has one left, and open a new slot while fewer than `prefetch` stand there.
// Nothing but the mutex orders them: which example goes where is a function of the place.
#include "pom/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"

namespace pom::data {
namespace {

struct Slot {
  Batch batch;
  std::int64_t claimed = 0, done = 0;             // examples
  std::vector<std::vector<std::int64_t>> broken;  // for each example: indices that had to be passed over
  std::exception_ptr error;
};

struct Slice {
  Slot* slot;
  std::int64_t first, last;  // examples [first, last) of the slot
};

std::int64_t default_workers() {
  const std::int64_t cores = std::thread::hardware_concurrency();
  return std::clamp<std::int64_t>(cores / 2, 1, 16);  // the others are for training
}

std::shared_ptr<const Dataset> checked(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options) {
  check(dataset != nullptr, "loader: dataset: expected one, got nothing");
  check(options.batch >= 1, "loader: batch: expected at least 1, got ", options.batch);
  for (const std::int64_t row : options.rows)
    check(row >= 0 && row < options.batch, "loader: rows: expected rows of a batch of ", options.batch,
          ", got ", row);
  check(options.workers >= 0, "loader: workers: expected at least 0, got ", options.workers);
  check(options.prefetch >= 1, "loader: prefetch: expected at least 1, got ", options.prefetch);
  check(options.start >= 0, "loader: start: expected at least 0, got ", options.start);
  return dataset;
}

// Examples that could not be read, as all workers found them. None is tried twice.
class BrokenExamples {
 public:
  bool known(std::int64_t index) {
    const std::lock_guard lock(mutex_);
    return why_.contains(index);
  }
  void add(std::int64_t index, const std::string& why) {
    const std::lock_guard lock(mutex_);
    why_.emplace(index, why);
  }
  std::string why(std::int64_t index) {
    const std::lock_guard lock(mutex_);
    return why_.at(index);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::int64_t, std::string> why_;
};

// One of a batch, of a size that check_example has seen.
void put_example(const at::Tensor& example, const at::Tensor& batch, std::int64_t i) {
  auto* bytes = static_cast<std::byte*>(batch.data_ptr());
  std::memcpy(bytes + static_cast<std::size_t>(i) * example.nbytes(), example.data_ptr(), example.nbytes());
}

bool has_text(const Example& example, const std::vector<std::int64_t>& shape) {
  if (shape.empty()) return true;
  const at::Tensor &text = example.text, &mask = example.text_mask;
  return text.defined() && mask.defined() && text.sizes() == shape && text.is_contiguous() &&
         text.scalar_type() == at::kHalf && mask.scalar_type() == at::kBool && mask.is_contiguous() &&
         mask.numel() == shape[0];
}

}  // namespace

struct Loader::Impl {
  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  std::int64_t size;                // of the data set
  std::vector<std::int64_t> shape;  // (C, H, W)
  std::vector<std::int64_t> text;   // (tokens, width), or nothing
  std::int64_t parts;               // captions of an example
  Order order;
  std::int64_t count;  // examples of a batch that are read here
  std::int64_t slice;  // examples
  at::ScalarType type;
  std::size_t example_bytes;

  std::mutex mutex;
  std::condition_variable_any work, ready;
  std::deque<std::unique_ptr<Slot>> slots;
  std::int64_t opened, given;  // places
  std::exception_ptr fatal;    // of a worker, outside any batch
  BrokenExamples broken;
  std::unordered_set<std::int64_t> told;  // broken examples that next() has reported
  std::vector<std::jthread> workers;      // last, so that they end before what they use

  Impl(std::shared_ptr<const Dataset> data, const LoaderOptions& wanted);
  void work_on(const std::stop_token& stop);
  bool claim(const std::stop_token& stop, Slice& slice);
  bool has_work() const;
  Slot* open_slot();
  std::exception_ptr attempt(const Slice& slice, const std::stop_token& stop);
  void finish(const Slice& slice, const std::exception_ptr& error);
  void put(Slot& slot, std::int64_t i);
  Example read(const Visit& visit, std::vector<std::int64_t>& passed_over);
  bool try_read(std::int64_t index, std::int64_t epoch, Example& example);
  void check_example(const Example& example, std::int64_t index) const;
  void report(const Slot& slot);
};

Loader::Impl::Impl(std::shared_ptr<const Dataset> data, const LoaderOptions& wanted)
    : dataset(checked(std::move(data), wanted)),
      options(wanted),
      size(dataset->size()),
      shape(dataset->shape()),
      text(dataset->text_shape()),
      parts(dataset->parts()),
      order(size, dataset->groups(), options.seed) {
  type = dataset->latents() ? at::kFloat : at::kByte;
  example_bytes = c10::elementSize(type);
  for (const std::int64_t side : shape) example_bytes *= static_cast<std::size_t>(side);
  opened = given = options.start;
  count = options.rows.empty() ? options.batch : std::ssize(options.rows);
  const std::int64_t threads = options.workers > 0 ? options.workers : default_workers();
  // Small enough that all take part in one batch, large enough that claims cost nothing.
  slice = std::clamp<std::int64_t>(count / (2 * threads), 1, 32);
  for (std::int64_t i = 0; i < threads; ++i)
    workers.emplace_back([this](const std::stop_token& stop) { work_on(stop); });
}

// The root of a thread: whatever goes wrong reaches next(), as what leaves a thread ends the program.
void Loader::Impl::work_on(const std::stop_token& stop) {
  try {
    Slice slice;
    while (claim(stop, slice)) finish(slice, attempt(slice, stop));
  } catch (...) {  // no memory for a batch
    const std::lock_guard lock(mutex);
    fatal = std::current_exception();
    ready.notify_all();
  }
}

std::exception_ptr Loader::Impl::attempt(const Slice& slice, const std::stop_token& stop) {
  try {
    for (std::int64_t i = slice.first; i < slice.last && !stop.stop_requested(); ++i) put(*slice.slot, i);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void Loader::Impl::finish(const Slice& slice, const std::exception_ptr& error) {
  const std::lock_guard lock(mutex);
  Slot& slot = *slice.slot;
  if (error && !slot.error) slot.error = error;
  slot.done += slice.last - slice.first;
  if (slot.done == count) ready.notify_all();
}

bool Loader::Impl::has_work() const {
  return std::ssize(slots) < options.prefetch || slots.back()->claimed < count;
}

// Waits for something to do; false where the loader ends.
bool Loader::Impl::claim(const std::stop_token& stop, Slice& slice_out) {
  std::unique_lock lock(mutex);
  if (!work.wait(lock, stop, [this] { return has_work(); }) || stop.stop_requested()) return false;
  const auto open = std::ranges::find_if(slots, [this](const auto& s) { return s->claimed < count; });
  Slot* slot = open != slots.end() ? open->get() : open_slot();
  slice_out = {slot, slot->claimed, std::min(slot->claimed + slice, count)};
  slot->claimed = slice_out.last;
  return true;
}

Slot* Loader::Impl::open_slot() {
  auto slot = std::make_unique<Slot>();
  std::vector<std::int64_t> sizes = {count};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  slot->batch = {at::empty(sizes, at::TensorOptions(type).pinned_memory(options.pinned)),
                 at::empty({count}, at::kLong), opened,
                 std::vector<std::string>(static_cast<std::size_t>(count * parts))};
  if (!text.empty()) {
    const auto pinned = at::TensorOptions().pinned_memory(options.pinned);
    slot->batch.text = at::empty({count, text[0], text[1]}, pinned.dtype(at::kHalf));
    slot->batch.text_mask = at::empty({count, text[0]}, pinned.dtype(at::kBool));
  }
  slot->broken.resize(static_cast<std::size_t>(count));
  slots.push_back(std::move(slot));
  opened += options.batch;
  return slots.back().get();
}

void Loader::Impl::put(Slot& slot, std::int64_t i) {
  const std::int64_t row = options.rows.empty() ? i : options.rows[static_cast<std::size_t>(i)];
  const Visit visit = order.at(slot.batch.first + row);
  Example example = read(visit, slot.broken[static_cast<std::size_t>(i)]);
  put_example(example.picture, slot.batch.pictures, i);
  if (!text.empty()) {
    put_example(example.text, slot.batch.text, i);
    put_example(example.text_mask, slot.batch.text_mask, i);
  }
  slot.batch.labels.data_ptr<std::int64_t>()[i] = example.label;
  const auto captions = slot.batch.captions.begin() + i * parts;
  *captions = std::move(example.caption);
  std::ranges::move(example.later, captions + 1);
}

// The example, or the next one that can be read; those passed over are noted.
Example Loader::Impl::read(const Visit& visit, std::vector<std::int64_t>& passed_over) {
  const std::int64_t tries = size > 0 ? size : 1000;
  Example example;
  std::int64_t index = visit.index;
  for (std::int64_t i = 0; i < tries; ++i) {
    if (!broken.known(index) && try_read(index, visit.epoch, example)) return example;
    passed_over.push_back(index);
    index = size > 0 && index + 1 == size ? 0 : index + 1;
  }
  fail("loader: data set: expected examples that can be read, got ", tries, " that cannot; the first is ",
       dataset->name_of(visit.index), ": ", broken.why(visit.index));
}

bool Loader::Impl::try_read(std::int64_t index, std::int64_t epoch, Example& example) {
  try {
    example = dataset->get(index, epoch);
  } catch (const Error& error) {
    broken.add(index, error.what());
    return false;
  }
  check_example(example, index);
  return true;
}

// Our own mistake, but one that would write beyond the batch.
void Loader::Impl::check_example(const Example& example, std::int64_t index) const {
  const at::Tensor& picture = example.picture;
  const bool fits = picture.defined() && picture.is_contiguous() && picture.scalar_type() == type &&
                    picture.nbytes() == example_bytes && has_text(example, text) &&
                    std::ssize(example.later) == parts - 1;
  check(fits, "loader: ", dataset->name_of(index), ": expected a whole example of the data set's shape");
}

void Loader::Impl::report(const Slot& slot) {
  for (const std::vector<std::int64_t>& indices : slot.broken)
    for (const std::int64_t index : indices)
      if (told.insert(index).second && options.on_broken)
        options.on_broken(dataset->name_of(index), broken.why(index));
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(dataset), options)) {}

Loader::~Loader() {
  for (std::jthread& worker : impl_->workers) worker.request_stop();
}

Batch Loader::next() {
  Impl& m = *impl_;
  std::unique_lock lock(m.mutex);
  const auto whole = [&m] { return !m.slots.empty() && m.slots.front()->done == m.count; };
  m.ready.wait(lock, [&] { return whole() || m.fatal; });
  if (!whole()) std::rethrow_exception(m.fatal);
  if (m.slots.front()->error) std::rethrow_exception(m.slots.front()->error);  // and again the next time
  const std::unique_ptr<Slot> slot = std::move(m.slots.front());
  m.slots.pop_front();
  m.given += m.options.batch;
  lock.unlock();
  m.work.notify_all();
  m.report(*slot);
  return std::move(slot->batch);
}

std::int64_t Loader::place() const {
  return impl_->given;
}

std::int64_t Loader::epoch() const {
  return impl_->size > 0 ? impl_->given / impl_->size : 0;
}

std::int64_t Loader::broken() const {
  return std::ssize(impl_->told);
}

}  // namespace pom::data
