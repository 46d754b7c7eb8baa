// Tests of keys, names and origins.
#include "pom/net/auth.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include "pom/base/error.h"
#include "pom/net/base64.h"

namespace pom::net {
namespace {

using namespace std::chrono_literals;

HttpRequest with(Headers headers, std::string method = "POST") {
  HttpRequest request;
  request.method = std::move(method);
  request.client = "192.0.2.1";
  request.headers = std::move(headers);
  return request;
}

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// ---- keys ----

TEST(KeySet, FindsEachOfSeveral) {
  KeySet keys;
  EXPECT_TRUE(keys.empty());
  EXPECT_FALSE(keys.find(""));
  for (const char* key : {"first-key", "second-key", "third-key"}) keys.add(key);
  EXPECT_EQ(keys.find("first-key"), 0u);
  EXPECT_EQ(keys.find("second-key"), 1u);
  EXPECT_EQ(keys.find("third-key"), 2u);
  for (const char* key : {"", "first-ke", "first-key ", "first-keyy", "First-key", "second", "third-kez"})
    EXPECT_FALSE(keys.find(key)) << key;
}

TEST(KeySet, WhatMayBeAKey) {
  KeySet keys;
  EXPECT_EQ(refusal([&] { keys.add("1234567"); }), "api key: expected 8 to 512 printable characters, got 7");
  EXPECT_EQ(refusal([&] { keys.add("with a space"); }),
            "api key: expected 8 to 512 printable characters, got 12 with others among them");
  EXPECT_NE(refusal([&] { keys.add(std::string(513, 'a')); }), "");
  EXPECT_EQ(refusal([&] { keys.add("12345678"); }), "");
  EXPECT_EQ(refusal([&] { keys.add(std::string(512, 'a')); }), "");
  EXPECT_EQ(keys.size(), 2u);
}

TEST(KeySet, FromAFile) {
  const auto path = std::filesystem::temp_directory_path() / ("pom-keys-" + std::to_string(::getpid()));
  std::ofstream(path) << "# two of us\n\n  key-of-anna  \r\nkey-of-bert";
  KeySet keys;
  keys.add_file(path);
  EXPECT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys.find("key-of-anna"), 0u);
  EXPECT_EQ(keys.find("key-of-bert"), 1u);
  std::ofstream(path) << "# nobody\n";
  EXPECT_EQ(refusal([&] { keys.add_file(path); }),
            "api keys: " + path.string() + ": expected a key a line, got none");
  std::filesystem::remove(path);
  EXPECT_NE(refusal([&] { keys.add_file(path); }), "");
}

TEST(KeySet, FromTheEnvironment) {
  KeySet keys;
  ::unsetenv("POM_TEST_KEY");
  EXPECT_FALSE(keys.add_environment("POM_TEST_KEY"));
  ::setenv("POM_TEST_KEY", "", 1);
  EXPECT_FALSE(keys.add_environment("POM_TEST_KEY"));
  ::setenv("POM_TEST_KEY", "key-of-anna, key-of-bert,", 1);
  EXPECT_TRUE(keys.add_environment("POM_TEST_KEY"));
  EXPECT_EQ(keys.find("key-of-bert"), 1u);
  ::unsetenv("POM_TEST_KEY");
}

TEST(PresentedKey, ThreeWays) {
  EXPECT_EQ(presented_key(with({{"Authorization", "Bearer abc"}})), "abc");
  EXPECT_EQ(presented_key(with({{"authorization", "bearer  abc "}})), "abc");
  EXPECT_EQ(presented_key(with({{"X-API-Key", "abc"}})), "abc");
  EXPECT_EQ(presented_key(with({{"Authorization", "Basic " + base64_encode("user:a:b")}})), "a:b");
  EXPECT_EQ(presented_key(with({{"X-API-Key", "abc"}, {"Authorization", "Bearer def"}})), "abc");
  EXPECT_EQ(presented_key(with({{"X-API-Key", ""}, {"Authorization", "Bearer def"}})), "def");
}

TEST(PresentedKey, None) {
  EXPECT_FALSE(presented_key(with({})));
  for (const char* value : {"", "Bearer", "Bearer ", "Bearer  ", "Bearerabc", "Digest abc", "Basic",
                            "Basic Og==", "Basic !!!!", "Basic YWJj", "Basic dXNlcjo="})
    EXPECT_FALSE(presented_key(with({{"Authorization", value}}))) << value;
}

TEST(Attempts, TenAtOnceAndTenAMinute) {
  Attempts attempts;
  const Attempts::Time start{};
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(attempts.allowed("a", start)) << i;
    attempts.wrong("a", start);
  }
  EXPECT_FALSE(attempts.allowed("a", start));
  EXPECT_TRUE(attempts.allowed("b", start));
  EXPECT_FALSE(attempts.allowed("a", start + 5900ms));
  EXPECT_TRUE(attempts.allowed("a", start + 6001ms));
  attempts.wrong("a", start + 6001ms);
  EXPECT_FALSE(attempts.allowed("a", start + 6001ms));
  EXPECT_TRUE(attempts.allowed("a", start + 2min));
}

