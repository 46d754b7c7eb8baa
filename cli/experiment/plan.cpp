#include "cli/experiment/plan.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "cli/experiment/metrics.h"
#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/data/dataset.h"
#include "pom/io/toml_fields.h"
#include "pom/models/counts.h"
#include "pom/train/workload.h"

namespace pom::cli::experiment {
namespace {

// "NAME: word word" in its parts.
struct Entry {
  std::string name;
  std::vector<std::string> words;
};

bool fits_a_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

Entry parse_entry(const std::string& text, std::string_view field) {
  const std::size_t colon = text.find(':');
  check(colon != std::string::npos, field, ": expected \"NAME: …\", got \"", text, "\"");
  Entry entry{.name = text.substr(0, colon), .words = {}};
  check(!entry.name.empty() && !entry.name.starts_with('.') && std::ranges::all_of(entry.name, fits_a_name),
        field, ": expected a name of letters, digits, '.', '_' and '-', got \"", entry.name, "\"");
  std::istringstream words(text.substr(colon + 1));
  for (std::string word; words >> word;) entry.words.push_back(word);
  return entry;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

// steps=flops:small+middle
void take_equal(Arm& arm, const std::string& value) {
  const std::size_t colon = value.find(':');
  arm.equal = value.substr(0, colon);
  check(colon != std::string::npos && (arm.equal == "flops" || arm.equal == "seconds"), "arms: ", arm.name,
        ": steps: expected flops:ARM or seconds:ARM, got ", value);
  arm.equal_to = split(value.substr(colon + 1), '+');
}

void take_judged(Arm& arm, const std::string& value) {
  check(value == "yes" || value == "no", "arms: ", arm.name, ": judged: expected yes or no, got ", value);
  arm.judged = value == "yes";
}

Arm arm_of(const std::string& text) {
  const Entry entry = parse_entry(text, "arms");
  Arm arm{.name = entry.name};
  for (const std::string& word : entry.words) {
    const std::size_t equals = word.find('=');
    check(equals != std::string::npos, "arms: ", arm.name, ": expected FIELD=VALUE, got \"", word, "\"");
    const std::string field = word.substr(0, equals), value = word.substr(equals + 1);
    if (field == "from")
      arm.from = value;
    else if (field == "model")
      arm.model = value;
    else if (field == "sweep")
      arm.sweep = value;
    else if (field == "steps")
      take_equal(arm, value);
    else if (field == "judged")
      take_judged(arm, value);
    else
      arm.sets.push_back(word);
  }
  return arm;
}

// The whole of it, and finite; else nothing.
std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

// "number 1" is one word more than the name of a row.
void take_number(std::vector<std::string>& words, Test& test) {
  if (words.size() < 4 || words[2] != "number") return;
  test.constant = number_of(words[3]);
  check(test.constant.has_value(), "tests: \"", test.text, "\": expected a number, got ", words[3]);
  words.erase(words.begin() + 2);
}

double margin_of(const std::string& text, const std::string& percent) {
  const double value = number_of(percent).value_or(0);
  check(value > 0 && value < 100, "tests: \"", text, "\": expected a margin above 0 % and below 100 %, got ",
        percent);
  return value / 100;
}

Test test_of(const std::string& text) {
  const Entry entry = parse_entry(text, "tests");
  std::vector<std::string> words = entry.words;
  Test test{.text = text, .metric = entry.name};
  using Kind = Test::Kind;
  if (words == std::vector<std::string>{"falls"}) return test.kind = Kind::falls, test;
  if (words == std::vector<std::string>{"rises"}) return test.kind = Kind::rises, test;
  if (words == std::vector<std::string>{"lowest", "inside"}) return test.kind = Kind::inside, test;
  take_number(words, test);
  const std::map<std::string, Kind> plain = {{"<", Kind::below}, {">", Kind::above}},
                                    margins = {{"=", Kind::within},
                                               {"<=", Kind::not_above},
                                               {">=", Kind::not_below}};
  const bool simple = words.size() == 3 && plain.contains(words[1]),
             within =
                 words.size() == 6 && margins.contains(words[1]) && words[3] == "within" && words[5] == "%";
  check(simple || within,
        "tests: expected \"METRIC: A < B\", \"A = B within 10 %\", \"A <= B within 10 %\", ",
        "\"falls\", \"rises\" or \"lowest inside\", got \"", text, "\"");
  test.a = words[0], test.b = words[2];
  test.kind = within ? margins.at(words[1]) : plain.at(words[1]);
  if (within) test.margin = margin_of(text, words[4]);
  return test;
}

template <class Things>
void check_names(const Things& things, std::string_view field) {
  std::set<std::string> names;
  for (const auto& thing : things)
    check(names.insert(thing.name).second, field, ": expected each name once, got ", thing.name, " twice");
}

// What the folder of results holds beside arms.
void check_arm_name(const std::string& name) {
  const std::set<std::string> taken = {"sweep",      "sheets",       "experiment.toml", "device.json",
                                       "floor.json", "results.json", "table.md",        "plot.svg"};
  check(!taken.contains(name), "arms: expected another name than one of the folder's own, got ", name);
}

// Arms that an arm builds on come before it, so that going through them in order is enough.
void check_arms(const Plan& plan) {
  std::set<std::string> before;
  for (const Arm& arm : plan.arms) {
    check_arm_name(arm.name);
    std::vector<std::string> others = arm.equal_to;
    for (const std::string& other : {arm.from, arm.model, arm.sweep})
      if (!other.empty()) others.push_back(other);
    for (const std::string& other : others)
      check(before.contains(other), "arms: ", arm.name, ": expected an arm that comes before it, got ",
            other);
    check(arm.model.empty() || (arm.from.empty() && arm.equal.empty()), "arms: ", arm.name,
          ": model: an arm without a training of its own has neither from nor steps");
    const bool sweeps = !plan.file().sweep.field.empty() && arm.trains() && arm.sweep.empty();
    check(!sweeps || arm.from.empty(), "arms: ", arm.name,
          ": from: an arm that chooses for itself starts from nothing; give it sweep=ARM");
    before.insert(arm.name);
  }
}

void add_rows(Plan& plan) {
  const auto judged = std::ranges::count_if(plan.arms, &Arm::judged);
  check(judged > 0, "arms: expected one that is judged, got none");
  for (std::size_t a = 0; a < plan.arms.size(); ++a)
    for (std::size_t p = 0; plan.arms[a].judged && p < plan.points.size(); ++p) {
      const std::string &arm = plan.arms[a].name, &point = plan.points[p].name;
      plan.rows.push_back({a, p, plan.points.size() == 1 ? arm : judged == 1 ? point : arm + "/" + point});
    }
}

// "small > 1": a number that is no row's name. Where points are numbers it may be that of one that is gone.
void take_constant(const Plan& plan, Test& test) {
  if (test.b.empty() || test.constant) return;
  if (std::ranges::find(plan.rows, test.b, &Row::name) != plan.rows.end()) return;
  test.constant = number_of(test.b);
  check(!test.constant || plan.file().axis != "point", "tests: \"", test.text, "\": no row is named ", test.b,
        "; a number is written \"number ", test.b, "\" where points are numbers too");
}

void check_tests(const Plan& plan) {
  const std::vector<Metric> metrics = metrics_of(plan.file().judge.kind);
  const auto known = [&](const std::string& name, std::string_view field) {
    std::vector<std::string> names;
    for (const Metric& metric : metrics) names.push_back(metric.name);
    check(std::ranges::find(names, name) != names.end(), field, ": expected a metric of the judge ",
          plan.file().judge.kind, ", got ", name, suggestion(name, names));
    check(name != "frechet_inception" || plan.file().judge.inception || field == "judge.metrics", field,
          ": frechet_inception: expected judge.inception = true, got false");
  };
  for (const Test& test : plan.tests) {
    known(test.metric, "tests");
    if (!test.a.empty()) plan.row_named(test.a);
    if (!test.b.empty() && !test.constant) plan.row_named(test.b);
    const bool needs_axis = test.a.empty();
    check(!needs_axis || !plan.file().axis.empty(), "tests: \"", test.text, "\": expected an axis, got none");
  }
  for (const std::string& name : plan.file().judge.metrics) known(name, "judge.metrics");
  const SweepConfig& sweep = plan.file().sweep;
  if (sweep.field.empty()) return;
  known(sweep.metric, "sweep.metric");
  check(!sweep.values.empty() && !sweep.seeds.empty(), "sweep: expected values and seeds, got none");
  for (const std::int64_t seed : sweep.seeds)
    check(std::ranges::find(plan.file().seeds, seed) == plan.file().seeds.end(),
          "sweep.seeds: expected others than seeds, got ", seed);
}

// One judge looks at all of them.
void check_recipes(const Plan& plan) {
  std::optional<std::vector<std::int64_t>> size;
  for (const Arm& arm : plan.arms) {
    const train::Recipe recipe = recipe_of(plan, arm, plan.file().seeds.front());
    if (!arm.judged) continue;
    if (!size) size = recipe.sample.size;
    check(recipe.sample.size == *size, "arms: ", arm.name, ": sample.size: expected ", (*size)[0], "x",
          (*size)[1], " as of the other arms that are judged, got ", recipe.sample.size[0], "x",
          recipe.sample.size[1]);
  }
}

void check_seeds(const File& file) {
  for (const std::vector<std::int64_t>& seeds : {file.seeds, file.sweep.seeds})
    for (const std::int64_t seed : seeds)
      check(seed >= 1 && seed <= most_seed, "seeds: expected 1 to ", most_seed,
            ", the others are the judge's own, got ", seed);
}

template <class Named>
std::size_t index_named(const std::vector<Named>& all, const std::string& name, std::string_view field) {
  std::vector<std::string> names;
  for (const Named& each : all) names.push_back(each.name);
  const auto found = std::ranges::find(names, name);
  check(found != names.end(), field, ": expected one of them, got ", name, suggestion(name, names));
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace

std::size_t Plan::arm_named(const std::string& name) const {
  return index_named(arms, name, "arms");
}

std::size_t Plan::row_named(const std::string& name) const {
  return index_named(rows, name, "rows");
}

std::int64_t Plan::trainings() const {
  return std::ranges::count_if(arms, &Arm::trains) * std::ssize(file().seeds);
}

std::int64_t Plan::sweep_trainings() const {
  const SweepConfig& sweep = file().sweep;
  if (sweep.field.empty()) return 0;
  const auto own =
      std::ranges::count_if(arms, [](const Arm& arm) { return arm.trains() && arm.sweep.empty(); });
  return own * std::ssize(sweep.values) * std::ssize(sweep.seeds);
}

bool Plan::keeps_to_one_device() const {
  return file().timed() || std::ranges::find(arms, "seconds", &Arm::equal) != arms.end();
}

Plan make_plan(const Experiment& experiment) {
  Plan plan{.experiment = experiment, .arms = {}, .points = {}, .rows = {}, .tests = {}};
  const File& file = experiment.file;
  check(!file.seeds.empty(), experiment.name, ": seeds: expected some, got none");
  check(file.arms.empty() == file.timed(), experiment.name,
        ": arms: expected some where something is trained");
  const std::set<std::int64_t> different(file.seeds.begin(), file.seeds.end());
  check(different.size() == file.seeds.size(), experiment.name, ": seeds: expected each once");
  for (const std::string& text : file.arms) plan.arms.push_back(arm_of(text));
  if (file.timed()) plan.arms.push_back({.name = "bench", .model = "bench"});  // nothing is trained
  for (const std::string& text : file.points) {
    const Entry entry = parse_entry(text, "points");
    plan.points.push_back({entry.name, entry.words});
  }
  if (plan.points.empty()) plan.points.push_back({"default"});
  check_names(plan.arms, "arms");
  check_names(plan.points, "points");
  if (!file.timed()) check_arms(plan);
  add_rows(plan);
  for (const std::string& text : file.tests) plan.tests.push_back(test_of(text));
  for (Test& test : plan.tests) take_constant(plan, test);
  check_tests(plan);
  if (file.timed()) return plan;
  check_seeds(file);
  check_recipes(plan);
  for (const Point& point : plan.points) request_of(point);
  return plan;
}

train::Recipe recipe_of(const Plan& plan, const Arm& arm, std::int64_t seed,
                        const std::vector<std::string>& more) {
  std::vector<std::string> sets = plan.experiment.recipe;
  sets.insert(sets.end(), arm.sets.begin(), arm.sets.end());
  sets.push_back("run.seed=" + std::to_string(seed));
  sets.push_back(detail::concat("run.name=", plan.experiment.name, "-", arm.name, "-", seed));
  sets.insert(sets.end(), more.begin(), more.end());
  const std::string source = detail::concat(plan.experiment.name, ": ", arm.name);
  train::Recipe recipe = train::parse_recipe("", source, sets);
  train::check_recipe(recipe, source);
  return recipe;
}

generate::Request request_of(const Point& point) {
  generate::Request request;
  for (const std::string& assignment : point.sets)
    io::set_field(assignment, request, "points: " + point.name);
  return request;
}

double macs_of(const train::Recipe& recipe) {
  const train::Workload work = train::workload_of(recipe);
  return static_cast<double>(models::count_macs(work.network, work.height, work.width)) *
         static_cast<double>(work.blocks);
}

std::int64_t parameters_of(const train::Recipe& recipe) {
  return train::workload_of(recipe).parameters();
}

}  // namespace pom::cli::experiment
