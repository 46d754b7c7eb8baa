// What a job says of itself.
#include "pom/serve/job.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "pom/serve/queue.h"

namespace pom::serve {

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
