// Private to http_server.cpp: the sockets on which a server waits for connections.
#pragma once

#include <utility>  // Asio of Boost 1.74 forgets it
//
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "pom/base/error.h"

namespace pom::net {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using Tcp = asio::ip::tcp;
using Local = asio::local::stream_protocol;

struct Listeners {
  std::vector<Tcp::acceptor> tcp;
  std::optional<Local::acceptor> local;
  std::string path;  // of the unix socket
  struct stat file = {};

  void close() {
    ErrorCode ignored;
    for (Tcp::acceptor& each : tcp) each.close(ignored);
    if (!local || !local->is_open()) return;
    local->close(ignored);
    // Only our own: another server may have taken the name over.
    struct stat present = {};
    if (::lstat(path.c_str(), &present) == 0 && present.st_dev == file.st_dev &&
        present.st_ino == file.st_ino)
      ::unlink(path.c_str());
  }
};

namespace detail {

// Nothing, or why not.
inline ErrorCode listen(Tcp::acceptor& acceptor, const Tcp::endpoint& endpoint, bool v6_only) {
  ErrorCode error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(v6_only), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  return error;
}

[[noreturn]] inline void refuse(std::string_view address, const ErrorCode& error) {
  fail("http server: ", address, ": cannot listen: ", error.message());
}

inline std::string text_of(const Tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  const std::string host = endpoint.address().is_v6() ? "[" + address + "]" : address;
  return host + ":" + std::to_string(endpoint.port());
}

// Both loopbacks on one port, so that whatever "localhost" means to a client reaches us. A machine without
// IPv6 has one.
inline bool listen_on_loopback(asio::io_context& io, std::uint16_t port, bool last_attempt, Listeners& all) {
  const Tcp::endpoint v4(asio::ip::address_v4::loopback(), port);
  Tcp::acceptor first(io), second(io);
  if (const ErrorCode error = listen(first, v4, false)) refuse(text_of(v4), error);
  const Tcp::endpoint v6(asio::ip::address_v6::loopback(), first.local_endpoint().port());
  const ErrorCode error = listen(second, v6, true);
  if (error == asio::error::address_in_use) {
    if (port != 0) refuse(text_of(v6), error);
    if (!last_attempt) return false;  // somebody has the port that the system chose for the other
  }
  all.tcp.push_back(std::move(first));
  if (!error) all.tcp.push_back(std::move(second));
  return true;
}

inline void listen_on_name(asio::io_context& io, const std::string& host, std::uint16_t port,
                           Listeners& all) {
  ErrorCode error;
  Tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), Tcp::resolver::passive, error);
  if (error) refuse(host, error);
  std::set<Tcp::endpoint> seen;  // a name may have an address twice
  for (const auto& entry : found) {
    if (!seen.insert(entry.endpoint()).second) continue;
    Tcp::acceptor acceptor(io);
    Tcp::endpoint endpoint = entry.endpoint();
    // With a port of the system's choice, the further addresses of a name take the first one's.
    if (!all.tcp.empty()) endpoint.port(all.tcp.front().local_endpoint().port());
    error = listen(acceptor, endpoint, !endpoint.address().is_unspecified());
    if (error) refuse(text_of(endpoint), error);
    all.tcp.push_back(std::move(acceptor));
  }
  check(!all.tcp.empty(), "http server: ", host, ": the name has no address");
}

// A file that a killed server left is replaced; one behind which somebody listens, or that is no socket, is
// not.
inline void remove_stale_socket(asio::io_context& io, const std::string& path) {
  struct stat present = {};
  if (::lstat(path.c_str(), &present) != 0) return;
  check(S_ISSOCK(present.st_mode), "http server: ", path, ": expected a socket or nothing there");
  Local::socket probe(io);
  ErrorCode error;
  probe.connect(Local::endpoint(path), error);
  check(
      error == asio::error::connection_refused, "http server: ", path, ": ",
      error ? "cannot tell whether somebody listens: " + error.message() : "somebody listens there already");
  ::unlink(path.c_str());
}

inline void listen_on_file(asio::io_context& io, const std::string& path, Listeners& all) {
  constexpr std::size_t most = 107;  // what sun_path holds
  check(!path.empty() && path.size() <= most, "http server: unix: expected a path of 1 to ", most,
        " bytes, got ", path.size());
  remove_stale_socket(io, path);
  Local::acceptor acceptor(io);
  ErrorCode error;
  acceptor.open(Local(), error);
  if (!error) acceptor.bind(Local::endpoint(path), error);
  if (error) refuse("unix:" + path, error);
  // Nobody gets in between: before listen() connections are refused.
  if (::chmod(path.c_str(), 0600) != 0 || ::lstat(path.c_str(), &all.file) != 0) {
    error.assign(errno, boost::system::system_category());
  } else {
    acceptor.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    ::unlink(path.c_str());
    refuse("unix:" + path, error);
  }
  all.local.emplace(std::move(acceptor));
  all.path = path;
}

}  // namespace detail

inline Listeners make_listeners(asio::io_context& io, const std::string& host, std::uint16_t port) {
  constexpr std::string_view unix_prefix = "unix:";
  Listeners all;
  if (host.starts_with(unix_prefix)) {
    detail::listen_on_file(io, host.substr(unix_prefix.size()), all);
  } else if (host == "localhost" || host == "127.0.0.1") {
    constexpr int attempts = 8;
    for (int i = 1; !detail::listen_on_loopback(io, port, i == attempts, all);) ++i;
  } else {
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    detail::listen_on_name(io, bracketed ? host.substr(1, host.size() - 2) : host, port, all);
  }
  return all;
}

}  // namespace pom::net
