// The page: files that are part of the program.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pom/net/router.h"

namespace pom::serve {

struct PageFile {
  std::string_view name, bytes;
};
std::vector<PageFile> page_files();  // of this build

// "/" and "/assets/{file}". Where a folder is given, its files are read anew each time, for whoever works on
// the page.
std::vector<net::Route> page_routes(const std::filesystem::path& folder);

}  // namespace pom::serve
