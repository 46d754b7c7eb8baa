// What benchmarks say: tables that are read on a terminal and as Markdown, JSON, and what ran on what.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/json.h"

namespace pom::cli {

// One length: the products alone, the Polynomial Mixer, attention.
struct BenchRow {
  std::int64_t tokens = 0, batch = 1;
  Timing gemms = {}, pom = {}, attention = {};
  double flops = 0;        // of the mixer's products, for one picture; 0: not asked for
  std::int64_t label = 0;  // what the paper calls this length; 0: nothing

  double ms(const Timing& timing) const;  // per picture; not a number where it was not measured
  bool failed() const { return gemms.failed || pom.failed || attention.failed; }
};

struct BenchSection {
  std::string key, title;  // "forward", "Forward"
  std::vector<BenchRow> rows = {};
  std::string first = "tokens";  // what BenchRow::tokens counts
  std::string unit = "ms per image";
};

// Rows become lines as they come. With a peak (operations in a second) there are columns of speed.
class BenchTable {
 public:
  explicit BenchTable(double peak = 0, const std::string& first = "tokens");
  std::string head() const;  // two lines
  std::string line(const BenchRow& row) const;

 private:
  std::size_t width_of(std::size_t column) const;
  std::string joined(const std::vector<std::string>& cells) const;
  double peak_;
  std::vector<std::string> columns_;
};

struct BenchReport {
  std::string name;       // "figure1"
  std::string heading;    // what was timed, a line or two
  JsonObject about = {};  // the same for programs
  double peak = 0;
  std::vector<BenchSection> sections = {};
  std::vector<std::string> notes = {};
};

// The files a report would have in the folder that was asked for, checked before the work; none: none.
std::vector<std::filesystem::path> report_files(const Bench& bench, const std::string& name);

// Device, versions and date.
std::vector<std::string> machine_lines(const Bench& bench);

// Prints what is known before the work begins, then each section's table row by row.
void print_heading(const Bench& bench, const BenchReport& report);
void print_section(const Bench& bench, const BenchReport& report, const BenchSection& section);
void print_row(const Bench& bench, const BenchReport& report, const BenchSection& section,
               const BenchRow& row);

// What bench_figure1() reports; with options.json nothing is printed on the way.
BenchReport figure1_report(Bench& bench);

// Whether the backward pass is timed too; where its dtype is what forbids it, the report says so.
bool times_backward(const Bench& bench, BenchReport& report);

// The files, and the result for programs; the exit code.
int finish_report(const Bench& bench, const BenchReport& report);

}  // namespace pom::cli
