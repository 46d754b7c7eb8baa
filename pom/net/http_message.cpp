#include "pom/net/http_message.h"

#include <algorithm>

namespace pom::net {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string lowered(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), lower);
  return result;
}

void Headers::set(std::string_view name, std::string value) {
  const auto is_it = [&](const auto& each) { return same_name(each.first, name); };
  const auto first = std::ranges::find_if(all_, is_it);
  if (first == all_.end()) return add(std::string(name), std::move(value));
  first->second = std::move(value);
  all_.erase(std::remove_if(first + 1, all_.end(), is_it), all_.end());
}

void Headers::add(std::string name, std::string value) {
  all_.emplace_back(std::move(name), std::move(value));
}

std::optional<std::string_view> Headers::find(std::string_view name) const {
  for (const auto& [own, value] : all_)
    if (same_name(own, name)) return value;
  return std::nullopt;
}

std::string_view Headers::get(std::string_view name, std::string_view otherwise) const {
  return find(name).value_or(otherwise);
}

std::size_t Headers::count(std::string_view name) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(all_, [&](const auto& each) { return same_name(each.first, name); }));
}

std::optional<std::string_view> HttpRequest::query_value(std::string_view name) const {
  for (const auto& [own, value] : query)
    if (own == name) return value;
  return std::nullopt;
}

}  // namespace pom::net
