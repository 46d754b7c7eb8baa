#include "pom/eval/shapes_report.h"

#include <algorithm>
#include <cmath>

#include "pom/base/error.h"
#include "pom/data/shapes.h"
#include "pom/eval/frechet.h"

namespace pom::eval {
namespace {

std::vector<std::int64_t> numbers_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kCPU, at::kLong).contiguous();
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

double entropy(std::span<const std::int64_t> counts) {
  double all = 0, bits = 0;
  for (const std::int64_t count : counts) all += static_cast<double>(count);
  for (const std::int64_t count : counts)
    if (count > 0) bits -= static_cast<double>(count) / all * std::log2(static_cast<double>(count) / all);
  return bits;
}

// The verdicts on the pictures of one class.
struct OfClass {
  std::vector<std::int64_t> shapes, hues;  // how many are seen as each
  std::vector<double> poses[3];
};

double deviation(std::span<const double> values) {
  return spread_of(values).deviation;
}

Diversity diversity_of(std::span<const OfClass> classes) {
  Diversity sum;
  for (const OfClass& each : classes) {
    sum.hue_entropy += entropy(each.hues);
    sum.x += deviation(each.poses[0]);
    sum.y += deviation(each.poses[1]);
    sum.log2_radius += deviation(each.poses[2]);
  }
  const double count = static_cast<double>(classes.size());
  return {sum.hue_entropy / count, sum.x / count, sum.y / count, sum.log2_radius / count};
}

void check_verdicts(const Verdicts& v, std::int64_t count) {
  const bool fitting = v.kinds.sizes() == at::IntArrayRef({count}) && v.hues.sizes() == v.kinds.sizes() &&
                       v.poses.sizes() == at::IntArrayRef({count, 3});
  check(fitting, "measure: verdicts: expected those on ", count, " images, got kinds ", v.kinds.sizes(),
        ", hues ", v.hues.sizes(), ", poses ", v.poses.sizes());
}

std::vector<OfClass> sort_by_class(const Verdicts& verdicts, std::span<const std::int64_t> asked,
                                   std::span<const std::int64_t> classes) {
  check_verdicts(verdicts, std::ssize(asked));
  const std::vector<std::int64_t> kinds = numbers_of(verdicts.kinds), hues = numbers_of(verdicts.hues);
  const at::Tensor poses = verdicts.poses.to(at::kCPU, at::kDouble).contiguous();
  std::vector<OfClass> sorted(classes.size());
  for (OfClass& each : sorted) {
    each.shapes.resize(data::shape_names().size());
    each.hues.resize(data::hue_names().size());
  }
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto row = std::ranges::find(classes, asked[i]) - classes.begin();
    check(row < std::ssize(classes), "measure: asked: expected one of the classes, got shape ", asked[i]);
    OfClass& of = sorted[static_cast<std::size_t>(row)];
    ++of.shapes.at(static_cast<std::size_t>(kinds[i]));
    ++of.hues.at(static_cast<std::size_t>(hues[i]));
    for (std::size_t k = 0; k < 3; ++k) of.poses[k].push_back(poses.const_data_ptr<double>()[3 * i + k]);
  }
  for (std::size_t row = 0; row < classes.size(); ++row)
    check(sorted[row].poses[0].size() >= 2, "measure: asked: expected at least 2 images of each class, got ",
          sorted[row].poses[0].size(), " of shape ", classes[row]);
  return sorted;
}

template <class Value>
Spread spread_over(std::span<const Measures> all, Value&& value) {
  std::vector<double> values;
  for (const Measures& each : all) values.push_back(value(each));
  return spread_of(values);
}

ShapesReport::Beside beside(std::span<const Measures> pictures, std::span<const Measures> drawings,
                            double Diversity::*what) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < pictures.size(); ++i)
    ratios.push_back(pictures[i].diversity.*what / drawings[i].diversity.*what);
  const auto value = [&](const Measures& each) { return each.diversity.*what; };
  return {spread_over(pictures, value), spread_over(drawings, value), spread_of(ratios)};
}

