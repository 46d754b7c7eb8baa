// Models by name: `--model shapes64`, and Engine("shapes64") in Python, is the folder shapes64 in one of the
// places where models lie.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace pom::generate {

// The folders of $POM_MODELS, separated by ':', then assets and models.
std::vector<std::filesystem::path> model_places();

// The folder of a model that a person named: a path where there is something (of a run's folder its model/),
// else the model of that name in the first place that has it. What has a '/' in it is a path, and a name that
// begins with a dot is none. Throws pom::Error that begins with `where` and lists what there is.
std::filesystem::path model_folder(const std::string& given, std::string_view where);

}  // namespace pom::generate
