// What the tests of the server share: a client that sends any bytes, a server that answers with what it saw,
// and waits that end.
#pragma once

#include <arpa/inet.h>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "pom/net/http_server.h"

namespace pom::net {

using namespace std::chrono_literals;
using TestClock = std::chrono::steady_clock;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;  // time and memory are not what they are
#else
inline constexpr bool sanitized = false;
#endif

inline double seconds_since(TestClock::time_point start) {
  return std::chrono::duration<double>(TestClock::now() - start).count();
}

// Until it holds, or for ten seconds.
inline bool eventually(const std::function<bool()>& holds, std::chrono::milliseconds patience = 10s) {
  const auto end = TestClock::now() + patience;
  while (!holds()) {
    if (TestClock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

struct Reply {
  int status = 0;  // 0: the connection ended before
  Headers headers;
  std::string body;
  bool whole = false;
};

class Client {
 public:
  explicit Client(std::uint16_t port, bool v6 = false, std::uint32_t v4_host = htonl(INADDR_LOOPBACK))
      : fd_(::socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in6 v6_address{};
    v6_address.sin6_family = AF_INET6;
    v6_address.sin6_port = htons(port);
    v6_address.sin6_addr = in6addr_loopback;
    if (v6)
      join(&v6_address, sizeof v6_address);
    else
      join(port, v4_host);
  }
  Client() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {}  // joins later
  explicit Client(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    join(&address, sizeof address);
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), joined_(other.joined_), got_(std::move(other.got_)) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool join(std::uint16_t port, std::uint32_t v4_host = htonl(INADDR_LOOPBACK)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = v4_host;
    join(&address, sizeof address);
    return joined_;
  }
  bool joined() const { return joined_; }
  bool was_reset() const { return was_reset_; }
  int descriptor() const { return fd_; }

  // False where the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // One answer: by its length, in chunks or to the end. An answer to HEAD has no body.
  Reply reply(bool to_head = false) {
    Reply reply;
    while (got_.find("\r\n\r\n") == std::string::npos)
      if (!receive()) return reply;
    const std::string head = got_.substr(0, got_.find("\r\n\r\n") + 2);
    got_.erase(0, head.size() + 2);
    std::from_chars(head.data() + 9, head.data() + 12, reply.status);
    for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
      const std::size_t end = head.find("\r\n", at), colon = head.find(": ", at);
      reply.headers.add(head.substr(at, colon - at), head.substr(colon + 2, end - colon - 2));
      at = end + 2;
    }
    reply.whole = to_head || read_body(reply);
    return reply;
  }

  // Whether the server ends the connection within this time, with nothing more to say.
  bool closed(std::chrono::milliseconds patience = 5s) {
    const auto end = TestClock::now() + patience;
    while (got_.empty()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - TestClock::now());
      if (left <= 0ms) return false;
      if (!receive(left)) return ended_;
    }
    return false;
  }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }
  void reset() {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void receive_little() {  // so that a server soon notices that nobody reads
    const int bytes = 4096;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }

  // More bytes; false at the end, or where none come in time.
  bool receive(std::chrono::milliseconds patience = 10s) {
    pollfd poll{fd_, POLLIN, 0};
    if (::poll(&poll, 1, static_cast<int>(patience.count())) <= 0) return false;
    char bytes[16384];
    const ssize_t size = ::recv(fd_, bytes, sizeof bytes, 0);
    ended_ = size <= 0;
    was_reset_ = size < 0;
    if (size > 0) got_.append(bytes, static_cast<std::size_t>(size));
    return size > 0;
  }
  const std::string& got() const { return got_; }

 private:
  void join(const void* address, std::size_t size) {
    joined_ = ::connect(fd_, static_cast<const sockaddr*>(address), static_cast<socklen_t>(size)) == 0;
  }

  bool take(std::size_t size, std::string& into) {
    while (got_.size() < size)
      if (!receive()) return false;
    into += got_.substr(0, size);
    got_.erase(0, size);
    return true;
  }

  bool read_body(Reply& reply) {
    if (reply.status < 200 || reply.status == 204 || reply.status == 304) return true;
    if (const auto length = reply.headers.find("Content-Length"))
      return take(std::stoul(std::string(*length)), reply.body);
    if (!reply.headers.find("Transfer-Encoding")) {
      while (receive()) {
      }
      reply.body = std::exchange(got_, {});
      return ended_;
    }
    while (true) {
      while (got_.find("\r\n") == std::string::npos)
        if (!receive()) return false;
      const std::size_t size = std::stoul(got_, nullptr, 16);
      got_.erase(0, got_.find("\r\n") + 2);
      std::string end;
      if (!take(size, reply.body) || !take(2, end)) return false;
      if (size == 0) return true;
    }
  }

  int fd_;
  bool joined_ = false, ended_ = false, was_reset_ = false;
  std::string got_;
};

inline std::string get(std::string_view path, std::string_view more = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(more) + "\r\n";
}

inline std::string post(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

// "POST /a b?c=d 3": what a handler saw.
inline std::string seen(const HttpRequest& request) {
  std::string text = request.method + " " + request.path;
  char mark = '?';
  for (const auto& [name, value] : request.query) {
    text += mark + name + "=" + value;
    mark = '&';
  }
  return text + " " + std::to_string(request.body.size());
}

inline void echo(const std::shared_ptr<Exchange>& exchange) {
  exchange->answer({200, {{"Content-Type", "text/plain"}}, seen(exchange->request())});
}

// One request on a connection of its own.
inline Reply ask(std::uint16_t port, std::string_view request) {
  Client client(port);
  client.send(request);
  return client.reply();
}

inline Bytes bytes(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace pom::net
