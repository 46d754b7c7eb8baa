// Fuzzes what goes on from somewhere: Last-Event-ID, Range, cursors of lists, ids in paths. The first line is
// a header's value, the second a cursor, the third an id.
#include "tests/fuzz/serve_api.h"

#include "pom/net/sse.h"
#include "pom/net/url.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Serving& serving = fuzz::Serving::the();
  const std::string text(fuzz::text_of(data, size));
  const std::size_t first = std::min(text.find('\n'), text.size());
  const std::size_t second = std::min(text.find('\n', std::min(first + 1, text.size())), text.size());
  const std::string value = text.substr(0, first);
  const std::string cursor =
      text.substr(std::min(first + 1, text.size()), second - std::min(first + 1, second));
  const std::string id = text.substr(std::min(second + 1, text.size()));
  const auto events = serving.ask("GET", "/pom/v1/events", {}, {{"Last-Event-ID", value}, {"Range", value}});
  fuzz::require(events.status == 200, "whoever resumes is served");
  serving.leave(events);
  if (const auto target = pom::net::parse_target("/pom/v1/pictures?" + cursor)) {
    const fuzz::Answer list = serving.ask("GET", target->path, {}, {}, target->query);
    fuzz::require(list.status == 200 || list.status == 400, "a list, or a mistake in its cursor");
  }
  for (const char* before : {"/pom/v1/jobs/", "/pom/v1/pictures/", "/pom/v1/streams/", "/v1/models/"})
    if (const auto target = pom::net::parse_target(before + id); target && target->path.size() > 16)
      for (const char* method : {"GET", "DELETE", "POST"}) serving.leave(serving.ask(method, target->path));
  return 0;
}
