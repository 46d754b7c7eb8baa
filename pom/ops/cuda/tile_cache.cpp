// A line is "<tile> <product>". Lines of another kind are passed over: they may be a later version's.
#include "pom/ops/cuda/tile_cache.h"

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "pom/base/error.h"
#include "pom/io/atomic_file.h"

namespace pom::ops {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kOff = "off";

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

TileCache::TileCache(fs::path file) : file_(std::move(file)), tiles_(read()) {}

std::optional<int> TileCache::find(const std::string& gemm) const {
  const std::lock_guard lock(mutex_);
  const auto found = tiles_.find(gemm);
  return found == tiles_.end() ? std::nullopt : std::optional(found->second);
}

void TileCache::keep(const std::string& gemm, int tile) {
  const std::lock_guard lock(mutex_);
  tiles_[gemm] = tile;
  if (file_.empty()) return;
  Tiles all = read();
  for (const auto& [name, index] : tiles_) all[name] = index;
  std::string text;
  for (const auto& [name, index] : all)
    text.append(std::to_string(index)).append(" ").append(name).append("\n");
  std::error_code error;
  fs::create_directories(file_.parent_path(), error);
  try {
    io::write_file_atomically(file_, text);
  } catch (const Error&) {  // the next process measures again
  }
}

TileCache::Tiles TileCache::parse(std::string_view text) {
  Tiles tiles;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    int tile = 0;
    const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), tile);
    if (error != std::errc() || rest == line.data() + line.size() || *rest != ' ' || tile < 0) continue;
    tiles[std::string(rest + 1, line.data() + line.size())] = tile;
  }
  return tiles;
}

TileCache::Tiles TileCache::read() const {
  std::ifstream in(file_, std::ios::binary);
  if (file_.empty() || !in) return {};
  std::ostringstream text;
  text << in.rdbuf();
  return parse(std::move(text).str());
}

fs::path TileCache::default_file() {
  if (switched_off()) return {};
  if (const std::string_view file = variable("POM_TILES"); !file.empty()) return file;
  if (const std::string_view cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "libpom" / "tiles.txt";
  if (const std::string_view home = variable("HOME"); !home.empty())
    return fs::path(home) / ".cache" / "libpom" / "tiles.txt";
  return {};
}

bool TileCache::switched_off() {
  return variable("POM_TILES") == kOff;
}

}  // namespace pom::ops
