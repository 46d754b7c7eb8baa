#include "pom/net/forwarded.h"

#include <algorithm>
#include <arpa/inet.h>
#include <charconv>

#include "pom/base/error.h"
#include "pom/base/shown.h"

namespace pom::net {
namespace {

constexpr std::size_t most_hops = 32;  // that are looked at

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

template <class Take>
void each_part(std::string_view text, char separator, Take&& take) {
  while (true) {
    const std::size_t end = text.find(separator);
    take(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// "1.2.3.4", "1.2.3.4:80", "[::1]", "[::1]:80", any of them in quotation marks: the address.
std::string_view without_port(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    return end == std::string_view::npos ? std::string_view() : text.substr(1, end - 1);
  }
  const std::size_t colon = text.find(':');
  const bool port = colon != std::string_view::npos && text.find(':', colon + 1) == std::string_view::npos;
  return port ? text.substr(0, colon) : text;
}

// "for=1.2.3.4;proto=https": what is said of `for`.
std::string_view said_for(std::string_view element) {
  std::string_view found;
  each_part(element, ';', [&](std::string_view pair) {
    const std::size_t equals = pair.find('=');
    if (equals != std::string_view::npos && same_name(trimmed(pair.substr(0, equals)), "for"))
      found = trimmed(pair.substr(equals + 1));
  });
  return found;
}

// In the order in which they were passed; something for each hop, whatever it says.
std::vector<std::string_view> hops(const HttpRequest& request, std::string_view header, bool pairs) {
  std::vector<std::string_view> all;
  for (const auto& [name, value] : request.headers.all())
    if (same_name(name, header))
      each_part(value, ',',
                [&](std::string_view part) { all.push_back(without_port(pairs ? said_for(part) : part)); });
  return all;
}

}  // namespace

std::optional<TrustedProxies::Address> TrustedProxies::parse(std::string_view text) {
  const std::string whole(text);
  Address address;
  if (::inet_pton(AF_INET, whole.c_str(), address.bytes.data()) == 1) return address;
  if (::inet_pton(AF_INET6, whole.c_str(), address.bytes.data()) != 1) return std::nullopt;
  // ::ffff:1.2.3.4 is 1.2.3.4.
  constexpr std::array<std::uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::equal(mapped.begin(), mapped.end(), address.bytes.begin())) {
    Address v4;
    std::copy_n(address.bytes.begin() + 12, 4, v4.bytes.begin());
    return v4;
  }
  address.v6 = true;
  return address;
}

std::string TrustedProxies::text_of(const Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(address.v6 ? AF_INET6 : AF_INET, address.bytes.data(), text, sizeof text);
  return text;
}

TrustedProxies::TrustedProxies(const std::vector<std::string>& proxies) {
  for (const std::string& text : proxies) {
    if (text == "unix") {
      unix_ = true;
      continue;
    }
    const std::size_t slash = text.find('/');
    const std::optional<Address> address = parse(text.substr(0, slash));
    const int most = address && address->v6 ? 128 : 32;
    int bits = most;
    bool right = address.has_value();
    if (slash != std::string::npos) {
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data() + slash + 1, end, bits);
      right = right && error == std::errc() && stop == end && bits >= 0 && bits <= most;
    }
    check(right, "trusted proxy: expected an address such as 10.0.0.1 or 10.0.0.0/8, or unix, got \"",
          shown(text), "\"");
    ranges_.push_back({*address, bits});
  }
}

bool TrustedProxies::trusts(const Address& address) const {
  return std::ranges::any_of(ranges_, [&](const Range& range) {
    if (range.address.v6 != address.v6) return false;
    for (int bit = 0; bit < range.bits; ++bit) {
      const auto place = static_cast<std::size_t>(bit / 8);
      const int mask = 0x80 >> bit % 8;
      if ((range.address.bytes[place] & mask) != (address.bytes[place] & mask)) return false;
    }
    return true;
  });
}

bool TrustedProxies::trusts(std::string_view text) const {
  if (text == "unix") return unix_;
  const std::optional<Address> address = parse(text);
  return address && trusts(*address);
}

std::string TrustedProxies::client_of(const HttpRequest& request, const std::string& peer) const {
  if (!trusts(peer)) return peer;
  std::vector<std::string_view> all = hops(request, "X-Forwarded-For", false);
  if (all.empty()) all = hops(request, "Forwarded", true);
  std::string client = peer;
  for (std::size_t i = 0; i < std::min(all.size(), most_hops); ++i) {
    const std::optional<Address> address = parse(all[all.size() - 1 - i]);
    if (!address) break;  // "unknown", or a name that a proxy hides behind
    client = text_of(*address);
    if (!trusts(*address)) break;
  }
  return client;
}

}  // namespace pom::net
