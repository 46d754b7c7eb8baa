#include "cli/vbench.h"

#include <algorithm>
#include <cctype>
#include <climits>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <unistd.h>

#include "cli/command.h"
#include "cli/json.h"
#include "pom/base/shown.h"
#include "pom/generate/metadata.h"
#include "pom/io/sha256.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Request;

std::string trimmed(const std::string& line) {
  const auto blank = [](unsigned char c) { return std::isspace(c) != 0; };
  const auto begin = std::ranges::find_if_not(line, blank);
  auto end = line.end();
  while (end != begin && blank(static_cast<unsigned char>(*(end - 1)))) --end;
  return {begin, end};
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// VBench looks for the exact prompt: there is nothing to put in the place of what a name cannot hold.
fs::path clip_path(const fs::path& folder, const std::string& prompt, std::int64_t index) {
  const std::string name = prompt + "-" + std::to_string(index) + ".mp4";
  for (const char c : prompt)
    if (c == '/' || std::iscntrl(static_cast<unsigned char>(c)))
      throw UsageError(detail::concat("--vbench: expected prompts that can be names of files, got \"",
                                      shown(prompt, 80), "\", which has ",
                                      c == '/' ? "a slash" : "a control character"));
  if (prompt.size() > NAME_MAX - 8)  // room for two digits, and the same whatever the index
    throw UsageError(detail::concat("--vbench: expected prompts of at most ", NAME_MAX - 8, " bytes, got ",
                                    prompt.size(), ": \"", shown(prompt, 60), "\""));
  return folder / name;
}

fs::path nearest_existing(fs::path folder) {
  std::error_code ignored;
  folder = fs::absolute(folder);
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

// Whether "a" and "A" are two files there.
bool tells_cases(const fs::path& folder) {
  const fs::path probe = nearest_existing(folder) / (".pom-case-" + std::to_string(::getpid()));
  std::error_code ignored;
  std::ofstream(probe).put('x');
  const fs::path other = probe.parent_path() / (".POM-CASE-" + std::to_string(::getpid()));
  const bool told = !fs::exists(other, ignored);
  fs::remove(probe, ignored);
  return told;
}

// What is the same for all clips of a folder.
std::string settings_line(const SampleOptions& options, const generate::Engine& engine,
                          const generate::Job& job) {
  Request how = job.first();
  how.prompt = {}, how.seed = {0};
  return JsonObject()
      .add("model", engine.name())
      .add("sha256", engine.weights_hash())
      .add("seed", options.request.own_seed())
      .raw("request", generate::request_json(how))
      .text();
}

std::string clip_line(const fs::path& path, const Request& item, std::int64_t index) {
  return JsonObject()
      .add("file", path.filename().string())
      .add("prompt", item.subject())
      .add("index", index)
      .add("seed", item.own_seed())
      .text();
}

// The lines of a manifest that is there, of the same settings; nothing where there is none.
std::set<std::string> known_lines(const fs::path& manifest, const fs::path& folder,
                                  const std::string& settings) {
  std::set<std::string> lines;
  std::error_code ignored;
  if (!fs::exists(manifest, ignored)) {
    if (fs::is_directory(folder, ignored) && !fs::is_empty(folder, ignored))
      throw UsageError(detail::concat("--vbench: expected a new folder, or one with ", manifest.string(),
                                      " beside it, got ", folder.string()));
    return lines;
  }
  std::ifstream file(manifest, std::ios::binary);
  std::string line;
  std::getline(file, line);
  check(file.good(), "--vbench: ", manifest.string(), ": cannot read it");
  if (line != settings)
    throw UsageError(
        detail::concat("--vbench: ", folder.string(), ": expected the model and settings of the ",
                       "clips that are there, got others; they are the first line of ", manifest.string()));
  while (std::getline(file, line)) lines.insert(line);
  return lines;
}

}  // namespace

std::vector<std::string> read_prompts(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  check(stream.good(), "--prompts: ", file.string(), ": cannot read it");
  std::vector<std::string> prompts;
  for (std::string line; std::getline(stream, line);)
    if (std::string prompt = trimmed(line); !prompt.empty()) prompts.push_back(std::move(prompt));
  check(!prompts.empty(), "--prompts: ", file.string(), ": expected a prompt in each line, got none");
  return prompts;
}

std::int64_t vbench_seed(std::int64_t seed, std::string_view prompt, std::int64_t index) {
  io::Sha256 hash;
  hash.update(prompt);
  const io::Sha256::Digest digest = hash.digest();
  std::int64_t number = 0;
  for (std::size_t i = 0; i < 5; ++i) number = number * 256 + std::to_integer<std::int64_t>(digest[i]);
  return seed + number * 1000 + index;
}

VbenchPlan plan_vbench(const SampleOptions& options, const generate::Engine& engine, generate::Job& job) {
  const fs::path given = options.vbench, folder = given.has_filename() ? given : given.parent_path();
  VbenchPlan plan;
  plan.manifest = folder.string() + ".jsonl";
  const std::string settings = settings_line(options, engine, job);
  std::set<std::string> lines = known_lines(plan.manifest, folder, settings);
  std::map<std::string, std::int64_t> made;            // clips of a prompt so far
  std::map<std::string, std::string> prompts_by_case;  // by lower case, the first one
  std::vector<Request> items;
  std::int64_t repeated = 0;
  std::set<std::string> other_case;
  const std::int64_t each = options.request.count;
  for (Request& item : job.items) {
    const std::string& prompt = item.subject();
    const std::int64_t index = made[prompt]++;
    if (index >= each) {  // a line that is in the list twice
      repeated += index % each == 0 ? 1 : 0;
      continue;
    }
    const std::string& first = prompts_by_case.emplace(lower_case(prompt), prompt).first->second;
    if (first != prompt) other_case.insert(prompt);
    const fs::path path = clip_path(folder, prompt, index);
    item.seed = {vbench_seed(options.request.own_seed(), prompt, index)};
    lines.insert(clip_line(path, item, index));
    std::error_code ignored;
    if (fs::exists(path, ignored)) {
      ++plan.there;
      continue;
    }
    plan.names.push_back(path);
    items.push_back(item);
  }
  if (repeated > 0)
    plan.remarks.push_back(
        detail::concat(repeated, " prompts are in the list more than once; each has ", each, " clips"));
  for (const std::string& prompt : other_case)
    plan.remarks.push_back(
        detail::concat("\"", shown(prompt, 60), "\" and \"", shown(prompts_by_case[lower_case(prompt)], 60),
                       "\" differ in case alone: copy the clips only to where names do too"));
  if (!other_case.empty() && !tells_cases(folder))
    throw UsageError(detail::concat("--vbench: expected a file system whose names differ by case, for \"",
                                    shown(*other_case.begin(), 60), "\", got ", folder.string()));
  job.items = std::move(items);
  plan.text = settings + "\n";
  for (const std::string& line : lines) plan.text += line + "\n";
  return plan;
}

}  // namespace pom::cli
