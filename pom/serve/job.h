// A job of the server: what a client asked for, how far it is, and what came of it. Jobs belong to the
// server's thread; what other threads do for them they tell by posting.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pom/generate/job.h"
#include "pom/io/image.h"
#include "pom/serve/errors.h"
#include "pom/serve/json.h"
#include "pom/serve/pictures.h"

namespace pom::serve {

enum class JobState { queued, running, completed, failed, cancelled };
const char* name_of(JobState state);

struct JobItem {
  generate::Request request;                    // complete
  std::shared_ptr<const Picture> picture = {};  // once it is made
  bool given = false;                           // to a worker
};

// Whether a picture that was made before comes out the same.
struct Reproduction {
  std::string picture;              // of the gallery; empty: it was sent
  io::Image expected;               // its pixels
  std::optional<bool> agrees = {};  // nothing until it is made
  std::int64_t different = 0;       // pixels
};

struct ServedJob {
  std::string id, client;
  std::size_t model = 0;
  generate::Job job;  // as it was resolved
  std::vector<JobItem> items;
  std::string face;        // which interface it came through, where that matters
  std::string key;         // jobs of equal ones may be made together; empty: alone
  double macs = 0;         // of an item
  std::int64_t batch = 0;  // of a reproduction: of how many it was made then; 0: any
  bool previews = false;
  bool keep = true;  // its pictures go into the gallery
  std::optional<Reproduction> reproduces = {};

  JobState state = JobState::queued;
  double created = 0, started = 0, finished = 0;  // seconds since 1970, to be shown; 0: not yet
  double came = 0, waited = 0;                    // by a steady clock: when, and for how long in line
  std::int64_t evaluations = 0, all_evaluations = 0;
  std::optional<ApiError> error = {};
  std::uint64_t number = 0;  // in the order of their coming

  bool over() const { return state != JobState::queued && state != JobState::running; }
  std::int64_t made() const;
  std::int64_t waiting() const;  // items that no worker has
};

using JobPointer = std::shared_ptr<ServedJob>;

}  // namespace pom::serve
