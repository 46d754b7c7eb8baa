// A score with its recipe, as a file. Two scores can be compared where all that makes them comparable is the
// same. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pom/base/fields.h"

namespace pom::eval {

// Whatever changes a number without the pictures being better or worse.
struct ScoreRecipe {
  std::string like, network, network_sha256, resize, dtype;
  std::int64_t count = 0;
  std::string size, samples, order;
  std::string reference, reference_sha256;
  std::int64_t reference_count = 0;
  std::string inception_splits, kernel_subsets, neighbour_balls, infinity_sizes;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "like", .help = "implementation whose rules were followed"}, like);
    visit(Field{.name = "network", .help = "network of the features"}, network);
    visit(Field{.name = "network_sha256", .help = "SHA-256 of its weights' file"}, network_sha256);
    visit(Field{.name = "resize", .help = "how pictures were brought to the network's size"}, resize);
    visit(Field{.name = "dtype", .help = "dtype of the network"}, dtype);
    visit(Field{.name = "count", .help = "pictures that were scored"}, count);
    visit(Field{.name = "size", .help = "their size"}, size);
    visit(Field{.name = "samples", .help = "what they lay in"}, samples);
    visit(Field{.name = "order", .help = "their order"}, order);
    visit(Field{.name = "reference", .help = "pictures or statistics"}, reference);
    visit(Field{.name = "reference_sha256", .help = "SHA-256 of its statistics"}, reference_sha256);
    visit(Field{.name = "reference_count", .help = "its pictures; 0: not known"}, reference_count);
    visit(Field{.name = "inception_splits", .help = "splits of the Inception score"}, inception_splits);
    visit(Field{.name = "kernel_subsets", .help = "subsets of the kernel distance"}, kernel_subsets);
    visit(Field{.name = "neighbour_balls", .help = "balls of precision and recall"}, neighbour_balls);
    visit(Field{.name = "infinity_sizes", .help = "subsets of the distance at infinity"}, infinity_sizes);
  }
};

struct ScoreFile {
  std::int64_t format = 1;
  std::optional<double> fid, fid_deviation, fid_unbiased, fid_infinity;
  std::optional<double> fd, fd_deviation, fd_unbiased, fd_infinity;
  std::optional<double> sfid, is, is_deviation, kid, kid_deviation;
  std::optional<double> precision, recall, density, coverage;
  ScoreRecipe recipe;
  std::string source, version, device;  // of the samples, and what computed it; these may differ

  const char* distance_name() const { return fid ? "fid" : "fd"; }
  const std::optional<double>& distance() const { return fid ? fid : fd; }
  const std::optional<double>& distance_deviation() const { return fid ? fid_deviation : fd_deviation; }

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "format", .help = "of this file", .least = 1, .most = 1}, format);
    visit(Field{.name = "fid", .help = "Frechet distance of Inception's features"}, fid);
    visit(Field{.name = "fid_deviation", .help = "its deviation over samples, by leaving out tenths"},
          fid_deviation);
    visit(Field{.name = "fid_unbiased", .help = "without the bias of few samples, by halves"}, fid_unbiased);
    visit(Field{.name = "fid_infinity", .help = "the same, by a line through subsets"}, fid_infinity);
    visit(Field{.name = "fd", .help = "Frechet distance of the features of another network"}, fd);
    visit(Field{.name = "fd_deviation", .help = "as that of fid"}, fd_deviation);
    visit(Field{.name = "fd_unbiased", .help = "as that of fid"}, fd_unbiased);
    visit(Field{.name = "fd_infinity", .help = "as that of fid"}, fd_infinity);
    visit(Field{.name = "sfid", .help = "the same of spatial features"}, sfid);
    visit(Field{.name = "is", .help = "Inception score"}, is);
    visit(Field{.name = "is_deviation", .help = "its deviation over splits"}, is_deviation);
    visit(Field{.name = "kid", .help = "kernel distance"}, kid);
    visit(Field{.name = "kid_deviation", .help = "its deviation over subsets"}, kid_deviation);
    visit(Field{.name = "precision", .help = "precision"}, precision);
    visit(Field{.name = "recall", .help = "recall"}, recall);
    visit(Field{.name = "density", .help = "density"}, density);
    visit(Field{.name = "coverage", .help = "coverage"}, coverage);
    visit(Field{.name = "recipe", .help = "what has to be the same in two scores that are compared"}, recipe);
    visit(Field{.name = "source", .help = "samples"}, source);
    visit(Field{.name = "version", .help = "of libpom"}, version);
    visit(Field{.name = "device", .help = "where it was computed"}, device);
  }
};

ScoreFile read_score(const std::filesystem::path& path);
ScoreFile parse_score(const std::string& text, const std::string& site);
std::string score_text(ScoreFile score);  // JSON, indented

// Fields of the recipes that differ, each as "size: 256x256, 128x128".
std::vector<std::string> recipe_differences(ScoreRecipe a, ScoreRecipe b);

struct ScoreComparison {
  double difference = 0, low = 0, high = 0;  // b's distance less a's, and its interval of 95 %
};
// Of two distances with deviations and the same recipe; else an error that says what is missing.
ScoreComparison compare_scores(const ScoreFile& a, const ScoreFile& b);

}  // namespace pom::eval
