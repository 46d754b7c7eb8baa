// The .mp4 of a live stream while somebody watches it: one encoder for all who want it at the same scale, and
// for each of them a file that begins with a key frame, at 0. Whoever falls behind is let go: nothing waits
// for viewers, and nothing grows.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "pom/io/clip.h"
#include "pom/net/http_server.h"

namespace pom::serve {

class LiveVideo {
 public:
  static constexpr std::size_t most_behind_bytes = std::size_t{4} << 20;
  static constexpr double most_behind_seconds = 4;

  LiveVideo(int scale, double fps) : scale_(scale), fps_(fps) {}
  int scale() const { return scale_; }  // each pixel becomes scale x scale

  // On the pool, a block after the other: what these frames add to the file, first of all its head. Throws
  // pom::Error.
  std::vector<io::ClipPiece> encode(std::span<const io::Image> frames);

  // On the server's thread. `now` is a steady clock's.
  void join(std::shared_ptr<net::BodyStream> body);
  void leave(const std::shared_ptr<net::BodyStream>& body);
  void give(std::vector<io::ClipPiece> pieces, double now);
  void abort();  // it cannot be made
  std::size_t viewers() const { return viewers_.size(); }

 private:
  struct Viewer {
    std::shared_ptr<net::BodyStream> body;
    bool begun = false;
    std::uint64_t begin = 0;   // the time of its first fragment, which becomes 0
    double behind_since = -1;  // something waits for it; -1: nothing
  };
  void begin(Viewer& viewer) const;
  static void send(const Viewer& viewer, const net::Bytes& fragment);
  static bool too_slow(Viewer& viewer, double now);

  const int scale_;
  const double fps_;
  // The pool's.
  std::unique_ptr<io::ClipWriter> writer_;
  std::vector<io::ClipPiece> made_;
  // The server's thread's.
  net::Bytes head_;
  std::deque<net::Bytes> held_;  // fragments since the last key, for whoever comes
  std::size_t held_bytes_ = 0;
  std::vector<Viewer> viewers_;
};

}  // namespace pom::serve
