// An HTTP/1.1 server on one thread: parses, bounds and routes bytes, and does no work of its own. A handler
// is called on that thread, must not block, and answers now or later, from any thread.
//
// Clients that are slow, greedy or gone cost a connection and no more: every wait has an end, every buffer a
// bound, and whoever works for a client that has left is told so at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/net/http_message.h"

namespace pom::net {

// A body that is sent as it is made. All functions may be called from any thread and never wait. One that is
// dropped without end() is aborted.
class BodyStream {
 public:
  virtual ~BodyStream() = default;
  // False where the client is gone, or asked for the head alone: nothing more need be made.
  virtual bool write(Bytes bytes) = 0;
  virtual void end() = 0;
  virtual void abort() = 0;                       // closes without an end, so that the client sees the break
  virtual std::size_t waiting_bytes() const = 0;  // written and not taken by the socket yet
  // Called on the server's thread each time nothing waits any more, and once at the start where nothing does;
  // not after end() or abort().
  virtual void on_drained(std::function<void()> call) = 0;
};

// One request and its answer. Whoever holds it answers once, and a second answer is passed over; dropped
// without an answer it is a 500.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual void answer(HttpResponse response) = 0;
  // The head now, the body bit by bit (chunked; HTTP/1.0: until the connection closes).
  virtual std::shared_ptr<BodyStream> stream(int status, Headers headers) = 0;
  // Called once, on the server's thread, when the client goes away before the answer is complete; not called
  // after the answer was sent whole. At once where it is gone already. The server's end counts as the
  // client's, and so does a stream that was closed for having too much waiting. A second call is made too.
  virtual void on_gone(std::function<void()> call) = 0;
  virtual bool gone() const = 0;
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

// All functions of it are called on the server's thread, and must not block.
struct ServerOptions {
  std::string host = "127.0.0.1";  // an address, "localhost" (both loopbacks), or "unix:/path", mode 0600
  std::uint16_t port = 0;          // 0: the system chooses
  std::int64_t head_bytes = 8 << 10, body_bytes = 1 << 20;
  // The limit of a body by path, where it differs (uploads); empty: body_bytes for all. Called once the head
  // is read, after `refuse` below; negative: no body is read, the answer is 413.
  std::function<std::int64_t(const HttpRequest& head)> body_limit = {};
  // Looked at when the head is there and before the body is read: Host, Origin, keys. An answer ends it.
  std::function<std::optional<HttpResponse>(const HttpRequest& head)> refuse = {};
  // Who a client is, where that is not the address it came from (forwarded.h); called first of all.
  std::function<std::string(const HttpRequest& head, const std::string& peer)> client_of = {};
  // Addresses from which many clients come: they have no limit of connections of their own.
  std::function<bool(const std::string& address)> many_behind = {};
  // The body of answers that the server gives by itself (400, 408, 413, 417, 431, 500, 501, 503, 505).
  std::function<HttpResponse(int status, std::string_view code, std::string_view message)> error = {};
  // Headers that every answer has, whoever gives it: called before its head is sent.
  std::function<void(const HttpRequest& request, Headers& headers)> decorate = {};
  // Of the whole head; of the whole body; between requests; without a byte of the answer being taken.
  std::chrono::milliseconds head_time{10'000}, body_time{30'000}, idle_time{30'000}, write_time{30'000};
  std::int64_t body_rate = 16 << 10;  // bytes a second, at least, after the first second
  // When full, the connection goes that has waited longest without finishing a head; where none has, the new
  // one is turned away.
  std::int64_t connections = 1024, connections_an_address = 256;  // loopback has no limit of its own
  std::int64_t stream_bytes = 8 << 20;                            // a stream that has more waiting is closed
  // After each answer, for log and metrics: status, bytes sent, seconds from the end of the head. A client
  // that left before its answer began is a 499. Of a request that could not be read the method is empty.
  std::function<void(const HttpRequest&, int status, std::uint64_t bytes, double seconds)> on_answer = {};
  // What an answer 500 does not say: the text of the exception, under the id that the client was told; no id
  // where the exception came out of a call given to post(), on_gone() or on_drained().
  std::function<void(std::string_view id, std::string_view what)> on_failure = {};
};

class HttpServer {
 public:
  HttpServer(ServerOptions options, Handler handler);  // binds; throws pom::Error that names the address
  ~HttpServer();                                       // stops and joins
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;                  // 0 of a unix socket
  std::vector<std::string> addresses() const;  // "http://127.0.0.1:8000"
  std::int64_t connections() const;

  void stop_accepting();  // idle connections close, answers under way go on
  // Waits until no answer is under way, or the time is over; then closes what is left. Not to be called on
  // the server's thread.
  void stop(std::chrono::milliseconds patience);
  // On the server's thread; what has not begun when the server stops is dropped.
  void post(std::function<void()> call);
  void post_after(std::chrono::milliseconds delay, std::function<void()> call);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether this build has the server: without Boost's headers the constructor throws.
bool has_http_server();

}  // namespace pom::net
