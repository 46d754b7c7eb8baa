// Tests of the server on a unix socket.
#include "tests/net/net_support.h"
#include <fstream>
#include <sys/stat.h>

#include "pom/base/error.h"
#include "pom/net/http_server.h"

namespace pom::net {
namespace {

class UnixSocket : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "pom-net-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
    path = (folder / "pom.sock").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string refusal() {
    try {
      HttpServer server({.host = "unix:" + path}, echo);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::filesystem::path folder;
  std::string path;
};

TEST_F(UnixSocket, ServesItsOwnerAlone) {
  {
    std::string client_name;
    HttpServer server({.host = "unix:" + path}, [&](const std::shared_ptr<Exchange>& exchange) {
      client_name = exchange->request().client;
      echo(exchange);
    });
    EXPECT_EQ(server.port(), 0);
    EXPECT_EQ(server.addresses(), std::vector<std::string>{"unix:" + path});
    struct stat status = {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    Client client(path);
    client.send(get("/a"));
    EXPECT_EQ(client.reply().body, "GET /a 0");
    server.stop(1s);
    EXPECT_EQ(client_name, "unix");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(UnixSocket, ReplacesAFileThatNobodyListensAt) {
  const int left = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  ASSERT_EQ(::bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(left);
  ASSERT_TRUE(std::filesystem::exists(path));
  HttpServer server({.host = "unix:" + path}, echo);
  Client client(path);
  client.send(get("/"));
  EXPECT_EQ(client.reply().status, 200);
}

TEST_F(UnixSocket, LeavesAloneWhatIsNotItsOwn) {
  std::optional<HttpServer> server(std::in_place, ServerOptions{.host = "unix:" + path}, echo);
  EXPECT_EQ(refusal(), "http server: " + path + ": somebody listens there already");
  // Another takes the name over: the first does not remove it when it ends.
  std::filesystem::remove(path);
  HttpServer second({.host = "unix:" + path}, echo);
  server.reset();
  EXPECT_TRUE(std::filesystem::exists(path));

  path = (folder / "file").string();
  std::ofstream(path) << "a file";
  EXPECT_EQ(refusal(), "http server: " + path + ": expected a socket or nothing there");
  EXPECT_TRUE(std::filesystem::exists(path));
  path = (folder / std::string(120, 'a')).string();
  EXPECT_EQ(refusal(),
            "http server: unix: expected a path of 1 to 107 bytes, got " + std::to_string(path.size()));
  path = (folder / "none" / "pom.sock").string();
  EXPECT_EQ(refusal(), "http server: unix:" + path + ": cannot listen: No such file or directory");
}

}  // namespace
}  // namespace pom::net
