#include "pom/generate/model_names.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"
#include "pom/generate/folder.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

bool is_model(const fs::path& folder) {
  std::error_code ignored;  // of names that no folder can have, of folders that may not be read
  return fs::is_regular_file(folder / config_file, ignored);
}

std::vector<std::string> models_in(const fs::path& place) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(place, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.') && is_model(entry->path())) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// "assets (shapes64, sprites32), models (none)"
[[noreturn]] void refuse_name(const std::string& name, std::string_view where) {
  std::vector<std::string> all;
  std::string looked;
  for (const fs::path& place : model_places()) {
    const std::vector<std::string> names = models_in(place);
    std::string list;
    for (const std::string& each : names) list += (list.empty() ? "" : ", ") + each;
    looked += pom::detail::concat(looked.empty() ? "" : ", ", place.string(), " (",
                                  list.empty() ? "none" : list, ")");
    all.insert(all.end(), names.begin(), names.end());
  }
  const std::vector<std::string> near = nearest_names(name, all, 1);
  fail(where, ": expected a model folder or the name of a model, got \"", shown(name),
       "\"; models found: ", looked,
       near.empty() ? "" : pom::detail::concat("; did you mean ", near.front(), "?"));
}

}  // namespace

std::vector<fs::path> model_places() {
  std::vector<fs::path> folders;
  if (const char* models = std::getenv("POM_MODELS")) {
    std::istringstream parts(models);
    for (std::string part; std::getline(parts, part, ':');)
      if (!part.empty()) folders.emplace_back(part);
  }
  folders.insert(folders.end(), {"assets", "models"});
  return folders;
}

fs::path model_folder(const std::string& given, std::string_view where) {
  std::error_code ignored;
  const bool path = given.find('/') != std::string::npos;
  if (path || fs::exists(given, ignored)) {
    const fs::path made = fs::path(given) / "model";  // of a run
    return !is_model(given) && is_model(made) ? made : fs::path(given);
  }
  if (!given.empty() && !given.starts_with('.'))
    for (const fs::path& place : model_places())
      if (is_model(place / given)) return place / given;
  refuse_name(given, where);
}

}  // namespace pom::generate
