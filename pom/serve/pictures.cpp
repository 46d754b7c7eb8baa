#include "pom/serve/pictures.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <random>
#include <sys/stat.h>
#include <unistd.h>

#include "pom/base/error.h"
#include "pom/generate/metadata.h"
#include "pom/io/atomic_file.h"
#include "pom/io/file_descriptor.h"
#include "pom/io/file_text.h"

namespace pom::serve {
namespace {

namespace fs = std::filesystem;

constexpr const char* owners_file = "owners.txt";
constexpr const char* nobody = "-";            // owner of what no line names
const std::string everybody(32, '0');          // in a line: what was there before there were owners
constexpr std::size_t most_lines_gone = 4096;  // lines of pictures that are gone, before they go too

constexpr std::array<std::pair<const char*, const char*>, 3> kinds = {
    {{"png", "image/png"}, {"mp4", "video/mp4"}, {"gif", "image/gif"}}};

double seconds_of(const struct timespec& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

net::Bytes shared_bytes(std::span<const std::byte> bytes) {
  return std::make_shared<const std::string>(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::string random_id() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t bits = device();
    for (int shift = 28; shift >= 0; shift -= 4) id += "0123456789abcdef"[(bits >> shift) & 15];
  }
  return id;
}

bool is_id(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string Picture::url() const {
  return "/pom/v1/pictures/" + id + "." + extension;
}

const char* Picture::type() const {
  for (const auto& [name, type] : kinds)
    if (extension == name) return type;
  return "application/octet-stream";
}

Json picture_json(const Picture& picture) {
  const generate::Request& r = picture.request;
  return {{"id", picture.id},
          {"url", picture.url()},
          {"type", picture.type()},
          {"created", picture.created},
          {"model", picture.model},
          {"subject", r.subject()},
          {"seed", r.own_seed()},
          {"width", r.width.value_or(0)},
          {"height", r.height.value_or(0)},
          {"frames", picture.frames},
          {"request", Json::parse(generate::request_json(r))}};
}

Pictures::Pictures(Options options) : options_(std::move(options)), owners_(options_.folder) {
  if (!has_folder()) return;
  fs::create_directories(options_.folder);
  io::remove_temporaries(options_.folder);
  read_folder();
  keep_within();
  tidy_owners();
}

// What it tidies may wait: a disk that is full is no reason not to start.
void Pictures::tidy_owners() const {
  const bool first = !fs::exists(options_.folder / owners_file) && !all_.empty();
  if (!first && lines_ < all_.size() + most_lines_gone) return;
  std::string lines;
  for (const auto& [id, picture] : all_)
    if (picture->owner != nobody)
      lines += id + " " + (picture->owner.empty() ? everybody : picture->owner) + "\n";
  try {
    io::write_file_atomically(options_.folder / owners_file, lines);
  } catch (const Error&) {
  }
}

// A line for each: the picture's id, the owner's name. What is no such line was not written whole, and
// nothing is glued to it: each begins on a line of its own.
std::map<std::string, std::string> Pictures::read_owners() const {
  std::map<std::string, std::string> owners;
  std::ifstream file(options_.folder / owners_file);
  for (std::string line; std::getline(file, line);) {
    const std::string id = line.substr(0, line.find(' '));
    const std::string owner = line.size() == 65 ? line.substr(33) : std::string();
    if (is_id(id) && is_id(owner)) owners[id] = owner;
  }
  return owners;
}

// The oldest go, but never the last one.
void Pictures::keep_within() {
  while (options_.folder_bytes > 0 && in_folder_ > options_.folder_bytes && order_.size() > 1)
    remove(order_.front());
}

// Whatever is named as our files are and says what made it. The rest is somebody else's and stays.
void Pictures::read_folder() {
  const std::map<std::string, std::string> owners = read_owners();
  const bool known_owners = fs::exists(options_.folder / owners_file);
  lines_ = owners.size();
  std::vector<std::shared_ptr<Picture>> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder)) {
    const std::string id = entry.path().stem().string(), extension = entry.path().extension().string();
    const bool known = std::ranges::any_of(
        kinds, [&](const auto& kind) { return extension == std::string(".") + kind.first; });
    if (!is_id(id) || !known || !entry.is_regular_file() || entry.is_symlink()) continue;
    try {
      const generate::Origin origin = generate::origin_of(io::read_file_text(entry.path()), id);
      struct stat status {};
      if (::stat(entry.path().c_str(), &status) != 0) continue;
      auto picture = std::make_shared<Picture>();
      picture->id = id, picture->extension = extension.substr(1);
      if (const auto owner = owners.find(id); owner != owners.end())
        picture->owner = owner->second == everybody ? std::string() : owner->second;
      else if (known_owners)
        picture->owner = nobody;
      picture->size = static_cast<std::size_t>(status.st_size);
      picture->created = seconds_of(status.st_mtim);
      picture->model = origin.model, picture->request = origin.request;
      picture->frames = origin.request.frames ? std::max(1L, std::atol(origin.request.frames->c_str())) : 1;
      found.push_back(std::move(picture));
    } catch (const Error&) {
      continue;
    }
  }
  std::ranges::sort(found, {}, [](const auto& picture) { return picture->created; });
  for (auto& picture : found) {
    in_folder_ += picture->size;
    order_.push_back(picture->id);
    all_.emplace(picture->id, std::move(picture));
  }
}

void Pictures::add(PicturePointer picture, const std::string& key) {
  check(!all_.contains(picture->id), "pictures: expected an id that is new, got ", picture->id);
  held_ += picture->bytes ? picture->bytes->size() : 0;
  order_.push_back(picture->id);
  if (!key.empty()) made_[key] = picture->id, keys_[picture->id] = key;
  all_.emplace(picture->id, std::move(picture));
  while (held_ > options_.bytes && !has_folder() && order_.size() > 1) drop(order_.front());
  if (!has_folder()) return;
  in_folder_ += all_.at(order_.back())->size;
  keep_within();
  // The folder has them: the oldest need not be in memory.
  for (auto id = order_.begin(); held_ > options_.bytes && id != order_.end(); ++id) {
    PicturePointer& old = all_.at(*id);
    if (!old->bytes) continue;
    held_ -= old->bytes->size();
    auto light = std::make_shared<Picture>(*old);
    light->bytes = nullptr;
    old = std::move(light);
  }
}

PicturePointer Pictures::find(std::string_view id) const {
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : found->second;
}

PicturePointer Pictures::find_made(const std::string& key) const {
  const auto found = made_.find(key);
  return found == made_.end() ? nullptr : find(found->second);
}

void Pictures::drop(const std::string& id) {
  const std::string own = id;  // it may be the one in order_
  const auto found = all_.find(own);
  if (found == all_.end()) return;
  if (found->second->bytes) held_ -= found->second->bytes->size();
  if (has_folder()) in_folder_ -= std::min(in_folder_, found->second->size);
  if (const auto key = keys_.find(own); key != keys_.end()) {
    if (const auto made = made_.find(key->second); made != made_.end() && made->second == own)
      made_.erase(made);
    keys_.erase(key);
  }
  all_.erase(found);
  std::erase(order_, own);
}

bool Pictures::remove(std::string_view id) {
  const PicturePointer picture = find(id);
  if (!picture) return false;
  remove_file(*picture);
  drop(picture->id);
  return true;
}

bool Pictures::visible(const Picture& picture, const std::string& client) const {
  if (!picture.client.empty()) return picture.client == client;
  return picture.owner.empty() || picture.owner == owners_.of(client);
}

Pictures::Page Pictures::list(const std::string& client, std::string_view before, std::size_t limit) const {
  auto place = order_.rbegin();
  if (!before.empty()) {
    place = std::find(order_.rbegin(), order_.rend(), before);
    if (place != order_.rend()) ++place;
  }
  Page page;
  for (; place != order_.rend() && page.pictures.size() < limit; ++place) {
    const PicturePointer& picture = all_.find(*place)->second;
    if (visible(*picture, client)) page.pictures.push_back(picture);
  }
  if (place != order_.rend() && !page.pictures.empty()) page.next = page.pictures.back()->id;
  return page;
}

void Pictures::forget_old(double now) {
  if (has_folder()) return;
  while (!order_.empty() && all_.at(order_.front())->made + options_.seconds < now) drop(order_.front());
}

std::optional<double> Pictures::expires(const Picture& picture) const {
  if (has_folder()) return std::nullopt;
  return picture.created + options_.seconds;
}

// Whose it is first, on the disk: a picture is nobody else's at any time.
void Pictures::write_file(const Picture& picture) const {
  if (!has_folder()) return;
  const std::string line = "\n" + picture.id + " " + owners_.of(picture.client) + "\n";
  const io::detail::FileDescriptor file(::open((options_.folder / owners_file).c_str(),
                                               O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  check(file.is_open() && ::write(file.get(), line.data(), line.size()) == std::ssize(line) &&
            ::fdatasync(file.get()) == 0,
        options_.folder.string(), ": cannot write ", owners_file);
  io::write_file_atomically(options_.folder / (picture.id + "." + picture.extension), *picture.bytes);
}

void Pictures::remove_file(const Picture& picture) const {
  std::error_code ignored;
  if (has_folder()) fs::remove(options_.folder / (picture.id + "." + picture.extension), ignored);
}

net::Bytes Pictures::read_file(const Picture& picture) const {
  if (picture.bytes) return picture.bytes;
  if (!has_folder()) return nullptr;
  const fs::path path = options_.folder / (picture.id + "." + picture.extension);
  const io::detail::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.is_open()) return nullptr;
  std::string bytes(picture.size, '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (count <= 0) return nullptr;
    done += static_cast<std::size_t>(count);
  }
  return std::make_shared<const std::string>(std::move(bytes));
}

}  // namespace pom::serve
