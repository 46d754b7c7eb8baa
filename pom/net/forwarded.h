// Who asks, behind proxies: what X-Forwarded-For or Forwarded says, as far as proxies of ours have said it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/net/http_message.h"

namespace pom::net {

class TrustedProxies {
 public:
  // "10.0.0.1", "10.0.0.0/8", "::1", "fd00::/8", or "unix" for whoever comes through a socket of that kind.
  // Throws pom::Error for anything else.
  explicit TrustedProxies(const std::vector<std::string>& proxies = {});

  bool empty() const { return ranges_.empty() && !unix_; }
  bool trusts(std::string_view address) const;

  // The last address in X-Forwarded-For, where there is none in Forwarded, that is no trusted proxy; `peer`
  // where it is none itself, or nothing is said. A proxy has to set the first of the two, or to take away
  // what clients say there.
  std::string client_of(const HttpRequest& request, const std::string& peer) const;

 private:
  struct Address {
    std::array<std::uint8_t, 16> bytes{};
    bool v6 = false;
  };
  struct Range {
    Address address;
    int bits = 0;
  };
  static std::optional<Address> parse(std::string_view text);
  static std::string text_of(const Address& address);
  bool trusts(const Address& address) const;

  std::vector<Range> ranges_;
  bool unix_ = false;
};

}  // namespace pom::net
