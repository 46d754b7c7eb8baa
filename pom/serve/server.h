// `pom serve`: models behind HTTP, for a browser and for other programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pom/net/auth.h"
#include "pom/serve/live.h"
#include "pom/serve/queue.h"

namespace pom::serve {

struct ServeOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  net::KeySet keys = {};                              // empty: nobody is asked for one
  std::vector<std::string> hosts = {}, origins = {};  // allowed beside our own
  std::vector<std::string> proxies = {};              // addresses whose X-Forwarded-For is believed
  std::filesystem::path gallery = {}, page = {};
  QueueLimits limits = {};
  LiveLimits live = {};
  std::size_t result_bytes = std::size_t{256} << 20;
  double result_seconds = 3600;
  double head_seconds = 10, body_seconds = 30, idle_seconds = 30, write_seconds = 30;
  std::int64_t connections = 1024;
  // Called for each answer, from the server's thread: a line for the log.
  std::function<void(const std::string& line)> log = {};
};

class Server {
 public:
  // Listens at once and answers "loading"; `backends` is called then, and makes one for each device. Throws
  // pom::Error where the address is taken or a model cannot be opened.
  Server(ServeOptions options, const std::function<std::vector<std::unique_ptr<Backend>>()>& backends);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::vector<std::string> addresses() const;
  std::uint16_t port() const;
  // Takes nothing more, lets what runs end, but no longer than this; then viewers and listeners are told, and
  // it is over.
  void drain(double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::serve
