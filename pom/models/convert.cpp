#include "pom/models/convert.h"

#include <algorithm>
#include <map>

#include <ATen/TensorOperators.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"
#include "pom/models/convert_layout.h"

namespace pom::models {
namespace {

bool is_homm(Origin origin) {
  return origin != Origin::dit && origin != Origin::sit;
}

std::vector<StateDict::Expected> expected_of(const Layout& layout) {
  std::vector<StateDict::Expected> all;
  for (const Piece& piece : layout.pieces) all.push_back({piece.name, piece.shape});
  return all;
}

}  // namespace

std::vector<std::string> origin_names() {
  return {"homm", "homm-upscale", "homm-text2video", "dit", "sit"};
}

Origin origin_named(std::string_view name) {
  const std::vector<std::string> names = origin_names();
  const auto found = std::ranges::find(names, name);
  check(found != names.end(), "convert: unknown network \"", shown(name), "\"", suggestion(name, names));
  return static_cast<Origin>(found - names.begin());
}

std::string_view name_of(Origin origin) {
  static const std::vector<std::string> names = origin_names();
  return names[static_cast<std::size_t>(origin)];
}

Imported import_network(const io::safetensors::Reader& file, Origin origin, const KnownFields& known,
                        WeightCopy copy) {
  const StateDict dict(file, is_homm(origin) ? homm_prefixes() : dit_prefixes(), copy);
  const Layout layout = is_homm(origin) ? homm_layout(dict, origin, known) : dit_layout(dict, origin, known);
  dict.account(expected_of(layout), layout.dropped);
  Imported done{layout.config, {}, dict.copy(), dict.prefix(), layout.grid, layout.notes};
  for (const Piece& piece : layout.pieces) piece.in(dict.read(piece.name), done.weights);
  if (dict.has("freqs")) done.weights["freqs"] = dict.read("freqs");
  check_weights(done.weights, done.config, file.file());
  if (dict.not_begun())
    done.notes.insert(done.notes.begin(),
                      "the EMA has not begun (ema.initted is 0): these are the model's own weights");
  return done;
}

Weights export_network(const Weights& weights, const NetworkConfig& config, Origin origin,
                       std::int64_t grid) {
  check_weights(weights, config, "convert: weights");
  const Layout layout = is_homm(origin) ? homm_layout(config, origin) : dit_layout(config, origin, grid);
  Weights theirs;
  for (const Piece& piece : layout.pieces) theirs[piece.name] = piece.out(weights);
  if (const auto stored = weights.find("freqs"); is_homm(origin) && stored != weights.end())
    theirs["freqs"] = stored->second;
  return theirs;
}

// ---- what the layouts share ----

void Pieces::same(const std::string& theirs, const std::string& ours, std::vector<std::int64_t> shape) {
  add({theirs, std::move(shape), [ours](const at::Tensor& values, Weights& all) { all[ours] = values; },
       [ours](const Weights& all) { return all.at(ours); }});
}

void Pieces::linear(const std::string& theirs, const std::string& ours, std::int64_t in, std::int64_t out) {
  same(theirs + ".weight", ours + ".weight", {out, in});
  same(theirs + ".bias", ours + ".bias", {out});
}

std::int64_t heads_of(std::int64_t dim, const KnownFields& known, const std::string& file) {
  static const std::map<std::int64_t, std::int64_t> published = {{384, 6}, {768, 12}, {1024, 16}, {1152, 16}};
  if (known.has("heads")) return known.network.heads;
  const auto found = published.find(dim);
  check(found != published.end(), file, ": attention of width ", dim,
        ": the weights do not tell the number of heads; --set network.heads=N does");
  return found->second;
}

std::int64_t multiple_of(std::int64_t whole, std::int64_t part, const std::string& file,
                         const std::string& what) {
  check(part > 0 && whole % part == 0, file, ": ", what, ": expected a multiple of ", part, ", got ", whole);
  return whole / part;
}

void overlay(NetworkConfig& config, const KnownFields& known) {
  KnownFields copy = known;  // bind_fields hands out pointers that may be written to
  const std::vector<BoundField> from = bind_fields(copy.network), to = bind_fields(config);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (!known.given.contains(std::string(to[i].field.name))) continue;
    std::visit(
        [&]<class Value>(Value value) {
          if constexpr (std::is_pointer_v<Value>) *value = *std::get<Value>(from[i].value);
        },
        to[i].value);
  }
}

bool nearly(const at::Tensor& stored, const at::Tensor& expected) {
  if (stored.sizes() != expected.sizes()) return false;
  const bool half = stored.scalar_type() == at::kHalf || stored.scalar_type() == at::kBFloat16;
  const at::Tensor difference = (stored.to(at::kDouble) - expected).abs();
  return (difference <= expected.abs() * (half ? 1e-2 : 1e-3) + (half ? 1e-2 : 1e-4)).all().item<bool>();
}

}  // namespace pom::models
