#include "pom/serve/queue.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

#include "pom/base/error.h"
#include "pom/base/failpoint.h"
#include "pom/generate/metadata.h"
#include "pom/serve/batch_size.h"

namespace pom::serve {
namespace {

using generate::Request;

// Of images: what must be equal to be made together. Classes, prompts and seeds may differ.
std::string key_of(std::size_t model, const generate::Job& job) {
  if (job.clip) return {};
  Request request = job.first();
  request.class_name.reset(), request.prompt.clear(), request.seed = {0};
  return detail::concat(model, " ", generate::request_json(request));
}

std::int64_t evaluations_of(const generate::Job& job) {
  return generate::evaluations_of(job.first()) * (job.stream ? std::max<std::int64_t>(1, job.blocks) : 1);
}

ApiError too_much(const char* field, const char* flag, auto most, auto got) {
  return {400, "too_expensive",
          detail::concat(field, ": expected at most ", most, " (pom serve ", flag, "), got ", got), field};
}

}  // namespace

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Queue::Queue(std::vector<Device> devices, Pool& pool, Pictures& pictures, Post post, QueueLimits limits,
             QueueListener listener)
    : pool_(pool),
      pictures_(pictures),
      post_(std::move(post)),
      limits_(limits),
      listener_(std::move(listener)) {
  for (const Device& device : devices) devices_.push_back({.device = device});
}

Queue::~Queue() {
  *alive_ = false;
  for (Running& device : devices_)
    if (device.batch) device.batch->stop = true;
}

// ---- coming in ----

void Queue::check_limits(const generate::Job& job, std::size_t model) const {
  const Request& r = job.first();
  if (std::ssize(job.items) > limits_.items)
    throw too_much("count", "--most-items", limits_.items, job.items.size());
  if (*r.steps > limits_.steps) throw too_much("steps", "--most-steps", limits_.steps, *r.steps);
  if (*r.width * *r.height > limits_.pixels)
    throw too_much("width", "--most-pixels", limits_.pixels, detail::concat(*r.width, "x", *r.height));
  if (job.frames == 0) throw ApiError(400, "too_expensive", "frames: expected a number, got inf", "frames");
  if (job.frames > limits_.frames) throw too_much("frames", "--most-frames", limits_.frames, job.frames);
  if (const auto seconds = seconds_of(model, backend().macs(model, job));
      seconds && *seconds > limits_.seconds)
    throw ApiError(
        400, "too_expensive",
        detail::concat("expected work of at most ", limits_.seconds, " s (pom serve --most-seconds), got ",
                       std::round(*seconds * 100) / 100, " s"),
        "steps");
}

// What does not fit alone never will; what does not fit beside the streams may later.
void Queue::check_memory(const generate::Job& job, std::size_t model) const {
  if (limits_.memory == 0) return;
  const std::int64_t one = backend().memory(model, job, 1), streams = others_ ? others_() : 0;
  if (one + streams <= limits_.memory) return;
  constexpr std::int64_t mib = 1 << 20;
  const auto words = detail::concat("expected work that takes at most ", limits_.memory / mib,
                                    " MiB (pom serve --most-memory), got ", one / mib, " MiB");
  if (one > limits_.memory) throw ApiError(400, "too_expensive", words, job.clip ? "frames" : "width");
  ApiError error(503, "out_of_memory",
                 detail::concat(words, " beside live streams of ", streams / mib, " MiB"));
  error.retry_after = 30;
  throw error;
}

// How many at once fit, one at least: the engine has the last word.
std::int64_t Queue::room(std::size_t model, const generate::Job& job, std::int64_t most) const {
  if (limits_.memory == 0) return most;
  const std::int64_t left = limits_.memory - memory() - (others_ ? others_() : 0);
  while (most > 1 && backend().memory(model, job, most) > left) most /= 2;
  return most;
}

std::int64_t Queue::memory() const {
  std::int64_t all = 0;
  for (const Running& device : devices_) all += device.batch ? device.batch->memory : 0;
  return all;
}

void Queue::set_speed(std::size_t model, double seconds_a_mac) {
  if (seconds_a_mac > 0) seconds_a_mac_[model] = seconds_a_mac;
}

// What would take long to look at is refused before.
void Queue::check_length(const Request& request) const {
  for (const std::int64_t count : {request.count, std::ssize(request.seed), std::ssize(request.prompt)})
    if (count > limits_.items) throw too_much("count", "--most-items", limits_.items, count);
  const auto check_text = [&](const char* field, const std::string& text) {
    if (std::ssize(text) > limits_.prompt_bytes)
      throw too_much(field, "--most-prompt-bytes", limits_.prompt_bytes, text.size());
  };
  if (request.class_name) check_text("class", *request.class_name);
  if (request.negative_class) check_text("negative_class", *request.negative_class);
  if (request.negative_prompt) check_text("negative_prompt", *request.negative_prompt);
  for (const std::string& prompt : request.prompt) check_text("prompt", prompt);
  constexpr std::int64_t most_changes = 100;
  if (std::ssize(request.prompt_at) > most_changes)
    throw ApiError(
        400, "too_expensive",
        detail::concat("prompt_at: expected at most ", most_changes, ", got ", request.prompt_at.size()),
        "prompt_at");
  for (const std::string& change : request.prompt_at) check_text("prompt_at", change);
}

JobPointer Queue::check(std::size_t model, const Request& request, const std::string& client) const {
  check_length(request);
  auto served = std::make_shared<ServedJob>();
  try {
    served->job = backend().resolve(model, request);
  } catch (const Error& error) {
    throw field_error(error.what());
  }
  check_limits(served->job, model);
  check_memory(served->job, model);
  served->id = random_id(), served->client = client, served->model = model;
  for (const Request& item : served->job.items) served->items.push_back({.request = item});
  served->key = key_of(model, served->job);
  served->macs = backend().macs(model, served->job) / static_cast<double>(served->items.size());
  served->all_evaluations = evaluations_of(served->job) * std::ssize(served->items);
  served->created = now_seconds(), served->came = steady_seconds();
  return served;
}

void Queue::submit(const JobPointer& job, bool fresh) {
  if (draining_) {
    ApiError error(503, "draining", "the server is going down and takes nothing more");
    error.retry_after = 30;
    throw error;
  }
  std::int64_t own = 0, all = 0;
  for (const auto& [name, client] : clients_) {
    const std::int64_t count = std::ssize(client.jobs);
    all += count;
    if (name == job->client) own = count;
  }
  if (own >= limits_.waiting_a_client || all >= limits_.waiting) {
    const bool client_full = own >= limits_.waiting_a_client;
    ApiError error(client_full ? 429 : 503, client_full ? "client_queue_full" : "queue_full",
                   client_full
                       ? detail::concat("expected at most ", limits_.waiting_a_client,
                                        " jobs of a client to wait, got one more")
                       : detail::concat("expected at most ", limits_.waiting, " jobs to wait, got one more"));
    error.retry_after = std::max(1.0, seconds_of(job->model, job->macs).value_or(1));
    throw error;
  }
  job->number = next_number_++;
  jobs_[job->id] = job;
  if (!fresh && !job->reproduces && !job->job.clip) {
    for (JobItem& item : job->items)
      if (PicturePointer same = pictures_.find_made(made_key(*job, item.request)); same && same->bytes)
        item.picture = std::move(same), item.given = true;
  }
  if (job->made() == std::ssize(job->items)) return finish(*job, JobState::completed);
  Client& client = clients_[job->client];
  if (client.jobs.empty()) client.had = std::max(client.had, turn_);
  client.jobs.push_back(job);
  pump();
  if (listener_.on_change && job->state == JobState::queued) listener_.on_change(*job);
}

// One of a client: what others have made is not told.
std::string Queue::made_key(const ServedJob& job, const Request& item) const {
  return detail::concat(job.client, "\n", backend().models().at(job.model).sha256,
                        generate::request_json(item));
}

// ---- going out ----

std::vector<Queue::Client*> Queue::by_turn() {
  std::vector<Client*> clients;
  for (auto& [name, client] : clients_)
    if (!client.jobs.empty()) clients.push_back(&client);
  if (failpoint_is_set("serve.turns"))  // the newest first, for a test that sees the difference
    std::ranges::sort(clients, std::greater(), [](const Client* c) { return c->jobs.back()->number; });
  else
    std::ranges::stable_sort(clients, {}, [](const Client* client) { return client->had; });
  return clients;
}

std::int64_t Queue::waiting_like(const ServedJob& lead) const {
  std::int64_t count = 0;
  for (const auto& [name, client] : clients_)
    for (const JobPointer& job : client.jobs)
      if (job.get() == &lead || (!lead.key.empty() && job->key == lead.key)) count += job->waiting();
  return count;
}

std::vector<std::int64_t> Queue::sizes_for(std::size_t device, const ServedJob& lead) const {
  if (!limits_.batch_sizes.empty()) return limits_.batch_sizes;
  return batch_sizes(devices_[device].device.backend->device(),
                     lead.items.front().request.dtype.value_or(""));
}

// Whether a free device waits a moment: as long as requests of the same kind keep coming, each within a sixth
// of the most that it may wait, and their largest batch is not full. Its end brings another pump.
bool Queue::gathers(std::size_t device) {
  if (limits_.gather <= 0 || !post_after_ || draining_) return false;
  const std::vector<Client*> clients = by_turn();
  if (clients.empty()) return false;
  const ServedJob& lead = *clients.front()->jobs.front();
  if (lead.job.clip || lead.batch > 0) return false;
  const std::vector<std::int64_t> sizes = sizes_for(device, lead);
  if (sizes.size() < 2 || waiting_like(lead) >= sizes.back()) return false;
  double oldest = lead.came, newest = lead.came;
  for (const auto& [name, client] : clients_)
    for (const JobPointer& job : client.jobs)
      if (job->key == lead.key) oldest = std::min(oldest, job->came), newest = std::max(newest, job->came);
  const double until = std::min(newest + limits_.gather / 6, oldest + limits_.gather);
  const double left = until - steady_seconds();
  if (left <= 0) return false;
  if (!std::exchange(gathering_, true))
    post_after_(std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(left * 1000))),
                [this, alive = alive_] {
                  if (!*alive) return;
                  gathering_ = false;
                  pump();
                });
  return true;
}

