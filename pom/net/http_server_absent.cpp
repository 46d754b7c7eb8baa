// Stands for http_server.cpp in a build without Boost's headers: whoever asks for a server is told so.
#include "pom/base/error.h"
#include "pom/net/http_server.h"

namespace pom::net {

struct HttpServer::Impl {};

HttpServer::HttpServer(ServerOptions, Handler) {
  fail("http server: this libpom was built without it: install libboost-dev and build it again");
}
HttpServer::~HttpServer() = default;
std::uint16_t HttpServer::port() const {
  return 0;
}
std::vector<std::string> HttpServer::addresses() const {
  return {};
}
std::int64_t HttpServer::connections() const {
  return 0;
}
void HttpServer::stop_accepting() {}
void HttpServer::stop(std::chrono::milliseconds) {}
void HttpServer::post(std::function<void()>) {}
void HttpServer::post_after(std::chrono::milliseconds, std::function<void()>) {}
bool has_http_server() {
  return false;
}

}  // namespace pom::net
