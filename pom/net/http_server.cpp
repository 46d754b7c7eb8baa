// The server: who may connect, who must go, and the thread on which all of it runs. The only source that
// compiles Boost (Asio, headers alone).
#include "pom/net/http_server.h"

#include <utility>  // Asio of Boost 1.74 forgets it
//
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <map>
#include <mutex>
#include <netinet/tcp.h>
#include <random>
#include <thread>

#include "pom/base/error.h"
#include "pom/io/json_header.h"
#include "pom/net/connection.h"
#include "pom/net/listeners.h"
#include "pom/net/response_head.h"

namespace pom::net {
namespace {

class AsioLoop final : public Loop {
 public:
  explicit AsioLoop(asio::io_context& io) : io_(&io) {}

  void post(std::function<void()> call) override {
    const std::lock_guard guard(mutex_);
    if (io_) asio::post(*io_, std::move(call));
  }
  // Whoever still holds an exchange or a stream may go on talking to it.
  void close() {
    const std::lock_guard guard(mutex_);
    io_ = nullptr;
  }

 private:
  std::mutex mutex_;
  asio::io_context* io_;
};

// Signals are for the threads that the program has for them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

std::string random_prefix() {
  std::random_device entropy;
  char text[16];
  std::snprintf(text, sizeof text, "%08x-", static_cast<unsigned>(entropy()));
  return text;
}

HttpResponse plain_error(int status, std::string_view code, std::string_view message) {
  std::string body = "{\"error\": {\"message\": ";
  io::detail::append_json_string(body, message);
  body += ", \"code\": ";
  io::detail::append_json_string(body, code);
  return {status, {{"Content-Type", "application/json"}}, body + "}}\n", {}};
}

// A machine that loses its power or its network says no goodbye: whoever answers nothing for a minute is
// gone.
void notice_vanished_peer(int socket) {
  const int on = 1, idle_seconds = 30, pause_seconds = 10, attempts = 3;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &pause_seconds, sizeof pause_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &attempts, sizeof attempts);
}

void check_options(const ServerOptions& options) {
  const auto positive = [](const char* name, std::int64_t value) {
    check(value > 0, "http server: ", name, ": expected at least 1, got ", value);
  };
  positive("head_bytes", options.head_bytes);
  positive("connections", options.connections);
  positive("connections_an_address", options.connections_an_address);
  positive("stream_bytes", options.stream_bytes);
  check(options.body_bytes >= 0, "http server: body_bytes: expected at least 0, got ", options.body_bytes);
}

// "1.2.3.4", also where IPv6 wraps it.
asio::ip::address plain_address(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return address;
}

}  // namespace

struct HttpServer::Impl final : ConnectionHost {
  Impl(ServerOptions options, Handler handler)
      : ConnectionHost(std::move(options), std::move(handler)), work(io.get_executor()), retry(io) {
    check_options(this->options);
    check(static_cast<bool>(this->handler), "http server: expected a handler, got none");
    listeners = make_listeners(io, this->options.host, this->options.port);
    asio_loop = std::make_shared<AsioLoop>(io);
    loop = asio_loop;
    run = random_prefix();
    name_addresses();
    for (Tcp::acceptor& each : listeners.tcp) accept(each);
    if (listeners.local) accept(*listeners.local);
    const SignalsBlocked signals;
    thread = std::thread([this] { run_loop(); });
  }

  ~Impl() override { stop(std::chrono::milliseconds(0)); }

  // ---- ConnectionHost ----

  void left(Connection& connection) override {
    if (const auto count = by_address.find(connection.address());
        count != by_address.end() && --count->second == 0)
      by_address.erase(count);
    open.erase(&connection);
    open_count = static_cast<std::int64_t>(open.size());
  }

  void busy(int change) override {
    const std::lock_guard guard(mutex);
    under_way += change;
    if (under_way == 0) changed.notify_all();
  }

  void failed(std::string_view id, std::string_view what) override {
    try {
      if (options.on_failure) options.on_failure(id, what);
    } catch (...) {  // there is nobody left to tell
    }
  }

  HttpResponse own_answer(int status, std::string_view code, std::string_view message) override {
    try {
      if (options.error) return options.error(status, code, message);
    } catch (...) {
      failed({}, current_exception_text());
    }
    return plain_error(status, code, message);
  }

  // ---- connections ----

  template <class Acceptor>
  void accept(Acceptor& acceptor) {
    acceptor.async_accept([this, &acceptor](ErrorCode error, auto socket) {
      if (!acceptor.is_open()) return;
      if (!error) {
        admit(std::move(socket));
        accept(acceptor);
      } else {
        // Out of descriptors, most likely: whoever has waited longest gives his.
        evict();
        retry.expires_after(std::chrono::milliseconds(20));
        retry.async_wait([this, &acceptor](ErrorCode) {
          if (acceptor.is_open()) accept(acceptor);
        });
      }
    });
  }

