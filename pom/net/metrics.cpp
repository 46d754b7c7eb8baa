#include "pom/net/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <unistd.h>

#include "pom/base/error.h"

namespace pom::net {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return {text, end};
}

std::string escaped(std::string_view text, bool quotes) {
  std::string result;
  for (const char c : text) {
    if (c == '\\')
      result += "\\\\";
    else if (c == '\n')
      result += "\\n";
    else if (c == '"' && quotes)
      result += "\\\"";
    else
      result += c;
  }
  return result;
}

bool is_name(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto allowed = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  return !text.empty() && letter(text.front()) && std::ranges::all_of(text, allowed);
}

// {route="/a",status="200"}, or nothing where there are none.
std::string label_text(const Metrics::Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels)
    text += (text.empty() ? "" : ",") + name + "=\"" + escaped(value, true) + "\"";
  return text.empty() ? text : "{" + text + "}";
}

void append_line(std::string& text, const std::string& name, const Metrics::Labels& labels, double value) {
  text += name + label_text(labels) + " " + number(value) + "\n";
}

void append_histogram(std::string& text, const std::string& name, const Metrics::Labels& labels,
                      const Histogram& histogram) {
  const std::vector<std::uint64_t> counts = histogram.counts();
  double total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    total += static_cast<double>(counts[i]);
    Metrics::Labels with_bound = labels;
    with_bound.emplace_back("le", i < histogram.bounds().size() ? number(histogram.bounds()[i]) : "+Inf");
    append_line(text, name + "_bucket", with_bound, total);
  }
  append_line(text, name + "_sum", labels, histogram.sum());
  append_line(text, name + "_count", labels, total);
}

}  // namespace

void Counter::add(double amount) {
  if (amount > 0) value_.fetch_add(amount, std::memory_order_relaxed);
}

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  const auto finite = [](double each) { return std::isfinite(each); };
  check(std::ranges::all_of(bounds_, finite) &&
            std::ranges::adjacent_find(bounds_, std::greater_equal()) == bounds_.end(),
        "metrics: bounds of a histogram: expected finite numbers in ascending order");
}

void Histogram::observe(double value) {
  if (std::isnan(value)) return;
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<std::uint64_t> Histogram::counts() const {
  std::vector<std::uint64_t> result;
  for (const auto& each : counts_) result.push_back(each.load(std::memory_order_relaxed));
  return result;
}

Metrics::Series& Metrics::series(const std::string& name, const std::string& help, Kind kind, Labels labels) {
  const auto found = families_.find(name);
  if (found == families_.end()) {
    check(is_name(name), "metrics: name: expected letters, digits and _, got \"", name, "\"");
  } else {
    check(found->second.kind == kind, "metrics: ", name, ": expected one kind, got two");
  }
  std::ranges::sort(labels);
  for (const auto& [label, value] : labels)
    check(is_name(label) && label != "le" && !label.starts_with("__"), "metrics: ", name,
          ": label: expected letters, digits and _, got \"", label, "\"");
  Family& family = families_.try_emplace(name, Family{kind, help, {}}).first->second;
  Series& series = family.series[label_text(labels)];
  if (series.labels.empty()) series.labels = std::move(labels);
  return series;
}

Counter& Metrics::counter(const std::string& name, const std::string& help, Labels labels) {
  const std::lock_guard guard(mutex_);
  Series& found = series(name, help, Kind::counter, std::move(labels));
  if (!found.counter) found.counter = std::make_unique<Counter>();
  return *found.counter;
}

Gauge& Metrics::gauge(const std::string& name, const std::string& help, Labels labels) {
  const std::lock_guard guard(mutex_);
  Series& found = series(name, help, Kind::gauge, std::move(labels));
  if (!found.gauge) found.gauge = std::make_unique<Gauge>();
  return *found.gauge;
}

Histogram& Metrics::histogram(const std::string& name, const std::string& help,
                              const std::vector<double>& bounds, Labels labels) {
  auto fresh = std::make_unique<Histogram>(bounds);  // checks them before anything is kept
  const std::lock_guard guard(mutex_);
  Series& found = series(name, help, Kind::histogram, std::move(labels));
  if (!found.histogram) found.histogram = std::move(fresh);
  check(found.histogram->bounds() == bounds, "metrics: ", name, ": expected the bounds it had before");
  return *found.histogram;
}

void Metrics::measured(const std::string& name, const std::string& help, std::function<double()> value) {
  const std::lock_guard guard(mutex_);
  series(name, help, Kind::gauge, {}).function = std::move(value);
}

void Metrics::append(std::string& text, const std::string& name, const Series& series) {
  if (series.counter) append_line(text, name, series.labels, series.counter->value());
  if (series.function)
    append_line(text, name, series.labels, series.function());
  else if (series.gauge)
    append_line(text, name, series.labels, series.gauge->value());
  if (series.histogram) append_histogram(text, name, series.labels, *series.histogram);
}

std::string Metrics::text() const {
  static constexpr const char* kinds[] = {"counter", "gauge", "histogram"};
  std::string text;
  const std::lock_guard guard(mutex_);
  for (const auto& [name, family] : families_) {
    text += "# HELP " + name + " " + escaped(family.help, false) + "\n";
    text += "# TYPE " + name + " " + kinds[static_cast<int>(family.kind)] + "\n";
    for (const auto& [labels, series] : family.series) append(text, name, series);
  }
  return text;
}

double resident_memory_bytes() {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/statm", "re"), std::fclose);
  long long all = 0, resident = 0;
  if (!file || std::fscanf(file.get(), "%lld %lld", &all, &resident) != 2) return 0;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace pom::net
