// The keys of auth.h.
#include <algorithm>
#include <cstdlib>

#include "pom/base/error.h"
#include "pom/io/read_file.h"
#include "pom/net/auth.h"
#include "pom/net/base64.h"

namespace pom::net {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

io::Sha256::Digest digest_of(std::string_view key) {
  io::Sha256 hash;
  hash.update(key);
  return hash.digest();
}

template <class Call>
void for_each_part(std::string_view text, char mark, Call call) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(mark, begin), text.size());
    call(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
}

// What follows "Bearer " or "Basic ", in whatever case.
std::optional<std::string_view> after_scheme(std::string_view value, std::string_view scheme) {
  if (value.size() <= scheme.size() || value[scheme.size()] != ' ') return std::nullopt;
  if (!same_name(value.substr(0, scheme.size()), scheme)) return std::nullopt;
  return trimmed(value.substr(scheme.size() + 1));
}

std::optional<std::string> authorization_key(std::string_view value) {
  if (const auto key = after_scheme(value, "Bearer")) return std::string(*key);
  const auto basic = after_scheme(value, "Basic");
  if (!basic) return std::nullopt;
  const std::optional<std::string> plain = base64_decode(*basic);
  if (!plain) return std::nullopt;
  const std::size_t colon = plain->find(':');
  if (colon == std::string::npos) return std::nullopt;
  return plain->substr(colon + 1);
}

}  // namespace

void KeySet::add(std::string_view key) {
  const auto printable = [](char c) { return c > 0x20 && c < 0x7f; };
  check(key.size() >= min_key && key.size() <= max_key && std::ranges::all_of(key, printable),
        "api key: expected ", min_key, " to ", max_key, " printable characters, got ", key.size(),
        key.size() >= min_key && key.size() <= max_key ? " with others among them" : "");
  check(digests_.size() < max_keys, "api keys: expected at most ", max_keys);
  digests_.push_back(digest_of(key));
}

void KeySet::add_file(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = io::detail::read_file(path, "api keys", 1 << 20);
  const std::size_t before = size();
  for_each_part({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, '\n',
                [&](std::string_view line) {
                  if (!line.empty() && line.front() != '#') add(line);
                });
  check(size() > before, "api keys: ", path.string(), ": expected a key a line, got none");
}

bool KeySet::add_environment(const char* name) {
  const char* value = std::getenv(name);
  const std::size_t before = size();
  for_each_part(value ? value : "", ',', [&](std::string_view key) {
    if (!key.empty()) add(key);
  });
  return size() > before;
}

std::optional<std::size_t> KeySet::find(std::string_view key) const {
  const io::Sha256::Digest digest = digest_of(key);
  std::size_t found = digests_.size();
  for (std::size_t i = 0; i < digests_.size(); ++i) {
    std::byte difference{0};
    for (std::size_t k = 0; k < digest.size(); ++k) difference |= digest[k] ^ digests_[i][k];
    found = difference == std::byte{0} ? i : found;
  }
  if (found == digests_.size()) return std::nullopt;
  return found;
}

std::string KeySet::name(std::size_t i) const {
  io::Sha256 hash;
  hash.update("name of a key\n");
  hash.update(digests_.at(i));
  return hash.hex().substr(0, 32);
}

std::optional<std::string> presented_key(const HttpRequest& request) {
  std::optional<std::string> key(request.headers.get("X-API-Key"));
  if (key->empty()) key = authorization_key(request.headers.get("Authorization"));
  if (key && key->empty()) return std::nullopt;
  return key;
}

// They drain away at a constant rate: ten within a minute.
double Attempts::count_at(const Count& count, Time now) {
  const double minutes = std::chrono::duration<double, std::ratio<60>>(now - count.since).count();
  return std::max(count.wrong - most * std::max(minutes, 0.0), 0.0);
}

bool Attempts::allowed(std::string_view address, Time now) const {
  const auto found = all_.find(address);
  return found == all_.end() || count_at(found->second, now) <= most - 1;
}

void Attempts::wrong(std::string_view address, Time now) {
  auto found = all_.find(address);
  if (found == all_.end()) {
    if (all_.size() >= max_addresses)
      all_.erase(std::ranges::min_element(all_, {}, [](const auto& each) { return each.second.since; }));
    found = all_.emplace(std::string(address), Count{0, now}).first;
  }
  found->second = {count_at(found->second, now) + 1, now};
}

KeyCheck check_key(const HttpRequest& request, const KeySet& keys, Attempts& attempts, Attempts::Time now) {
  const std::optional<std::string> key = presented_key(request);
  if (!key) return {KeyVerdict::missing};
  if (!attempts.allowed(request.client, now)) return {KeyVerdict::too_many};
  const std::optional<std::size_t> which = keys.find(*key);
  if (which) return {KeyVerdict::right, which};
  attempts.wrong(request.client, now);
  return {KeyVerdict::wrong};
}

}  // namespace pom::net
