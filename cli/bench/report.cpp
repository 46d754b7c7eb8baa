#include "cli/bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include <ATen/Parallel.h>
#include <torch/headeronly/version.h>

#include "cli/bench/cuda.h"
#include "cli/bench/svg.h"
#include "cli/checks.h"
#include "cli/command.h"
#include "cli/output_names.h"
#include "cli/terminal.h"
#include "pom/base/build_info.h"
#include "pom/base/error.h"
#include "pom/io/atomic_file.h"
#include "pom/ops/cpu_info.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

// Four digits that mean something: "0.06123", "2.341", "174.6".
std::string digits(double value) {
  if (!std::isfinite(value)) return "-";
  const int before = value > 0 ? static_cast<int>(std::floor(std::log10(value))) : 0;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", std::clamp(3 - before, 0, 6), value);
  return text;
}

std::string fixed(double value, const char* format) {
  if (!std::isfinite(value)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// "2.341 ±0.4%", or why there is none.
std::string cell(const BenchRow& row, const Timing& timing) {
  if (!timing.measured()) return timing.note;
  return digits(row.ms(timing)) + " ±" + fixed(100 * timing.spread(), "%.1f%%");
}

std::size_t shown_width(const std::string& text) {  // bytes that begin a character
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

double speed(const BenchRow& row) {  // operations in a second
  return row.flops / (row.ms(row.pom) / 1e3);
}

JsonObject timing_json(const BenchRow& row, const Timing& timing) {
  JsonObject object;
  if (!timing.measured()) return object.add("note", timing.note);
  object.add("ms", row.ms(timing)).add("spread", timing.spread()).add("rounds", std::ssize(timing.seconds));
  if (timing.bytes > 0) object.add("bytes", timing.bytes);
  if (timing.graph) object.add("graph", *timing.graph);
  return object;
}

JsonObject row_json(const BenchSection& section, const BenchRow& row, double peak) {
  const double gemms = row.ms(row.gemms), pom = row.ms(row.pom), attention = row.ms(row.attention);
  JsonObject object;
  std::string first = section.first;
  std::ranges::replace(first, ' ', '_');
  object.add(first, row.tokens).add("batch", row.batch);
  if (row.label > 0) object.add("label", row.label);
  object.add("products", timing_json(row, row.gemms))
      .add("pom", timing_json(row, row.pom))
      .add("attention", timing_json(row, row.attention))
      .add("pom_over_products", pom / gemms)
      .add("attention_over_pom", attention / pom);
  if (peak > 0)
    object.add("tflops", speed(row) / 1e12)
        .add("share_of_peak", speed(row) / peak)
        .add("share_of_products", gemms / pom);
  return object;
}

std::string device_text(const Bench& bench) {
  if (bench.gpu()) {
    const Gpu gpu = gpu_of(bench.device);
    const std::string driver = driver_version();
    return detail::concat(bench.device.str(), ": ", gpu.name.empty() ? "a GPU" : gpu.name, ", driver ",
                          driver.empty() ? "unknown" : driver,
                          gpu.runtime.empty() ? "" : ", CUDA " + gpu.runtime);
  }
  const ops::CpuInfo cpu = ops::cpu_info();
  return detail::concat("cpu: ", cpu.name.empty() ? "unknown" : cpu.name, ", ", at::get_num_threads(),
                        " threads, kernels ", bench.dtype == "bf16" ? cpu.bf16_kernels : cpu.kernels);
}

PlotSeries series(const BenchSection& section, const std::string& name, Timing BenchRow::*which) {
  PlotSeries line{name, {}};
  for (const BenchRow& row : section.rows)
    if ((row.*which).measured() && row.tokens > 0) line.points.emplace_back(row.tokens, row.ms(row.*which));
  return line;
}

std::string svg_of(const BenchReport& report) {
  Plot plot{.title = report.name == "operator" ? "Time of a layer against its length"
                                               : "Time of the network against its length",
            .subtitle = report.heading.substr(0, report.heading.find('\n')),
            .x_label = "tokens",
            .panels = {}};
  for (const BenchSection& section : report.sections)
    plot.panels.push_back(
        {section.title + ", " + section.unit,
         {series(section, "products", &BenchRow::gemms), series(section, "PoM", &BenchRow::pom),
          series(section, "attention", &BenchRow::attention)},
         section.first == "tokens" ? "" : section.first});
  return plot_svg(plot);
}

std::string markdown(const Bench& bench, const BenchReport& report) {
  std::string text = "# pom bench " + report.name + "\n\n```\n" + typed_command(bench.options) + "\n```\n\n" +
                     report.heading + "\n";
  for (const std::string& line : machine_lines(bench)) text += "\n- " + line;
  text += "\n";
  for (const BenchSection& section : report.sections) {
    const BenchTable table(report.peak, section.first);
    text += "\n## " + section.title + ", " + section.unit + "\n\n" + table.head() + "\n";
    for (const BenchRow& row : section.rows) text += table.line(row) + "\n";
  }
  for (const std::string& note : report.notes) text += "\n" + note + "\n";
  return text + "\n![times](" + report.name + ".svg)\n";
}

std::string json_text(const Bench& bench, const BenchReport& report) {
  JsonObject result;
  result.add("what", report.name)
      .add("command", typed_command(bench.options))
      .add("date", bench.started)
      .add("device", device_text(bench))
      .add("libpom", build_line())
      .add("torch", TORCH_VERSION)
      .add("dtype", bench.dtype)
      .add("settings", report.about)
      .add("unit", report.sections.empty() ? "" : report.sections.front().unit);
  if (report.peak > 0) result.add("peak_tflops", report.peak / 1e12);
  for (const BenchSection& section : report.sections) {
    std::vector<JsonObject> rows;
    for (const BenchRow& row : section.rows) rows.push_back(row_json(section, row, report.peak));
    result.add(section.key, rows);
  }
  return result.add("notes", report.notes).text();
}

}  // namespace

double BenchRow::ms(const Timing& timing) const {
  if (!timing.measured()) return std::numeric_limits<double>::quiet_NaN();
  return 1e3 * timing.median() / static_cast<double>(batch);
}

BenchTable::BenchTable(double peak, const std::string& first)
    : peak_(peak), columns_{first, "products", "PoM", "attention"} {
  if (peak > 0) columns_.insert(columns_.end(), {"TFLOP/s", "of peak"});
  columns_.insert(columns_.end(), {"PoM/products", "attention/PoM"});
}

std::size_t BenchTable::width_of(std::size_t column) const {
  const bool time = column >= 1 && column <= 3;
  return std::max<std::size_t>(columns_[column].size(), time ? 13 : column == 0 ? 12 : 7);
}

std::string BenchTable::joined(const std::vector<std::string>& cells) const {
  std::string line = "|";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::size_t width = width_of(i), shown = shown_width(cells[i]);
    line.append(1 + (width > shown ? width - shown : 0), ' ').append(cells[i]).append(" |");
  }
  return line;
}

std::string BenchTable::head() const {
  std::string rule = "|";
  for (std::size_t i = 0; i < columns_.size(); ++i)
    rule.append(" ").append(width_of(i) - 1, '-').append(": |");  // aligned to the right
  return joined(columns_) + "\n" + rule;
}

std::string BenchTable::line(const BenchRow& row) const {
  const double gemms = row.ms(row.gemms), pom = row.ms(row.pom), attention = row.ms(row.attention);
  std::vector<std::string> cells = {
      row.label > 0 ? detail::concat(row.tokens, " (", row.label, ")") : std::to_string(row.tokens),
      cell(row, row.gemms), cell(row, row.pom), cell(row, row.attention)};
  if (peak_ > 0) {
    cells.push_back(digits(speed(row) / 1e12));
    cells.push_back(fixed(100 * speed(row) / peak_, "%.1f%%"));
  }
  cells.push_back(fixed(pom / gemms, "%.3f"));
  cells.push_back(fixed(attention / pom, "%.3f"));
  return joined(cells);
}

std::vector<fs::path> report_files(const Bench& bench, const std::string& name) {
  if (bench.options.output.empty()) return {};
  const fs::path folder = bench.options.output;
  std::vector<fs::path> files = {folder / (name + ".md"), folder / (name + ".svg"),
                                 folder / (name + ".json")};
  check_outputs(files, bench.options.yes);
  return files;
}

std::vector<std::string> machine_lines(const Bench& bench) {
  return {device_text(bench), detail::concat(build_line(), ", torch ", TORCH_VERSION),
          bench.started + " UTC"};
}

void print_heading(const Bench& bench, const BenchReport& report) {
  if (bench.options.json) return;
  print(report.heading);
  for (const std::string& line : machine_lines(bench)) print(line);
  print(typed_command(bench.options));
  if (report.peak > 0) print("peak: " + digits(report.peak / 1e12) + " TFLOP/s");
}

void print_section(const Bench& bench, const BenchReport& report, const BenchSection& section) {
  if (bench.options.json) return;
  print("\n" + section.title + ", " + section.unit + "\n");
  print(BenchTable(report.peak, section.first).head());
}

void print_row(const Bench& bench, const BenchReport& report, const BenchSection& section,
               const BenchRow& row) {
  if (!bench.options.json) print(BenchTable(report.peak, section.first).line(row));
}

bool times_backward(const Bench& bench, BenchReport& report) {
  if (bench.options.no_backward) return false;
  if (bench.dtype == "bf16" || bench.dtype == "fp32") return true;
  report.notes.push_back("No backward pass: training is in bf16 or fp32, not in " + bench.dtype + ".");
  return false;
}

int finish_report(const Bench& bench, const BenchReport& report) {
  if (!bench.options.output.empty()) {
    const fs::path folder = bench.options.output;
    const auto write = [&](const char* ending, const std::string& text) {
      const fs::path file = folder / (report.name + ending);
      make_folder_of(file);
      io::write_file_atomically(file, text);
    };
    write(".md", markdown(bench, report));
    write(".svg", svg_of(report));
    write(".json", json_text(bench, report) + "\n");
    bench.remark("wrote " + (folder / (report.name + ".md")).string() + ", .svg and .json");
  }
  if (bench.options.json) {
    print(json_text(bench, report));
  } else {
    for (const std::string& note : report.notes) print("\n" + note);
  }
  for (const BenchSection& section : report.sections)
    if (std::ranges::any_of(section.rows, &BenchRow::failed)) return Exit::failed;
  return Exit::ok;
}

}  // namespace pom::cli