  void admit(Tcp::socket socket) {
    ErrorCode error;
    const Tcp::endpoint peer = socket.remote_endpoint(error);
    if (error) return;  // gone already
    socket.set_option(Tcp::no_delay(true), error);
    notice_vanished_peer(socket.native_handle());
    const asio::ip::address address = plain_address(peer.address());
    const std::string client = address.to_string();
    const bool many = address.is_loopback() || (options.many_behind && options.many_behind(client));
    admit(Connection::Socket(std::move(socket)), client, many ? std::string() : client);
  }

  void admit(Local::socket socket) { admit(Connection::Socket(std::move(socket)), "unix", {}); }

  void admit(Connection::Socket socket, const std::string& client, const std::string& address) {
    const auto count = by_address.find(address);
    if (count != by_address.end() && count->second >= options.connections_an_address)
      return turn_away(std::move(socket));
    const bool full = static_cast<std::int64_t>(open.size()) >= options.connections;
    if (full && !evict()) return turn_away(std::move(socket));
    if (!address.empty()) ++by_address[address];
    const auto connection = std::make_shared<Connection>(*this, std::move(socket), client, address);
    open.emplace(connection.get(), connection);
    open_count = static_cast<std::int64_t>(open.size());
    connection->start();
  }

  bool evict() {
    Connection* oldest = nullptr;
    for (const auto& [connection, owner] : open)
      if (const auto since = connection->waiting_since())
        if (!oldest || *since < *oldest->waiting_since()) oldest = connection;
    if (oldest) oldest->close();
    return oldest != nullptr;
  }

  // As much as the socket takes at once: nobody waits for this one.
  void turn_away(Connection::Socket socket) {
    const HttpResponse response = own_answer(503, "too_many_connections", "too many connections");
    const ResponseFrame frame{.close = true, .length = response.body.size()};
    const std::string text = response_head(503, response.headers, frame, std::time(nullptr)) + response.body;
    ErrorCode ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(text), ignored);
    socket.shutdown(Connection::Socket::shutdown_send, ignored);
  }

  // ---- beginning and end ----

  void name_addresses() {
    for (const Tcp::acceptor& each : listeners.tcp) {
      const Tcp::endpoint endpoint = each.local_endpoint();
      bound_port = endpoint.port();
      addresses.push_back("http://" + pom::net::detail::text_of(endpoint));
    }
    if (listeners.local) addresses.push_back("unix:" + listeners.path);
  }

  void run_loop() {
    while (true) {
      try {
        io.run();
        return;
      } catch (...) {
        failed({}, current_exception_text());
      }
    }
  }

  void drain() {
    listeners.close();
    draining = true;
    for (const auto& connection : all_connections()) connection->drain();
    const std::lock_guard guard(mutex);
    drained = true;
    changed.notify_all();
  }

  std::vector<std::shared_ptr<Connection>> all_connections() const {
    std::vector<std::shared_ptr<Connection>> all;
    for (const auto& [connection, owner] : open) all.push_back(owner);
    return all;
  }

  void stop(std::chrono::milliseconds patience) {
    check(std::this_thread::get_id() != thread.get_id(),
          "http server: stop: called on the server's own thread");
    const std::lock_guard one_at_a_time(stopping);
    if (!thread.joinable()) return;
    loop->post([this] { drain(); });
    {
      constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365);
      std::unique_lock lock(mutex);
      changed.wait_for(lock, std::min(patience, longest), [this] { return drained && under_way == 0; });
    }
    loop->post([this] {
      for (const auto& connection : all_connections()) connection->close();
      io.stop();
    });
    thread.join();
    asio_loop->close();
  }

  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::steady_timer retry;
  std::shared_ptr<AsioLoop> asio_loop;
  Listeners listeners;
  std::map<Connection*, std::shared_ptr<Connection>> open;
  std::map<std::string, std::int64_t> by_address;
  std::atomic<std::int64_t> open_count{0};
  std::vector<std::string> addresses;
  std::uint16_t bound_port = 0;

  std::mutex mutex, stopping;
  std::condition_variable changed;
  std::int64_t under_way = 0;
  bool drained = false;
  std::thread thread;
};

HttpServer::HttpServer(ServerOptions options, Handler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() = default;

std::uint16_t HttpServer::port() const {
  return impl_->bound_port;
}

std::vector<std::string> HttpServer::addresses() const {
  return impl_->addresses;
}

std::int64_t HttpServer::connections() const {
  return impl_->open_count;
}

void HttpServer::stop_accepting() {
  impl_->loop->post([impl = impl_.get()] { impl->drain(); });
}

void HttpServer::stop(std::chrono::milliseconds patience) {
  impl_->stop(patience);
}

void HttpServer::post(std::function<void()> call) {
  impl_->loop->post(std::move(call));
}

void HttpServer::post_after(std::chrono::milliseconds delay, std::function<void()> call) {
  impl_->loop->post([impl = impl_.get(), delay, call = std::move(call)] {
    const auto timer = std::make_shared<asio::steady_timer>(impl->io, delay);
    timer->async_wait([timer, call](ErrorCode error) {
      if (!error) call();
    });
  });
}

bool has_http_server() {
  return true;
}

}  // namespace pom::net
