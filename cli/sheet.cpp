#include "cli/sheet.h"

#include <string>

#include "pom/io/sheet.h"

namespace pom::cli {
namespace {

using Items = std::span<const generate::Request>;

// Items of each subject, where they stand one subject after the other and every one has as many; else 0.
std::size_t per_subject(Items items) {
  std::size_t count = 1;
  while (count < items.size() && items[count].subject() == items[0].subject()) ++count;
  if (items.size() % count != 0) return 0;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].subject() != items[i - i % count].subject()) return 0;
  return count;
}

// Subjects across and their images below each other, so that many make a wide sheet and not a tall one.
io::Image wide_sheet(std::span<const io::Image> all, Items items, std::size_t count) {
  const std::size_t subjects = items.size() / count;
  io::SheetOptions options;
  std::vector<io::Image> images;
  for (std::size_t row = 0; row < count; ++row)
    for (std::size_t column = 0; column < subjects; ++column) {
      const generate::Request& item = items[column * count + row];
      images.push_back(all[column * count + row]);
      options.labels.push_back(std::to_string(item.own_seed()) + " " + item.subject());
    }
  options.columns = static_cast<int>(subjects);
  return io::make_sheet(images, options);
}

}  // namespace

io::Image sheet_of(std::span<const io::Image> images, Items items) {
  constexpr std::size_t widest = 12;  // subjects side by side
  const std::size_t count = per_subject(items);
  const bool one_subject = count == items.size(), several = count > 1 && !one_subject;
  if (several && items.size() / count > count && items.size() / count <= widest)
    return wide_sheet(images, items, count);
  io::SheetOptions options;
  for (std::size_t i = 0; i < items.size(); ++i) {
    options.labels.push_back(one_subject || several ? std::to_string(items[i].own_seed())
                                                    : items[i].subject());
    if (several && i % count == 0) options.row_labels.push_back(items[i].subject());
  }
  if (several) options.columns = static_cast<int>(count);
  return io::make_sheet(images, options);
}

generate::Request run_request(const generate::Request& asked, const generate::Job& job) {
  generate::Request run = job.first();
  if (run.class_name) run.class_name = asked.class_name.value_or("all");
  if (!run.prompt.empty() && !asked.prompt.empty()) run.prompt = asked.prompt;
  run.count = asked.count;
  if (asked.seed.size() > 1) run.seed = asked.seed;
  return run;
}

}  // namespace pom::cli
