#include "pom/serve/queue.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "pom/base/error.h"
#include "pom/base/failpoint.h"
#include "pom/generate/metadata.h"
#include "pom/serve/clip_file.h"

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

const char* name_of(JobState state) {
  constexpr std::array names = {"queued", "running", "completed", "failed", "cancelled"};
  return names.at(static_cast<std::size_t>(state));
}

std::int64_t ServedJob::made() const {
  return std::ranges::count_if(items, [](const JobItem& item) { return item.picture != nullptr; });
}

std::int64_t ServedJob::waiting() const {
  return std::ranges::count_if(items, [](const JobItem& item) { return !item.given; });
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
  served->id = random_id(), served->client = client, served->model = model;
  for (const Request& item : served->job.items) served->items.push_back({.request = item});
  served->key = key_of(model, served->job);
  served->macs = backend().macs(model, served->job) / static_cast<double>(served->items.size());
  served->all_evaluations = evaluations_of(served->job) * std::ssize(served->items);
  served->created = now_seconds();
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

std::shared_ptr<Queue::Batch> Queue::next_batch(std::size_t device) {
  const std::vector<Client*> clients = by_turn();
  if (clients.empty()) return nullptr;
  const JobPointer lead = clients.front()->jobs.front();
  auto batch = std::make_shared<Batch>();
  batch->device = device, batch->model = lead->model;
  const std::int64_t most =
      lead->key.empty()
          ? std::ssize(lead->items)
          : std::max<std::int64_t>(1, devices_[device].device.backend->good_batch(lead->model, lead->job));
  turn_ = clients.front()->had;
  // A picture of each client in turn, as long as there is room.
  for (bool more = true; more && std::ssize(batch->pieces) < most;) {
    more = false;
    for (Client* const client : clients) {
      if (std::ssize(batch->pieces) >= most) break;
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
  batch->job.items.clear();
  for (const Piece& piece : batch->pieces) {
    batch->job.items.push_back(piece.job->items[piece.item].request);
    batch->macs += piece.job->macs;
    if (piece.job->previews)
      batch->preview_every = std::max<std::int64_t>(1, *piece.job->items.front().request.steps / 20);
  }
  for (auto& [name, client] : clients_)
    std::erase_if(client.jobs, [](const JobPointer& job) { return job->waiting() == 0; });
  return batch;
}

void Queue::pump() {
  for (std::size_t device = 0; device < devices_.size(); ++device)
    if (!devices_[device].batch)
      if (std::shared_ptr<Batch> batch = next_batch(device)) start(device, std::move(batch));
}

void Queue::start(std::size_t device, std::shared_ptr<Batch> batch) {
  Running& running = devices_[device];
  batch->began = running.heard = now_seconds();
  running.batch = batch;
  for (const Piece& piece : batch->pieces) {
    ServedJob& job = *piece.job;
    if (job.state != JobState::queued) continue;
    job.state = JobState::running, job.started = batch->began;
    if (listener_.on_change) listener_.on_change(job);
  }
  running.device.worker->add([this, batch, where = running.device] { run(batch, where); });
}

// On the worker's thread: of the queue it uses what does not change.
void Queue::run(std::shared_ptr<Batch> batch, Device device) {
  const auto tell = [this, alive = alive_](std::function<void()> call) {
    post_([alive, call = std::move(call)] {
      if (*alive) call();
    });
  };
  std::vector<std::vector<io::Image>> frames(batch->pieces.size());
  double shown = 0, told = 0;
  generate::Observer observer;
  observer.stop = &batch->stop;
  observer.on_evaluation = [&](std::int64_t done, std::int64_t total) {
    batch->done = done;
    if (const double now = now_seconds(); now - told > 0.05 || done == total) {
      told = now;
      tell([this, batch, done, total] { heard(batch, done, total); });
    }
    device.worker->let_urgent_pass();
  };
  observer.on_frames = [&](generate::Frames&& made) {
    const auto item = static_cast<std::size_t>(made.item);
    for (io::Image& image : made.images) frames[item].push_back(std::move(image));
    if (made.last) store(batch, item, std::move(frames[item]));
  };
  observer.preview_every = batch->preview_every;
  observer.on_preview = [&](std::int64_t step, std::vector<generate::Frames>&& all) {
    const double now = now_seconds();
    if (now - shown < 0.25) return;  // four a second
    shown = now;
    for (generate::Frames& some : all)
      if (batch->pieces[static_cast<std::size_t>(some.item)].job->previews)
        pool_.add([this, tell, batch, step, item = static_cast<std::size_t>(some.item),
                   image = std::move(some.images.front())] {
          const net::Bytes png = shared_bytes(io::encode_png(image));
          tell([this, batch, step, item, png] {
            const Piece& piece = batch->pieces[item];
            if (listener_.on_preview && piece.job->previews && !piece.job->over())
              listener_.on_preview(*piece.job, static_cast<std::int64_t>(piece.item), step, png);
          });
        });
  };
  try {
    device.backend->run(batch->model, batch->job, std::ssize(batch->pieces), observer);
  } catch (const generate::Stopped&) {
  } catch (const Error& error) {
    const std::string text = error.what();
    ApiError failure(500, "internal", text);
    if (text.starts_with("sample: memory")) failure.status = 503, failure.code = "out_of_memory";
    failure.retry = false;
    tell([this, batch, failure] { failed(batch, failure); });
  } catch (const std::exception& error) {
    const bool memory = std::string_view(error.what()).find("out of memory") != std::string_view::npos;
    ApiError failure(memory ? 503 : 500, memory ? "out_of_memory" : "internal",
                     memory ? "the device has not enough memory for this" : "the work failed");
    failure.retry = false;
    tell([this, batch, failure] { failed(batch, failure); });
  }
  // After what the pool still has of it, which is in order: pieces that are made are told of by then or
  // later.
  tell([this, batch] { ended(batch); });
}

// On the worker's thread: the rest on the pool's.
void Queue::store(const std::shared_ptr<Batch>& batch, std::size_t index, std::vector<io::Image> frames) {
  pool_.add([this, alive = alive_, batch, index, frames = std::move(frames)] {
    const Piece piece = batch->pieces[index];
    const Request& item = piece.job->items[piece.item].request;
    const Backend& backend = *devices_[batch->device].device.backend;
    auto picture = std::make_shared<Picture>();
    std::optional<ApiError> failure;
    try {
      const std::vector<io::TextEntry> text = backend.text_of(batch->model, item);
      if (batch->job.clip) {
        ClipFile file = clip_file(frames, batch->job.fps, text);
        picture->bytes = std::make_shared<const std::string>(std::move(file.bytes));
        picture->extension = file.extension;
      } else {
        picture->bytes = shared_bytes(io::encode_png(frames.front(), text));
        picture->extension = "png";
      }
      picture->id = random_id(), picture->created = now_seconds(), picture->size = picture->bytes->size();
      picture->model = backend.models().at(batch->model).id, picture->client = piece.job->client;
      picture->request = item, picture->frames = std::ssize(frames);
    } catch (const std::exception& error) {
      failure.emplace(500, "internal", "the file could not be made");
    }
    if (!failure && piece.job->keep) {
      try {
        pictures_.write_file(*picture);
      } catch (const Error&) {  // a full disk: the answer still comes, from memory
      }
    }
    std::optional<io::Image> image;
    if (piece.job->reproduces) image = frames.front();
    post_([this, alive, batch, piece, picture, image = std::move(image), failure] {
      if (!*alive) return;
      if (!failure) return made(piece, picture, image);
      if (piece.job->over()) return;  // the others of its batch are well
      piece.job->error = *failure;
      finish(*piece.job, JobState::failed);
    });
  });
}

// ---- what was heard ----

void Queue::heard(const std::shared_ptr<Batch>& batch, std::int64_t done, std::int64_t total) {
  Running& device = devices_[batch->device];
  const double now = now_seconds();
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
  pictures_.forget_old(now_seconds());
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
  const double seconds = now_seconds() - batch->began;
  constexpr double long_enough = 0.2;  // seconds: less is mostly what every batch takes
  if (!batch->stop && batch->macs > 0 && seconds > long_enough) {
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

void Queue::cancel(const JobPointer& job, const char* reason) {
  if (job->over()) return;
  const bool down = std::string_view(reason) == "draining";
  job->error.emplace(down ? 503 : 400, reason, down ? "the server is going down" : "cancelled");
  job->error->retry = down;
  finish(*job, JobState::cancelled);
  for (Running& device : devices_)
    if (device.batch &&
        std::ranges::all_of(device.batch->pieces, [](const Piece& p) { return p.job->over(); }))
      device.batch->stop = true;
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

Json job_json(const ServedJob& job, const Queue& queue) {
  Json items = Json::array();
  for (const JobItem& item : job.items) {
    Json one = {{"seed", item.request.own_seed()}, {"subject", item.request.subject()},
                {"width", *item.request.width},    {"height", *item.request.height},
                {"frames", job.job.frames},        {"picture", nullptr}};
    if (item.picture && job.keep)
      one["picture"] = {
          {"id", item.picture->id}, {"url", item.picture->url()}, {"type", item.picture->type()}};
    items.push_back(std::move(one));
  }
  const auto time = [](double seconds) { return seconds == 0 ? Json(nullptr) : Json(seconds); };
  const std::optional<double> left = queue.seconds_left(job);
  Json json = {{"id", job.id},
               {"state", name_of(job.state)},
               {"model", queue.backend().models().at(job.model).id},
               {"position", job.state == JobState::queued ? Json(queue.position(job)) : Json(nullptr)},
               {"eta", left ? Json(std::round(*left * 100) / 100) : Json(nullptr)},
               {"created", job.created},
               {"started", time(job.started)},
               {"finished", time(job.finished)},
               {"evaluations", {{"done", job.evaluations}, {"total", job.all_evaluations}}},
               {"items", std::move(items)},
               {"remarks", job.job.remarks},
               {"reproduces", nullptr},
               {"error", nullptr}};
  if (job.reproduces)
    json["reproduces"] = {
        {"picture", job.reproduces->picture.empty() ? Json(nullptr) : Json(job.reproduces->picture)},
        {"agrees", job.reproduces->agrees ? Json(*job.reproduces->agrees) : Json(nullptr)},
        {"different_pixels", job.reproduces->different}};
  if (job.error) json["error"] = {{"message", job.error->message}, {"code", job.error->code}};
  return json;
}

}  // namespace pom::serve
