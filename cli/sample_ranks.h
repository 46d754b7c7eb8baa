// `pom sample` on several ranks (torchrun -m libpom sample …): items are divided among them, or with --split
// all work on each.
#pragma once

#include "cli/sample_options.h"
#include "pom/generate/engine.h"
#include "pom/parallel/ranks.h"

namespace pom::cli {

// Flags that cannot be had with several ranks are mistakes. Nothing to say with one.
void check_ranks(const SampleOptions& options, const generate::Job& job, const parallel::Ranks& ranks);

// What this rank is to do of the job.
void limit_to_rank(generate::Limits& limits, const SampleOptions& options, const generate::Job& job,
                   const parallel::Ranks& ranks);

// The seed that rank 0 has drawn, for all: a request whose seed is negative gets it.
void share_seed(generate::Request& request, const generate::Job& job, const parallel::Ranks& ranks);

}  // namespace pom::cli
