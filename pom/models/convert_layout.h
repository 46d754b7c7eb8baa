// Private to the room: how the tensors of somebody else's network become ours, and ours theirs.
#pragma once

#include <functional>

#include "pom/models/convert.h"

namespace pom::models {

// A tensor of theirs. `in` makes tensors of ours of it; `out` makes it of ours. Both move values, and change
// none but for a sign: there and back is the same, bit for bit.
struct Piece {
  std::string name;
  std::vector<std::int64_t> shape;
  std::function<void(const at::Tensor& theirs, Weights& ours)> in;
  std::function<at::Tensor(const Weights& ours)> out;
};

struct Layout {
  NetworkConfig config;
  std::vector<Piece> pieces;
  std::set<std::string> dropped = {};  // of theirs, which may be there
  std::int64_t grid = 0;
  std::vector<std::string> notes = {};
};

class Pieces {
 public:
  // The same under another name, NAME and both NAME.weight and NAME.bias.
  void same(const std::string& theirs, const std::string& ours, std::vector<std::int64_t> shape);
  void linear(const std::string& theirs, const std::string& ours, std::int64_t in, std::int64_t out);
  void add(Piece piece) { all_.push_back(std::move(piece)); }
  std::vector<Piece> take() { return std::move(all_); }

 private:
  std::vector<Piece> all_;
};

// `value` where a person gave the field another one.
template <class Value>
Value known_or(const KnownFields& known, const std::string& field, Value NetworkConfig::*member,
               const Value& otherwise) {
  return known.has(field) ? known.network.*member : otherwise;
}

// The heads of a network of this width in the published tables, unless they are given.
std::int64_t heads_of(std::int64_t dim, const KnownFields& known, const std::string& file);

// Sets what a person gave, whatever the shapes say: where they disagree, so does a tensor's expected shape.
void overlay(NetworkConfig& config, const KnownFields& known);

// An integer that `whole` is made of; `what` says of what.
std::int64_t multiple_of(std::int64_t whole, std::int64_t part, const std::string& file,
                         const std::string& what);

// Whether two tensors are the same but for the rounding of how the first is stored.
bool nearly(const at::Tensor& stored, const at::Tensor& expected);

StateDict::Prefixes homm_prefixes();
StateDict::Prefixes dit_prefixes();
// What the file holds, by its shapes.
Layout homm_layout(const StateDict& dict, Origin origin, const KnownFields& known);
Layout dit_layout(const StateDict& dict, Origin origin, const KnownFields& known);
// What a network of ours would be there.
Layout homm_layout(const NetworkConfig& config, Origin origin);
Layout dit_layout(const NetworkConfig& config, Origin origin, std::int64_t grid);

}  // namespace pom::models
