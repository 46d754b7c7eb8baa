#include "pom/train/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <system_error>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/atomic_file.h"
#include "pom/io/json_fields.h"
#include "pom/io/safetensors.h"
#include "pom/io/sha256.h"

namespace pom::train {
namespace {

namespace fs = std::filesystem;
namespace st = io::safetensors;
using models::Weights;

constexpr std::string_view format = "1";

struct Group {
  std::string_view prefix;
  Weights Checkpoint::*tensors;
};
constexpr std::array<Group, 4> groups = {{{"weights/", &Checkpoint::weights},
                                          {"ema/", &Checkpoint::ema},
                                          {"moment1/", &Checkpoint::moment1},
                                          {"moment2/", &Checkpoint::moment2}}};

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

// Of everything in the file but itself. Each part comes after its length, so that no two checkpoints that
// differ are the same bytes to it.
class Digest {
 public:
  Digest(std::string_view state, std::string_view recipe) {
    part(state);
    part(recipe);
  }
  void tensor(const st::TensorView& tensor) {
    part(tensor.name);
    part(st::name(tensor.dtype));
    part(shape_text(tensor.shape));
    hash_.update(std::to_string(tensor.data.size()) + ":");
    hash_.update(tensor.data);
  }
  std::string hex() const { return hash_.hex(); }

 private:
  void part(std::string_view text) {
    hash_.update(std::to_string(text.size()) + ":");
    hash_.update(text);
  }

