// Pictures and clips that were made, for as long as the server keeps them: in memory up to a number of bytes
// and for a time, and in a folder too where there is one, which is the truth after a restart.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pom/generate/request.h"
#include "pom/net/http_message.h"
#include "pom/serve/json.h"
#include "pom/serve/owners.h"

namespace pom::serve {

struct Picture {
  std::string id;         // 32 hexadecimal digits
  std::string extension;  // "png", "mp4", "gif"
  net::Bytes bytes;       // the file; undefined where it is in the folder alone
  std::size_t size = 0;   // of the file
  double created = 0;     // seconds since 1970, to be shown
  double made = 0;        // when, by a steady clock
  std::string model;
  std::string client;         // whose it is; empty: see owner
  std::string owner;          // of one that the folder had at the start (owners.h); empty: everybody's
  generate::Request request;  // complete
  std::int64_t frames = 1;

  std::string url() const;
  const char* type() const;  // "image/png"
};

using PicturePointer = std::shared_ptr<const Picture>;
Json picture_json(const Picture& picture);

// Of an encoder, to be sent.
net::Bytes shared_bytes(std::span<const std::byte> bytes);

// 32 hexadecimal digits of the system's randomness.
std::string random_id();
bool is_id(std::string_view text);

// Not for two threads at once, but for write_file and read_file.
class Pictures {
 public:
  struct Options {
    std::size_t bytes = std::size_t{256} << 20;
    double seconds = 3600;
    std::filesystem::path folder;  // empty: memory alone
    std::size_t folder_bytes = 0;  // of our files there, at most: the oldest go; 0: any
  };
  explicit Pictures(Options options);  // reads what the folder has

  // `key`: of what was asked, for find_made; empty: nobody will ask.
  void add(PicturePointer picture, const std::string& key = {});
  PicturePointer find(std::string_view id) const;  // nullptr where there is none, or no more
  // One that the same complete request has made on the same weights.
  PicturePointer find_made(const std::string& key) const;
  bool remove(std::string_view id);
  // Those of a client and everybody's, newest first, older than the one called `before` (empty: all), at most
  // so many.
  struct Page {
    std::vector<PicturePointer> pictures;
    std::string next;  // to ask for more; empty: that is all
  };
  Page list(const std::string& client, std::string_view before, std::size_t limit) const;
  void forget_old(double now);  // by a steady clock
  std::size_t bytes() const { return held_; }
  std::size_t folder_bytes() const { return in_folder_; }
  std::size_t size() const { return order_.size(); }

  // The file of a picture in the folder, whole or not at all; and its bytes. From any thread.
  void write_file(const Picture& picture) const;
  net::Bytes read_file(const Picture& picture) const;
  void remove_file(const Picture& picture) const;
  // When it will be forgotten, in seconds since 1970; nothing where it is not by time.
  std::optional<double> expires(const Picture& picture) const;
  bool visible(const Picture& picture, const std::string& client) const;
  bool has_folder() const { return !options_.folder.empty(); }

 private:
  void read_folder();
  std::map<std::string, std::string> read_owners() const;
  void tidy_owners() const;
  void keep_within();
  void drop(const std::string& id);

  Options options_;
  mutable Owners owners_;
  std::map<std::string, PicturePointer, std::less<>> all_;
  std::deque<std::string> order_;            // oldest first
  std::map<std::string, std::string> made_;  // key to id
  std::map<std::string, std::string> keys_;  // id to key
  std::size_t held_ = 0, in_folder_ = 0;     // bytes
  std::size_t lines_ = 0;                    // of owners.txt, when it was read
};

}  // namespace pom::serve
