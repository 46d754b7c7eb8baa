// How long ranks take to exchange bytes, from stated link speeds: for plans of runs on machines that are not
// here. N ranks, g of them on a machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pom::train {

// What one rank can send while it receives as much.
struct Link {
  std::string name;
  double bytes_per_second = 0;
  double latency = 0;  // seconds until a message's first byte is there
  std::string source;  // of the numbers, in words
};

// "nvlink", "ib400", …; or "GB/s", "NAME=GB/s", "NAME=GB/s:MICROSECONDS". An unknown name is an error that
// lists the known ones.
Link link_of(std::string_view text);
const std::vector<Link>& known_links();

struct Cluster {
  std::int64_t ranks = 1, per_node = 8;
  Link inside, between;  // of the ranks of a machine; of machines, one such link for each rank

  std::int64_t nodes() const { return ranks <= per_node ? 1 : ranks / per_node; }
  std::int64_t neighbours() const { return ranks < per_node ? ranks : per_node; }  // of one machine, g
};

// That ranks fill their machines; an error that begins with `where`.
void check_cluster(const Cluster& cluster, std::string_view where);

// `bytes` are those of the whole: what each rank has before a sum, and all have after a gather.
//   sum       all have the sum of all: twice the whole goes past every rank, in rings
//   gather    all get the parts of all: once
//   exchange  each rank gets its part of everyone's: once, straight from rank to rank
enum class Collective { sum, gather, exchange };
double collective_seconds(Collective kind, double bytes, const Cluster& cluster);

// Of a group of neighbours among the ranks of a cluster.
Cluster neighbours_of(const Cluster& cluster, std::int64_t ranks);

}  // namespace pom::train