Queue::Size Queue::size_for(std::size_t device, const ServedJob& lead) const {
  const Backend& own = *devices_[device].device.backend;
  if (lead.job.clip) return {room(lead.model, lead.job, std::ssize(lead.items)), false};
  const std::vector<std::int64_t> sizes = sizes_for(device, lead);
  if (lead.batch > 0 && std::ranges::find(sizes, lead.batch) != sizes.end()) return {lead.batch, true};
  const std::int64_t good = std::max<std::int64_t>(1, own.good_batch(lead.model, lead.job));
  // Fewer than a size in which the device is not busy yet cost as much as it.
  const std::int64_t most = sizes.empty() ? good : std::max(good, sizes.front());
  return {batch_size(waiting_like(lead), room(lead.model, lead.job, most), sizes), !sizes.empty()};
}

std::shared_ptr<Queue::Batch> Queue::next_batch(std::size_t device) {
  const std::vector<Client*> clients = by_turn();
  if (clients.empty()) return nullptr;
  const JobPointer lead = clients.front()->jobs.front();
  auto batch = std::make_shared<Batch>();
  batch->device = device, batch->model = lead->model;
  const Size size = size_for(device, *lead);
  turn_ = clients.front()->had;
  // A picture of each client in turn, as long as there is room.
  for (bool more = true; more && std::ssize(batch->pieces) < size.pictures;) {
    more = false;
    for (Client* const client : clients) {
      if (std::ssize(batch->pieces) >= size.pictures) break;
      for (const JobPointer& job : client->jobs) {
        const bool fits = job == lead || (!lead->key.empty() && job->key == lead->key);
        const auto item = std::ranges::find_if(job->items, [](const JobItem& i) { return !i.given; });
        if (!fits || item == job->items.end()) continue;
        item->given = true;
        batch->pieces.push_back({job, static_cast<std::size_t>(item - job->items.begin())});
        client->had += job->macs;
        more = true;
        break;
      }
    }
  }
  batch->job = lead->job;
  fill(*batch, size);
  for (auto& [name, client] : clients_)
    std::erase_if(client.jobs, [](const JobPointer& job) { return job->waiting() == 0; });
  return batch;
}

