// What a network costs for pictures of a certain size: in numbers, as JSON and as text.
#pragma once

#include <cstdint>
#include <string>

#include "cli/json.h"
#include "pom/generate/folder.h"
#include "pom/models/config.h"

namespace pom::cli {

// The named variants work on latents of Stable Diffusion's autoencoder: 256x256 pixels are 32x32.
inline constexpr std::int64_t kVaeFactor = 8;

// A network and the picture it is counted for.
struct Cost {
  std::string name;
  models::NetworkConfig network;
  std::int64_t width = 256, height = 256, factor = kVaeFactor, steps = 25;

  std::int64_t latent_width() const { return width / factor; }
  std::int64_t latent_height() const { return height / factor; }
  std::int64_t tokens() const { return network.tokens(latent_height(), latent_width()); }
  std::int64_t parameters() const;
  std::int64_t macs() const;  // of one evaluation for one picture
};

Cost variant_cost(const std::string& name);
Cost folder_cost(const std::string& folder, const generate::ModelConfig& config);

// Memory is for `batch` pictures at a time.
JsonObject cost_json(const Cost& cost, std::int64_t batch);
void print_cost(const Cost& cost, std::int64_t batch);

// A line of a table; the pattern is printf's, of four texts.
std::string columns(const char* pattern, const std::string& a, const std::string& b, const std::string& c,
                    const std::string& d);

}  // namespace pom::cli