void add_to(std::vector<std::int64_t>& sums, std::span<const std::int64_t> counts) {
  sums.resize(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) sums[i] += counts[i];
}

double rate_of(const Measures& measures, std::size_t row, std::int64_t shape) {
  std::int64_t all = 0;
  for (const std::int64_t count : measures.confusion[row]) all += count;
  return static_cast<double>(measures.confusion[row][static_cast<std::size_t>(shape)]) /
         static_cast<double>(all);
}

void add_distances(ShapesReport& report, std::span<const Repetition> repetitions) {
  std::vector<double> pictures, drawings;
  for (const Repetition& each : repetitions) {
    const Gaussian reference = fit_gaussian(each.drawings.features);
    pictures.push_back(frechet_distance(fit_gaussian(each.pictures.features), reference));
    drawings.push_back(frechet_distance(fit_gaussian(each.others.features), reference));
  }
  report.frechet = spread_of(pictures);
  report.frechet_of_drawings = spread_of(drawings);
}

void add_counts(ShapesReport& report, std::span<const Measures> pictures,
                std::span<const Measures> drawings) {
  report.confusion.resize(report.classes.size());
  for (const Measures& each : pictures) {
    report.recognised_by_seed.push_back(each.recognised);
    for (std::size_t row = 0; row < each.confusion.size(); ++row)
      add_to(report.confusion[row], each.confusion[row]);
    add_to(report.hue_counts, each.hues);
  }
  for (const Measures& each : drawings) add_to(report.drawings_hue_counts, each.hues);
}

}  // namespace

Measures measure(const Verdicts& verdicts, std::span<const std::int64_t> asked,
                 std::span<const std::int64_t> classes) {
  const std::vector<OfClass> sorted = sort_by_class(verdicts, asked, classes);
  Measures measures;
  std::int64_t right = 0;
  for (std::size_t row = 0; row < classes.size(); ++row) {
    measures.confusion.push_back(sorted[row].shapes);
    right += sorted[row].shapes.at(static_cast<std::size_t>(classes[row]));
    add_to(measures.hues, sorted[row].hues);
  }
  measures.recognised = static_cast<double>(right) / static_cast<double>(asked.size());
  measures.diversity = diversity_of(sorted);
  return measures;
}

Spread spread_of(std::span<const double> values) {
  check(!values.empty(), "spread: values: expected at least one, got none");
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, values.size() < 2 ? 0 : std::sqrt(squares / static_cast<double>(values.size() - 1))};
}

ShapesReport make_report(std::span<const Repetition> repetitions, std::span<const std::int64_t> asked,
                         std::span<const std::int64_t> classes) {
  check(!repetitions.empty(), "report: repetitions: expected at least one, got none");
  std::vector<Measures> pictures, drawings;
  for (const Repetition& each : repetitions) {
    pictures.push_back(measure(each.pictures, asked, classes));
    drawings.push_back(measure(each.drawings, asked, classes));
  }
  ShapesReport report;
  report.shapes = data::shape_names();
  report.hues = data::hue_names();
  for (const std::int64_t shape : classes)
    report.classes.push_back(report.shapes.at(static_cast<std::size_t>(shape)));
  report.count = std::ssize(asked);
  report.repetitions = std::ssize(repetitions);
  const auto recognised = [](const Measures& each) { return each.recognised; };
  report.recognised = spread_over(pictures, recognised);
  report.drawings_recognised = spread_over(drawings, recognised);
  for (std::size_t row = 0; row < classes.size(); ++row)
    report.by_class.push_back(
        spread_over(pictures, [&](const Measures& each) { return rate_of(each, row, classes[row]); }));
  add_counts(report, pictures, drawings);
  report.hue_entropy = beside(pictures, drawings, &Diversity::hue_entropy);
  report.x = beside(pictures, drawings, &Diversity::x);
  report.y = beside(pictures, drawings, &Diversity::y);
  report.log2_radius = beside(pictures, drawings, &Diversity::log2_radius);
  add_distances(report, repetitions);
  return report;
}

}  // namespace pom::eval
