// Private to the room: which tile was fastest for which product on which GPU, kept from one process to the
// next in a small text file. The results of a product are the same bits with every tile, so what is in the
// file, or that it is not there, shows in the time alone.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace pom::ops {

class TileCache {
 public:
  // Reads the file if there is one; an empty path keeps nothing. What cannot be read is measured anew.
  explicit TileCache(std::filesystem::path file);

  std::optional<int> find(const std::string& gemm) const;
  // Writes the file whole, with what other processes have added since; a folder that cannot be written to
  // is no error.
  void keep(const std::string& gemm, int tile);

  // POM_TILES (a path, or "off"), else libpom/tiles.txt where the system keeps caches.
  static std::filesystem::path default_file();
  static bool switched_off();  // POM_TILES=off: nothing is measured either

 private:
  using Tiles = std::map<std::string, int>;
  static Tiles parse(std::string_view text);
  Tiles read() const;

  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  Tiles tiles_;
};

}  // namespace pom::ops
