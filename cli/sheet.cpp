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

// Classes across and their pictures below each other, so that many classes make a wide sheet and not a tall
// one.
io::Image wide_sheet(std::span<const generate::Picture> pictures, std::size_t count) {
  const std::size_t classes = pictures.size() / count;
  io::SheetOptions options;
  std::vector<io::Image> images;
  for (std::size_t row = 0; row < count; ++row)
    for (std::size_t column = 0; column < classes; ++column) {
      const generate::Picture& picture = pictures[column * count + row];
      images.push_back(picture.image);
      options.labels.push_back(std::to_string(picture.request.seed) + " " + picture.request.class_name);
    }
  options.columns = static_cast<int>(classes);
  return io::make_sheet(images, options);
}

}  // namespace

io::Image sheet_of(std::span<const generate::Picture> pictures) {
  constexpr std::size_t widest = 12;  // classes side by side
  const std::size_t count = per_class(pictures);
  const bool one_class = count == pictures.size(), several = count > 1 && !one_class;
  if (several && pictures.size() / count > count && pictures.size() / count <= widest)
    return wide_sheet(pictures, count);
  io::SheetOptions options;
  std::vector<io::Image> images;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const generate::Request& request = pictures[i].request;
    images.push_back(pictures[i].image);
    options.labels.push_back(one_class || several ? std::to_string(request.seed) : request.class_name);
    if (several && i % count == 0) options.row_labels.push_back(request.class_name);
  }
  if (several) options.columns = static_cast<int>(count);
  return io::make_sheet(images, options);
}

generate::Request run_request(const generate::Request& asked, const generate::Request& first) {
  generate::Request run = first;
  run.class_name = asked.class_name;
  run.count = asked.count;
  return run;
}

}  // namespace pom::cli
