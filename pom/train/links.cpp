#include "pom/train/links.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"

namespace pom::train {
namespace {

constexpr double giga = 1e9, micro = 1e-6;
// Of a data sheet's rate, what large messages reach: a statement, not a measurement of ours.
constexpr double reached = 0.8, default_latency = 5 * micro;

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

Link stated(std::string_view name, double sheet, double latency, std::string_view what) {
  return {.name = std::string(name),
          .bytes_per_second = sheet * giga * reached,
          .latency = latency * micro,
          .source = detail::concat(what, ": ", sheet, " GB/s each way by the data sheet, ", reached,
                                   " of it reached and ", latency, " us of latency assumed")};
}

// "80" or "80:3": GB/s and microseconds.
Link given(std::string_view name, std::string_view numbers, std::string_view whole) {
  const std::size_t colon = numbers.find(':');
  const std::optional<double> rate = number_of(numbers.substr(0, colon));
  const std::optional<double> latency =
      colon == std::string_view::npos ? default_latency / micro : number_of(numbers.substr(colon + 1));
  check(rate && *rate > 0 && *rate < 1e6 && latency && *latency >= 0 && *latency < 1e6,
        "link: expected GB/s, or GB/s:MICROSECONDS, above 0 (\"50\", \"mine=50:5\"), got \"", shown(whole),
        "\"");
  return {.name = std::string(name),
          .bytes_per_second = *rate * giga,
          .latency = *latency * micro,
          .source = detail::concat(*rate, " GB/s each way and ", *latency, " us, as given")};
}

double rounds(std::int64_t ranks) {  // of a tree
  return ranks > 1 ? std::ceil(std::log2(static_cast<double>(ranks))) : 0;
}

}  // namespace

const std::vector<Link>& known_links() {
  static const std::vector<Link> links = {
      stated("nvlink", 450, 3, "NVLink 4 of an H100 or H200"),
      stated("nvlink3", 300, 3, "NVLink 3 of an A100"),
      stated("nvlink5", 900, 3, "NVLink 5 of a B200"),
      stated("pcie4", 32, 5, "PCIe 4, 16 lanes"),
      stated("pcie5", 64, 5, "PCIe 5, 16 lanes"),
      stated("ib100", 12.5, 5, "InfiniBand, 100 Gbit/s for each GPU"),
      stated("ib200", 25, 5, "InfiniBand, 200 Gbit/s for each GPU"),
      stated("ib400", 50, 5, "InfiniBand, 400 Gbit/s for each GPU"),
      stated("ib800", 100, 5, "InfiniBand, 800 Gbit/s for each GPU"),
      stated("eth10", 1.25, 30, "Ethernet, 10 Gbit/s for each GPU"),
      stated("eth25", 3.125, 30, "Ethernet, 25 Gbit/s for each GPU"),
      stated("eth100", 12.5, 30, "Ethernet, 100 Gbit/s for each GPU"),
  };
  return links;
}

Link link_of(std::string_view text) {
  for (const Link& link : known_links())
    if (link.name == text) return link;
  const std::size_t equals = text.find('=');
  if (equals != std::string_view::npos && equals > 0)
    return given(text.substr(0, equals), text.substr(equals + 1), text);
  if (!text.empty() && (text[0] >= '0' && text[0] <= '9')) return given(text, text, text);
  std::string names;
  std::vector<std::string> candidates;
  for (const Link& link : known_links()) {
    names += (names.empty() ? "" : ", ") + link.name;
    candidates.push_back(link.name);
  }
  fail("link: expected one of ", names, ", or NAME=GB/s, got \"", shown(text), "\"",
       suggestion(text, candidates));
}

void check_cluster(const Cluster& c, std::string_view where) {
  check(c.ranks >= 1, where, "expected at least 1 GPU, got ", c.ranks);
  check(c.ranks <= c.per_node || c.ranks % c.per_node == 0, where, "expected whole machines of ", c.per_node,
        " GPUs, got ", c.ranks);
}

// Rings use all links of a machine at once, so that a node's links to others count together. Straight from
// rank to rank, each has only its own.
double collective_seconds(Collective kind, double bytes, const Cluster& c) {
  if (c.ranks == 1) return 0;
  const auto n = static_cast<double>(c.ranks), g = static_cast<double>(c.neighbours());
  const bool one = c.nodes() == 1;
  const double inside = c.inside.bytes_per_second, between = c.between.bytes_per_second;
  if (kind == Collective::exchange) {
    const double near = bytes * (g - 1) / n / inside, far = one ? 0 : bytes * (n - g) / n / between;
    const double messages = (g - 1) * c.inside.latency + (one ? 0 : (n - g) * c.between.latency);
    return std::max(near, far) + messages;
  }
  const double ring = one ? inside : std::min(inside, g * between);
  const double passes = kind == Collective::sum ? 2 : 1;
  const double waiting =
      rounds(c.neighbours()) * c.inside.latency + (one ? 0 : rounds(c.nodes()) * c.between.latency);
  return passes * (bytes * (n - 1) / n / ring + waiting);
}

Cluster neighbours_of(const Cluster& c, std::int64_t ranks) {
  Cluster group = c;
  group.ranks = ranks;
  return group;
}

}  // namespace pom::train