// What its pieces ask for, and repeats of the first up to a size that is fixed.
void Queue::fill(Batch& batch, Size size) const {
  batch.left = std::deque<std::atomic<bool>>(batch.pieces.size());
  batch.job.items.clear();
  for (const Piece& piece : batch.pieces) {
    batch.job.items.push_back(piece.job->items[piece.item].request);
    batch.macs += piece.job->macs;
    if (piece.job->previews)
      batch.preview_every = std::max<std::int64_t>(1, *piece.job->items.front().request.steps / 20);
  }
  if (size.fixed) {
    batch.size = size.pictures;
    batch.macs *= static_cast<double>(size.pictures) / static_cast<double>(batch.pieces.size());
    batch.job.items.resize(static_cast<std::size_t>(size.pictures), batch.job.items.front());
  }
  batch.memory =
      devices_[batch.device].device.backend->memory(batch.model, batch.job, std::ssize(batch.job.items));
}

void Queue::pump() {
  for (std::size_t device = 0; device < devices_.size(); ++device)
    if (!devices_[device].batch && !gathers(device))
      if (std::shared_ptr<Batch> batch = next_batch(device)) start(device, std::move(batch));
}

void Queue::start(std::size_t device, std::shared_ptr<Batch> batch) {
  Running& running = devices_[device];
  batch->began = running.heard = steady_seconds();
  running.batch = batch;
  for (const Piece& piece : batch->pieces) {
    ServedJob& job = *piece.job;
    if (job.state != JobState::queued) continue;
    job.state = JobState::running, job.started = now_seconds(), job.waited = batch->began - job.came;
    if (listener_.on_change) listener_.on_change(job);
  }
  running.device.worker->add([this, batch, where = running.device] { run(batch, where); });
}

