// Finds the files of a data set. Everything that can be wrong with the folders is said here.
#include <algorithm>
#include <cctype>
#include <system_error>

#include "pom/base/error.h"
#include "pom/data/folder.h"

namespace pom::data {
namespace {

namespace fs = std::filesystem;

std::string joined(const std::vector<std::string_view>& endings) {
  std::string text;
  for (std::size_t i = 0; i < endings.size(); ++i)
    text.append(i == 0 ? "" : i + 1 == endings.size() ? " or " : ", ").append(endings[i]);
  return text;
}

bool ends_in(const fs::path& path, const std::vector<std::string_view>& endings) {
  std::string ending = path.extension().string();
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::find(endings, ending) != endings.end();
}

// Names in a folder, sorted, without hidden ones.
template <class Keep>
std::vector<std::string> names_in(const fs::path& folder, Keep&& keep) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with('.') && keep(*entry)) names.push_back(std::move(name));
  }
  check(!error, "data: path: ", folder.string(), ": ", error.message());
  std::ranges::sort(names);
  return names;
}

bool is_folder(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.is_directory(error);
}

void check_root(const std::string& root, std::string_view what) {
  check(!root.empty(), "data: path: expected a folder with one subfolder of ", what,
        " per class, got nothing");
  std::error_code error;
  const fs::file_status status = fs::status(root, error);
  check(fs::exists(status), "data: path: ", root, ": expected a folder with one subfolder of ", what,
        " per class, got ", error.value() == EACCES ? error.message() : "no such folder");
  check(fs::is_directory(status), "data: path: ", root, ": expected a folder with one subfolder of ", what,
        " per class, got a file");
}

}  // namespace

fs::path FileTree::path_of(std::int64_t index) const {
  check(index >= 0 && index < std::ssize(files), "data: index: expected below ", files.size(), ", got ",
        index);
  return root / files[static_cast<std::size_t>(index)].path;
}

FileTree find_files(const std::string& root, const std::vector<std::string_view>& endings,
                    std::string_view what) {
  check_root(root, what);
  FileTree tree{.root = root, .classes = names_in(root, is_folder), .files = {}};
  check(!tree.classes.empty(), "data: path: ", root, ": expected one subfolder of ", what,
        " per class, got no folder");
  const auto wanted = [&](const fs::directory_entry& entry) {
    std::error_code error;
    return ends_in(entry.path(), endings) && entry.is_regular_file(error);
  };
  for (std::size_t label = 0; label < tree.classes.size(); ++label) {
    const std::string& name = tree.classes[label];
    const std::vector<std::string> files = names_in(tree.root / name, wanted);
    check(!files.empty(), "data: path: ", (tree.root / name).string(), ": expected ", what, " (",
          joined(endings), "), got none");
    for (const std::string& file : files)
      tree.files.push_back({name + "/" + file, static_cast<std::int64_t>(label)});
  }
  return tree;
}

}  // namespace pom::data