TEST(Attempts, FloodsOfAddressesAreForgotten) {
  Attempts attempts;
  Attempts::Time now{};
  for (int i = 0; i < 10'000; ++i) attempts.wrong("address " + std::to_string(i), now += 1us);
  EXPECT_EQ(attempts.addresses(), Attempts::max_addresses);
}

TEST(CheckKey, AllVerdicts) {
  KeySet keys;
  keys.add("the-right-key");
  Attempts attempts;
  const Attempts::Time now{};
  const HttpRequest right = with({{"X-API-Key", "the-right-key"}}), wrong = with({{"X-API-Key", "another"}});
  EXPECT_EQ(check_key(with({}), keys, attempts, now).verdict, KeyVerdict::missing);
  EXPECT_EQ(check_key(right, keys, attempts, now).verdict, KeyVerdict::right);
  EXPECT_EQ(check_key(right, keys, attempts, now).key, 0u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(check_key(wrong, keys, attempts, now).verdict, KeyVerdict::wrong);
  EXPECT_EQ(check_key(wrong, keys, attempts, now).verdict, KeyVerdict::too_many);
  EXPECT_EQ(check_key(right, keys, attempts, now).verdict, KeyVerdict::too_many);  // guessing ends
  EXPECT_EQ(check_key(right, keys, attempts, now + 1min).verdict, KeyVerdict::right);
  HttpRequest elsewhere = right;
  elsewhere.client = "192.0.2.2";
  EXPECT_EQ(check_key(elsewhere, keys, attempts, now).verdict, KeyVerdict::right);
}

// ---- names ----

TEST(Access, HostsOfOurs) {
  const Access access({"pom.example", "192.0.2.7", "[2001:db8::1]"}, {});
  for (const char* host : {"localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:1", "[::1]",
                           "[::1]:80", "pom.example", "POM.example:443", "192.0.2.7:80", "[2001:DB8::1]:80"})
    EXPECT_TRUE(access.host_allowed(with({{"Host", host}}))) << host;
  for (const char* host :
       {"evil.example", "localhost.evil.example", "evil-localhost", "127.0.0.2", "127.0.0.1.evil.example",
        "pom.example.evil", "a.pom.example", "", "0.0.0.0", "[::]", "[::2]", "2130706433", "localhost:x"})
    EXPECT_FALSE(access.host_allowed(with({{"Host", host}}))) << host;
  EXPECT_TRUE(access.host_allowed(with({})));
}

TEST(Access, AnyHost) {
  EXPECT_TRUE(Access({"*"}, {}).host_allowed(with({{"Host", "whatever.example"}})));
  EXPECT_FALSE(Access({}, {}).host_allowed(with({{"Host", "whatever.example"}})));
}

TEST(Access, WhatMayBeAllowed) {
  EXPECT_EQ(refusal([] { Access({"a:80"}, {}); }),
            "allowed host: expected a name without a port, got \"a:80\"");
  EXPECT_EQ(refusal([] { Access({}, {"*"}); }),
            "allowed origin: expected one such as https://example.org, got \"*\"");
  for (const char* origin :
       {"", "null", "example.org", "https://", "https://a/b", "ftp://a", "https://a:x", "https://u@a"})
    EXPECT_NE(refusal([&] { Access({}, {origin}); }), "") << origin;
  EXPECT_EQ(refusal([] { Access({}, {"https://a.example", "http://localhost:3000"}); }), "");
}

// ---- origins ----

bool from(const char* origin, const char* host = "localhost:8000") {
  static const Access access({}, {"https://app.example", "http://localhost:3000"});
  return access.origin_allowed(with({{"Host", host}, {"Origin", origin}}));
}

TEST(Access, OriginsOfOursAndGivenOnes) {
  EXPECT_TRUE(from("http://localhost:8000"));
  EXPECT_TRUE(from("http://LOCALHOST:8000"));
  EXPECT_TRUE(from("https://pom.example", "pom.example"));  // behind a proxy with TLS
  EXPECT_TRUE(from("http://pom.example", "pom.example"));
  EXPECT_TRUE(from("http://pom.example:80", "pom.example"));
  EXPECT_TRUE(from("https://app.example"));
  EXPECT_TRUE(from("https://app.example:443"));
  EXPECT_TRUE(from("http://localhost:3000"));
  for (const char* origin :
       {"http://localhost:8001", "http://localhost", "http://127.0.0.1:8000", "https://localhost:80",
        "http://app.example", "https://app.example:444", "https://app.example.evil", "https://evil.example",
        "null", "", "file://", "localhost:8000", "http://localhost:8000/", "http://localhost:8000 evil"})
    EXPECT_FALSE(from(origin)) << origin;
}

TEST(Access, RequestsOfPagesWithoutAnOrigin) {
  const Access access({}, {});
  const auto allowed = [&](Headers headers, const char* method = "GET") {
    headers.add("Host", "localhost");
    return access.origin_allowed(with(std::move(headers), method));
  };
  EXPECT_TRUE(allowed({}, "POST"));  // no browser
  EXPECT_TRUE(allowed({{"Sec-Fetch-Site", "same-origin"}}, "POST"));
  EXPECT_TRUE(allowed({{"Sec-Fetch-Site", "none"}}));
  EXPECT_FALSE(allowed({{"Sec-Fetch-Site", "cross-site"}}));
  EXPECT_FALSE(allowed({{"Sec-Fetch-Site", "Cross-Site"}}, "POST"));
  const Headers link{
      {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "navigate"}, {"Sec-Fetch-Dest", "document"}};
  EXPECT_TRUE(allowed(link));
  EXPECT_FALSE(allowed(link, "POST"));
  EXPECT_FALSE(allowed(
      {{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "navigate"}, {"Sec-Fetch-Dest", "iframe"}}));
  EXPECT_FALSE(allowed(
      {{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "no-cors"}, {"Sec-Fetch-Dest", "document"}}));
}

TEST(Access, HeadersOfCors) {
  const Access access({}, {"https://app.example"});
  Headers given, foreign;
  access.add_cors(with({{"Origin", "https://app.example"}}), given);
  EXPECT_EQ(given.get("Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(given.get("Vary"), "Origin");
  EXPECT_FALSE(given.find("Access-Control-Allow-Credentials"));
  access.add_cors(with({{"Origin", "https://evil.example"}}), foreign);
  EXPECT_FALSE(foreign.find("Access-Control-Allow-Origin"));
  EXPECT_EQ(foreign.get("Vary"), "Origin");
  Headers none;
  Access({}, {}).add_cors(with({{"Origin", "https://app.example"}}), none);
  EXPECT_TRUE(none.all().empty());
}

TEST(Access, Preflight) {
  const Access access({}, {"https://app.example"});
  const Headers asks{{"Origin", "https://app.example"}, {"Access-Control-Request-Method", "POST"}};
  const auto answer = access.preflight(with(asks, "OPTIONS"));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 204);
  EXPECT_EQ(answer->headers.get("Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(answer->headers.get("Access-Control-Allow-Methods"), "GET, HEAD, POST, DELETE");
  EXPECT_FALSE(access.preflight(with(asks, "POST")));
  EXPECT_FALSE(access.preflight(with({{"Origin", "https://app.example"}}, "OPTIONS")));
  EXPECT_FALSE(access.preflight(
      with({{"Origin", "https://evil.example"}, {"Access-Control-Request-Method", "POST"}}, "OPTIONS")));
}

TEST(Forwarded, TheLastAddressThatIsNoProxy) {
  const auto client = [](const char* from, std::vector<std::string> lists,
                         const std::vector<std::string>& proxies) {
    HttpRequest request;
    request.client = from;
    for (std::string& each : lists) request.headers.add("X-Forwarded-For", std::move(each));
    return forwarded_client(request, proxies);
  };
  const std::vector<std::string> local = {"127.0.0.1", "10.0.0.1"};
  EXPECT_EQ(client("127.0.0.1", {"192.0.2.7"}, local), "192.0.2.7");
  EXPECT_EQ(client("127.0.0.1", {"1.1.1.1, 192.0.2.7"}, local), "192.0.2.7");  // the first may say anything
  EXPECT_EQ(client("127.0.0.1", {"192.0.2.7 , 10.0.0.1"}, local), "192.0.2.7");
  EXPECT_EQ(client("127.0.0.1", {"1.1.1.1", "2001:DB8::1"}, local), "2001:db8::1");
  EXPECT_EQ(client("127.0.0.1", {"10.0.0.1"}, local), "10.0.0.1");
  EXPECT_EQ(client("127.0.0.1", {}, local), "127.0.0.1");
  EXPECT_EQ(client("192.0.2.9", {"192.0.2.7"}, local), "192.0.2.9");  // no proxy of ours
  EXPECT_EQ(client("127.0.0.1", {"192.0.2.7"}, {}), "127.0.0.1");
  EXPECT_EQ(client("unix", {"192.0.2.7"}, {"unix"}), "192.0.2.7");
  for (const char* wrong : {"", "unknown", "key 0", "a\nb", "192.0.2.7, <script>", "1.1.1.1,,", "[::1]:80"})
    EXPECT_EQ(client("127.0.0.1", {wrong}, local), "127.0.0.1") << wrong;
  EXPECT_EQ(client("127.0.0.1", {std::string(5000, '1')}, local), "127.0.0.1");
}

}  // namespace
}  // namespace pom::net
