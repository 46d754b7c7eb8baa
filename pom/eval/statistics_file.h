// Means and covariances of features in a .npz, as pytorch-fid, clean-fid, EDM and ADM keep them: mu, sigma,
// and mu_s, sigma_s of the spatial features; ours say with which recipe they were made.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "pom/eval/frechet.h"

namespace pom::eval {

struct Statistics {
  Gaussian main;
  std::optional<Gaussian> spatial;
  std::string recipe;  // JSON; empty in files of others
};

// Whether the file has mu and sigma; a file that is no .npz has not.
bool has_statistics(const std::string& path);
Statistics read_statistics(const std::filesystem::path& path);
void write_statistics(const std::filesystem::path& path, const Statistics& statistics);

}  // namespace pom::eval