// ---- what was heard ----

void Queue::heard(const std::shared_ptr<Batch>& batch, std::int64_t done, std::int64_t total) {
  Running& device = devices_[batch->device];
  const double now = steady_seconds();
  if (device.batch == batch) device.heard = now;
  evaluations_ += static_cast<std::uint64_t>(std::max<std::int64_t>(0, done - batch->told));
  batch->told = done;
  if (done > 0) seconds_an_evaluation_ = std::max(1e-3, (now - batch->began) / static_cast<double>(done));
  std::set<ServedJob*> jobs;
  for (const Piece& piece : batch->pieces) jobs.insert(piece.job.get());
  for (ServedJob* const job : jobs) {
    if (job->over()) continue;
    const std::int64_t each = job->all_evaluations / std::ssize(job->items);
    const auto own = std::ranges::count_if(
        batch->pieces, [&](const Piece& p) { return p.job.get() == job && !job->items[p.item].picture; });
    job->evaluations = std::min(job->all_evaluations,
                                job->made() * each + own * (done * each / std::max<std::int64_t>(1, total)));
    if (listener_.on_change) listener_.on_change(*job);
  }
}

void Queue::made(const Piece& piece, PicturePointer picture, const std::optional<io::Image>& image) {
  ServedJob& job = *piece.job;
  if (job.over()) {  // nobody wants it any more
    if (job.keep) pool_.add([this, picture] { pictures_.remove_file(*picture); });
    return;
  }
  if (job.keep) pictures_.add(picture, job.job.clip ? std::string() : made_key(job, picture->request));
  pictures_.forget_old(steady_seconds());
  job.items[piece.item].picture = picture;
  if (job.reproduces && image) {
    const io::Image& expected = job.reproduces->expected;
    job.reproduces->agrees = *image == expected;
    if (image->width != expected.width || image->height != expected.height ||
        image->channels != expected.channels) {
      job.reproduces->different = std::int64_t{image->width} * image->height;
    } else {
      const std::size_t pixel = image->pixel_bytes();
      for (std::size_t i = 0; i < image->data.size(); i += pixel)
        job.reproduces->different += !std::equal(image->data.begin() + static_cast<std::ptrdiff_t>(i),
                                                 image->data.begin() + static_cast<std::ptrdiff_t>(i + pixel),
                                                 expected.data.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  if (job.made() == std::ssize(job.items)) return finish(job, JobState::completed);
  if (listener_.on_change) listener_.on_change(job);
}

void Queue::failed(const std::shared_ptr<Batch>& batch, const ApiError& error) {
  for (const Piece& piece : batch->pieces) {
    if (piece.job->over()) continue;
    piece.job->error = error;
    finish(*piece.job, JobState::failed);
  }
}

void Queue::ended(const std::shared_ptr<Batch>& batch) {
  Running& device = devices_[batch->device];
  if (device.batch != batch) return;
  device.batch = nullptr;
  const double seconds = steady_seconds() - batch->began;
  constexpr double long_enough = 0.2;  // seconds: less is mostly what every batch takes
  const bool whole = std::ranges::none_of(batch->left, [](const auto& left) { return left.load(); });
  if (!batch->stop && whole && batch->macs > 0 && seconds > long_enough) {
    double& speed = seconds_a_mac_[batch->model];
    const double found = seconds / batch->macs;
    speed = speed == 0 ? found : 0.7 * speed + 0.3 * found;
  }
  if (listener_.on_batch) listener_.on_batch(*batch->pieces.front().job, std::ssize(batch->pieces), seconds);
  pump();
}

void Queue::finish(ServedJob& job, JobState state) {
  job.state = state, job.finished = now_seconds();
  if (state == JobState::completed) job.evaluations = job.all_evaluations;
  for (auto& [name, client] : clients_)
    std::erase_if(client.jobs, [&](const JobPointer& other) { return other.get() == &job; });
  over_.push_back(jobs_.at(job.id));
  forget_old();
  if (job.reproduces) job.reproduces->expected = {};
  if (listener_.on_change) listener_.on_change(job);
  if (failpoint_is_set("serve.forget")) return;  // for a test that sees the difference
  // Whoever asks later is told of pictures, whose bytes are kept elsewhere, and only so many.
  for (JobItem& item : job.items) {
    if (!item.picture || !item.picture->bytes) continue;
    auto light = std::make_shared<Picture>(*item.picture);
    light->bytes = nullptr;
    item.picture = std::move(light);
  }
}

void Queue::forget_old() {
  while (over_.size() > limits_.kept_jobs && !failpoint_is_set("serve.forget")) {
    jobs_.erase(over_.front()->id);
    over_.erase(over_.begin());
  }
  // Those who have nothing here any more need no place: who comes again begins where the others are.
  std::erase_if(clients_,
                [&](const auto& entry) { return entry.second.jobs.empty() && entry.second.had <= turn_; });
}

void Queue::forget(const JobPointer& job) {
  if (!job->over()) return;
  jobs_.erase(job->id);
  std::erase(over_, job);
}

void Queue::cancel(const JobPointer& job, const char* reason) {
  if (job->over()) return;
  const bool down = std::string_view(reason) == "draining";
  job->error.emplace(down ? 503 : 400, reason, down ? "the server is going down" : "cancelled");
  job->error->retry = down;
  finish(*job, JobState::cancelled);
  // Leaving early is possible, entering late is not: all rows of a batch are at the same step.
  for (Running& device : devices_) {
    if (!device.batch) continue;
    Batch& batch = *device.batch;
    for (std::size_t i = 0; i < batch.pieces.size(); ++i)
      if (batch.pieces[i].job->over() && !batch.pieces[i].job->items[batch.pieces[i].item].picture)
        batch.left[i] = true;
    if (std::ranges::all_of(batch.pieces, [](const Piece& p) { return p.job->over(); })) batch.stop = true;
  }
}

void Queue::drain() {
  draining_ = true;
  std::vector<JobPointer> waiting;
  for (const auto& [id, job] : jobs_)
    if (job->state == JobState::queued) waiting.push_back(job);
  for (const JobPointer& job : waiting) {
    job->error.emplace(503, "draining", "the server is going down");
    finish(*job, JobState::failed);
  }
}

// ---- questions ----

JobPointer Queue::find(std::string_view id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second;
}

std::vector<JobPointer> Queue::jobs_of(const std::string& client) const {
  std::vector<JobPointer> own;
  for (const auto& [id, job] : jobs_)
    if (job->client == client) own.push_back(job);
  std::ranges::sort(own, std::greater(), [](const JobPointer& job) { return job->number; });
  return own;
}

std::vector<JobPointer> Queue::all() const {
  std::vector<JobPointer> jobs;
  for (const auto& [id, job] : jobs_) jobs.push_back(job);
  return jobs;
}

std::int64_t Queue::position(const ServedJob& job) const {
  if (job.state != JobState::queued) return 0;
  std::int64_t before = 1;
  for (const auto& [name, client] : clients_)
    for (const JobPointer& other : client.jobs)
      before += other->state == JobState::queued && other->number < job.number;
  return before;
}

std::optional<double> Queue::seconds_of(std::size_t model, double macs) const {
  const auto speed = seconds_a_mac_.find(model);
  if (speed == seconds_a_mac_.end()) return std::nullopt;
  return macs * speed->second;
}

std::optional<double> Queue::seconds_left(const ServedJob& job) const {
  if (job.over()) return std::nullopt;
  const auto left_of = [&](const ServedJob& one) {
    const double all = one.macs * static_cast<double>(one.items.size());
    const double done = one.all_evaluations == 0
                            ? 0
                            : static_cast<double>(one.evaluations) / static_cast<double>(one.all_evaluations);
    return seconds_of(one.model, all * (1 - done));
  };
  std::optional<double> seconds = left_of(job);
  if (!seconds) return std::nullopt;
  if (job.state == JobState::queued)
    for (const auto& [id, other] : jobs_)
      if (!other->over() && other->number < job.number) *seconds += left_of(*other).value_or(0);
  return *seconds / static_cast<double>(devices_.size());
}

std::int64_t Queue::waiting() const {
  return std::ranges::count_if(jobs_,
                               [](const auto& entry) { return entry.second->state == JobState::queued; });
}
std::int64_t Queue::running() const {
  return std::ranges::count_if(jobs_,
                               [](const auto& entry) { return entry.second->state == JobState::running; });
}

bool Queue::stuck(double now) const {
  constexpr double patience = 10;  // seconds, and times an evaluation
  return std::ranges::any_of(devices_, [&](const Running& device) {
    return device.batch && now - device.heard > std::max(patience, patience * seconds_an_evaluation_);
  });
}

}  // namespace pom::serve
