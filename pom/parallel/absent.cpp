#include "pom/parallel/absent.h"

#include <chrono>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "pom/base/error.h"
#include "pom/base/shown.h"

namespace pom::parallel {
namespace {

std::string key(const char* what, int rank) {
  return detail::concat("pom/", what, "/", rank);
}

std::string text_of(c10d::Store& store, const std::string& name) {
  const std::vector<std::uint8_t> bytes = store.get(name);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void leave_note(c10d::ProcessGroup& group, const std::string& why) {
  const auto store = group.getStore();
  if (!store) return;
  try {
    store->set(key("left", group.getRank()), std::vector<std::uint8_t>(why.begin(), why.end()));
  } catch (const std::exception&) {  // the store is gone too: there is nobody to tell
  }
}

std::string who_is_absent(c10d::ProcessGroup& group, const std::vector<int>& ranks) {
  const auto store = group.getStore();
  if (!store) return {};
  std::string text;
  try {
    using Clock = std::chrono::steady_clock;
    store->set(key("here", group.getRank()), std::vector<std::uint8_t>{'1'});
    std::vector<int> missing;
    for (const auto until = Clock::now() + std::chrono::milliseconds(1500); Clock::now() < until;) {
      missing.clear();
      for (const int r : ranks)
        if (!store->check({key("here", r)})) missing.push_back(r);
      if (missing.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    for (const int r : ranks)
      if (r != group.getRank() && store->check({key("left", r)}))
        text += detail::concat("rank ", r, " left: ", shown(text_of(*store, key("left", r)), 500), "; ");
    for (const int r : missing)
      if (!store->check({key("left", r)})) text += detail::concat("rank ", r, " is gone; ");
  } catch (const std::exception&) {
    text += "the store of the ranks is gone, with the process or the machine that kept it; ";
  }
  return text;
}

}  // namespace pom::parallel
