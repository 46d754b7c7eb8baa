#include "cli/sheet.h"

#include <string>

#include "pom/io/sheet.h"

namespace pom::cli {
namespace {

// Pictures of each class, where they stand class by class and every class has as many; else 0.
std::size_t per_class(std::span<const generate::Picture> pictures) {
  std::size_t count = 1;
  while (count < pictures.size() && pictures[count].request.class_name == pictures[0].request.class_name)
    ++count;
  if (pictures.size() % count != 0) return 0;
  for (std::size_t i = 0; i < pictures.size(); ++i)
    if (pictures[i].request.class_name != pictures[i - i % count].request.class_name) return 0;
  return count;
}

}  // namespace

io::Image sheet_of(std::span<const generate::Picture> pictures) {
  const std::size_t count = per_class(pictures);
  const bool one_class = count == pictures.size(), rows = count > 1 && !one_class;
  io::SheetOptions options;
  std::vector<io::Image> images;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const generate::Request& request = pictures[i].request;
    images.push_back(pictures[i].image);
    options.labels.push_back(one_class || rows ? std::to_string(request.seed) : request.class_name);
    if (rows && i % count == 0) options.row_labels.push_back(request.class_name);
  }
  if (rows) options.columns = static_cast<int>(count);
  return io::make_sheet(images, options);
}

generate::Request run_request(const generate::Request& asked, const generate::Request& first) {
  generate::Request run = first;
  run.class_name = asked.class_name;
  run.count = asked.count;
  return run;
}

}  // namespace pom::cli
