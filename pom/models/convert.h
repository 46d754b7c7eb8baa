// Networks that others have trained, as ours, and back: the authors' of the paper (HoMM), the official DiT
// and SiT. What the shapes of the weights tell is read off them; what they do not tell is asked for, or has
// the value that those who published the network gave it.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pom/models/state_dict.h"
#include "pom/models/weights.h"

namespace pom::models {

// Whose names and conventions: of the authors' code the networks for pictures, for larger pictures (another
// position code) and for clips; the official DiT and SiT.
enum class Origin { homm, homm_upscale, homm_text2video, dit, sit };

std::vector<std::string> origin_names();     // "homm", "homm-upscale", …, in the order of the enumeration
Origin origin_named(std::string_view name);  // others are errors with the nearest suggested
std::string_view name_of(Origin origin);

// What is known of the network before its weights are looked at: the values of the fields that are named.
struct KnownFields {
  NetworkConfig network;
  std::set<std::string> given;
  bool has(const std::string& field) const { return given.contains(field); }
};

struct Imported {
  NetworkConfig config;
  Weights weights;                 // as stored, under our names; with `freqs` where the file has it
  std::string copy;                // "ema" or "model" where the file has several
  std::string prefix;              // of the names of that copy in the file
  std::int64_t grid = 0;           // tokens along a side of the pictures it was made for; 0: not known
  std::vector<std::string> notes;  // what a person should know: each a line
};

// Reads the header first: every tensor must be accounted for, by its name there, before values are read.
Imported import_network(const io::safetensors::Reader& file, Origin origin, const KnownFields& known = {},
                        WeightCopy copy = WeightCopy::best);

// The weights of one of our networks under the names, and in the order of rows, that the other's code has,
// without a prefix. A network that the other's code cannot express is an error that names the field. Weights
// may have a `freqs`, which is then given as it is; `grid` is that of `pos_embed` for DiT and SiT.
Weights export_network(const Weights& weights, const NetworkConfig& config, Origin origin,
                       std::int64_t grid = 0);

}  // namespace pom::models
