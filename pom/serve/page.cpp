#include "pom/serve/page.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include "pom/io/sha256.h"
#include "pom/serve/errors.h"

namespace pom::serve {
namespace {

constexpr const char* policy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const char* type_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, const char*>, 4> types = {
      {{".html", "text/html; charset=utf-8"},
       {".css", "text/css; charset=utf-8"},
       {".js", "text/javascript; charset=utf-8"},
       {".svg", "image/svg+xml"}}};
  for (const auto& [end, type] : types)
    if (name.ends_with(end)) return type;
  return "application/octet-stream";
}

struct Served {
  std::string bytes, tag;
};

void give(const std::shared_ptr<net::Exchange>& exchange, std::string_view name, const std::string& bytes,
          const std::string& tag) {
  net::HttpResponse response;
  response.headers.set("Content-Type", type_of(name));
  response.headers.set("Content-Security-Policy", policy);
  response.headers.set("Cache-Control", "no-cache");  // asked for again, by its tag
  response.headers.set("ETag", tag);
  if (exchange->request().headers.get("If-None-Match") == tag)
    response.status = 304;
  else
    response.body = bytes;
  exchange->answer(std::move(response));
}

std::string tag_of(const std::string& bytes) {
  io::Sha256 hash;
  hash.update(bytes);
  return "\"" + hash.hex().substr(0, 16) + "\"";
}

}  // namespace

std::vector<net::Route> page_routes(const std::filesystem::path& folder) {
  auto files = std::make_shared<std::vector<std::pair<std::string, Served>>>();
  for (const PageFile& file : page_files()) {
    const std::string bytes(file.bytes);
    files->push_back({std::string(file.name), {bytes, tag_of(bytes)}});
  }
  const auto handler = [files, folder](const std::shared_ptr<net::Exchange>& exchange,
                                       std::string_view name) {
    const auto found =
        std::ranges::find(*files, name, [](const auto& file) { return std::string_view(file.first); });
    if (found == files->end())
      return exchange->answer(error_response(404, "not_found", "the page has no such file"));
    if (folder.empty()) return give(exchange, name, found->second.bytes, found->second.tag);
    std::ifstream file(folder / found->first, std::ios::binary);  // a name of the table, and no other
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    give(exchange, name, bytes, tag_of(bytes));
  };
  return {{"GET", "/", "the page",
           [handler](std::shared_ptr<net::Exchange> exchange, const net::Captures&) {
             handler(exchange, "index.html");
           }},
          {"GET", "/assets/{file}", "its files",
           [handler](std::shared_ptr<net::Exchange> exchange, const net::Captures& captures) {
             handler(exchange, captures["file"]);
           }}};
}

}  // namespace pom::serve
