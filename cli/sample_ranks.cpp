#include "cli/sample_ranks.h"

#include "cli/command.h"
#include "cli/output_names.h"
#include "pom/parallel/share.h"

namespace pom::cli {

void check_ranks(const SampleOptions& options, const generate::Job& job, const parallel::Ranks& ranks) {
  if (ranks.alone()) return;
  const auto refuse = [&](bool given, const char* flag, const char* why) {
    if (given) throw UsageError(detail::concat(flag, ": ", why, ", got ", ranks.size(), " ranks"));
  };
  if (options.split) {
    constexpr const char* whole = "expected images or clips made whole with --split";
    refuse(job.stream, "--stream", whole);
    refuse(!job.save_state.empty(), "--save-state", whole);
    return;
  }
  constexpr const char* apart = "expected --split, or one rank: ranks make items of their own";
  refuse(options.grid, "--grid", apart);
  refuse(options.json, "--json", apart);
  refuse(options.output == "-" || is_npz_name(options.output), "--output", apart);
  refuse(!options.save_latents.empty(), "--save-latents", apart);
  refuse(!job.save_state.empty(), "--save-state", apart);
}

void limit_to_rank(generate::Limits& limits, const SampleOptions& options, const generate::Job& job,
                   const parallel::Ranks& ranks) {
  if (ranks.alone()) return;
  if (options.split)
    limits.ranks = ranks;
  else
    limits.items = parallel::share_of(std::ssize(job.items), ranks.size(), ranks.rank());
}

void share_seed(generate::Request& request, const generate::Job& job, const parallel::Ranks& ranks) {
  if (ranks.alone() || request.seed.size() != 1 || request.own_seed() >= 0) return;
  request.seed = {std::stoll(ranks.gather_text(std::to_string(job.first().own_seed())).front())};
}

}  // namespace pom::cli
