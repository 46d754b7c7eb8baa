// What `pom info` and `pom dataset` say of a folder of shards that `pom encode` wrote.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace pom::cli {

// Whether a folder has a dataset.json of ours.
bool is_shard_folder(const std::filesystem::path& folder);

// What dataset.json says; with `broken`, also these samples, which a reader of them all has found.
void tell_shards(const std::filesystem::path& folder, bool json,
                 const std::vector<std::string>* broken = nullptr);

}  // namespace pom::cli