  io::Sha256 hash_;
};

// ---- the four groups hold the same names and shapes ----

using Shapes = std::map<std::string, std::vector<std::int64_t>, std::less<>>;

void check_alike(const std::array<Shapes, groups.size()>& found, const std::string& where) {
  const Shapes& first = found[0];
  for (std::size_t g = 1; g < groups.size(); ++g) {
    for (const auto& [name, shape] : first) {
      const auto other = found[g].find(name);
      check(other != found[g].end(), where, groups[g].prefix, shown(name), ": missing; expected it next to ",
            groups[0].prefix, shown(name));
      check(other->second == shape, where, groups[g].prefix, shown(name), ": expected shape ",
            shape_text(shape), ", as of ", groups[0].prefix, shown(name), ", got ",
            shape_text(other->second));
    }
    for (const auto& [name, shape] : found[g])
      check(first.contains(name), where, groups[g].prefix, shown(name), ": expected ", groups[0].prefix,
            shown(name), " next to it, got nothing");
  }
}

// ---- writing ----

st::Dtype stored_dtype(const at::Tensor& tensor, const std::string& where) {
  if (tensor.scalar_type() == at::kFloat) return st::Dtype::F32;
  if (tensor.scalar_type() == at::kDouble) return st::Dtype::F64;
  fail(where, ": expected fp32 or fp64, got ", tensor.scalar_type());
}

// The tensors of a file by name, as views of memory that is not copied where it is contiguous.
class Views {
 public:
  Views(const Checkpoint& checkpoint, const std::string& where) {
    std::array<Shapes, groups.size()> shapes;
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (const auto& [name, tensor] : checkpoint.*groups[g].tensors) {
        shapes[g][name] = tensor.sizes().vec();
        add(std::string(groups[g].prefix) + name, tensor, where);
      }
    check_alike(shapes, where);
    for (const auto& [name, tensor] : kept_)
      views_.push_back({name,
                        stored_dtype(tensor, where + name),
                        {tensor.sizes().data(), tensor.sizes().size()},
                        {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }

  std::span<const st::TensorView> get() const { return views_; }

 private:
  void add(const std::string& name, const at::Tensor& tensor, const std::string& where) {
    check(tensor.device().is_cpu(), where, name, ": expected a tensor on the CPU, got one on ",
          tensor.device());
    kept_[name] = tensor.detach().contiguous();
  }

  std::map<std::string, at::Tensor> kept_;
  std::vector<st::TensorView> views_;
};

// ---- reading ----

const std::string& metadata(const st::Header& header, std::string_view key, const std::string& where) {
  const std::string* text = header.find_metadata(key);
  check(text != nullptr, where, "expected metadata \"", key, "\", got none: not a checkpoint");
  return *text;
}

void check_format(const st::Header& header, const std::string& where) {
  const std::string& found = metadata(header, "format", where);
  check(found == format, where, "expected a checkpoint of format ", format, ", got format ", shown(found));
  for (const auto& [key, text] : *header.metadata())
    check(key == "format" || key == "state" || key == "recipe" || key == "sha256", where,
          "expected metadata format, state, recipe and sha256, got \"", shown(key), "\" as well");
}

// Which group a tensor belongs to, and its name there.
std::pair<std::size_t, std::string> place(const st::TensorInfo& tensor, const std::string& where) {
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (tensor.name.starts_with(groups[g].prefix)) return {g, tensor.name.substr(groups[g].prefix.size())};
  fail(where, "expected tensors of weights/, ema/, moment1/ and moment2/, got \"", shown(tensor.name), "\"");
}

// From the header alone, before anything large is read.
void check_groups(const st::Header& header, const std::string& where) {
  std::array<Shapes, groups.size()> shapes;
  for (const st::TensorInfo& tensor : header.tensors()) {
    const auto [group, name] = place(tensor, where);
    shapes[group][name] = tensor.shape;
    check(tensor.dtype == st::Dtype::F32 || tensor.dtype == st::Dtype::F64, where, shown(tensor.name),
          ": expected F32 or F64, got ", st::name(tensor.dtype));
  }
  check_alike(shapes, where);
}

at::Tensor read_tensor(const st::Reader& reader, const st::TensorInfo& tensor, Digest& digest) {
  at::Tensor values = at::empty(tensor.shape, tensor.dtype == st::Dtype::F32 ? at::kFloat : at::kDouble);
  const std::span<std::byte> bytes(static_cast<std::byte*>(values.data_ptr()), values.nbytes());
  reader.read(tensor, bytes);
  digest.tensor({tensor.name, tensor.dtype, tensor.shape, bytes});
  return values;
}

// ---- files of a folder ----

// The step in a checkpoint's name; nothing of any other name.
std::optional<std::int64_t> step_of(const std::string& name) {
  long long step = -1;
  if (std::sscanf(name.c_str(), "step_%lld.safetensors", &step) != 1 || step < 0) return std::nullopt;
  if (checkpoint_name(step) != name) return std::nullopt;
  return step;
}

struct Found {
  fs::path path;
  std::int64_t step;
  fs::file_time_type written;
};

// Calls visit(entry, name) for every regular file of a folder; there is none in a folder that does not exist.
template <class Visit>
void for_each_file(const fs::path& folder, std::string_view operation, Visit visit) {
  std::error_code error;
  if (!fs::exists(folder, error) && !error) return;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::error_code gone;
    if (entries->is_regular_file(gone)) visit(*entries, entries->path().filename().string());
  }
  check(!error, operation, ": ", folder.string(), ": cannot list it: ", error.message());
}

// The newest first, by their names.
std::vector<Found> find_checkpoints(const fs::path& folder, std::string_view operation) {
  std::vector<Found> found;
  for_each_file(folder, operation, [&](const fs::directory_entry& entry, const std::string& name) {
    std::error_code gone;
    if (const auto step = step_of(name)) found.push_back({entry.path(), *step, entry.last_write_time(gone)});
  });
  std::ranges::sort(found, std::greater(), &Found::step);
  return found;
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);  // one that has gone already is no error
  check(!error, "prune_checkpoints: ", path.string(), ": cannot remove it: ", error.message());
}

}  // namespace

std::filesystem::path checkpoint_name(std::int64_t step) {
  check(step >= 0, "checkpoint_name: step: expected at least 0, got ", step);
  char name[64];
  std::snprintf(name, sizeof name, "step_%08lld.safetensors", static_cast<long long>(step));
  return name;
}

void write_checkpoint(const fs::path& folder, const Checkpoint& checkpoint) {
  const Views views(checkpoint, "write_checkpoint: ");
  State state = checkpoint.state;
  const std::string state_text = io::write_json(state);
  Digest digest(state_text, checkpoint.recipe);
  for (const st::TensorView& tensor : views.get()) digest.tensor(tensor);
  st::write(folder / checkpoint_name(state.step), views.get(),
            st::Metadata{{"format", std::string(format)},
                         {"state", state_text},
                         {"recipe", checkpoint.recipe},
                         {"sha256", digest.hex()}});
}

Checkpoint read_checkpoint(const fs::path& path) {
  const std::string where = "read_checkpoint: " + path.string() + ": ";
  const st::Reader reader(path);
  const st::Header& header = reader.header();
  check_format(header, where);
  const std::string& state = metadata(header, "state", where);
  const std::string& expected = metadata(header, "sha256", where);
  check_groups(header, where);
  Checkpoint checkpoint;
  checkpoint.recipe = metadata(header, "recipe", where);
  Digest digest(state, checkpoint.recipe);
  std::vector<const st::TensorInfo*> tensors;  // by name, as they were when the digest was made
  for (const st::TensorInfo& tensor : header.tensors()) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, &st::TensorInfo::name);
  for (const st::TensorInfo* tensor : tensors) {
    const auto [group, name] = place(*tensor, where);
    (checkpoint.*groups[group].tensors)[name] = read_tensor(reader, *tensor, digest);
  }
  check(digest.hex() == expected, where, "expected SHA-256 ", shown(expected), ", got ", digest.hex(),
        ": it is damaged");
  io::read_json(state, checkpoint.state, where + "state");
  return checkpoint;
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (Found& found : find_checkpoints(folder, "list_checkpoints")) paths.push_back(std::move(found.path));
  return paths;
}

std::int64_t newest_step(const fs::path& folder) {
  const std::vector<Found> found = find_checkpoints(folder, "newest_step");
  return found.empty() ? -1 : found.front().step;
}

std::optional<Checkpoint> newest_checkpoint(
    const fs::path& folder, const std::function<void(const fs::path&, const std::string& why)>& on_damaged,
    std::int64_t passed_over) {
  std::optional<Checkpoint> found;
  fs::path last_whole;
  for (const fs::path& path : list_checkpoints(folder)) {
    found.reset();  // before the next is read
    try {
      found = read_checkpoint(path);
      last_whole = path;
    } catch (const Error& error) {
      if (on_damaged) on_damaged(path, error.what());
    }
    if (found && passed_over-- == 0) return found;
  }
  if (!found && !last_whole.empty()) found = read_checkpoint(last_whole);
  return found;
}

void prune_checkpoints(const fs::path& folder, std::int64_t keep) {
  check(keep >= 1, "prune_checkpoints: keep: expected at least 1, got ", keep);
  std::vector<Found> found = find_checkpoints(folder, "prune_checkpoints");
  const auto kept = static_cast<std::size_t>(keep);
  std::set<fs::path> stay;
  for (std::size_t i = 0; i < std::min(kept, found.size()); ++i) stay.insert(found[i].path);
  // A damaged file of a later step than what was written since must not push that out.
  std::ranges::stable_sort(found, std::greater(), &Found::written);
  for (std::size_t i = 0; i < std::min(kept, found.size()); ++i) stay.insert(found[i].path);
  for (const Found& checkpoint : found)
    if (!stay.contains(checkpoint.path)) remove_file(checkpoint.path);
  io::remove_temporaries(folder);
}

}  // namespace pom::train
