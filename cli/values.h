// Sizes and amounts as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pom::cli {

// "4G", "512M", "1.5GiB", "300000" -> bytes, in powers of 1024. `flag` begins the message of an error.
std::int64_t parse_bytes(std::string_view text, std::string_view flag);

std::string bytes_text(double bytes);      // "3.2 GiB"
std::string amount_text(double count);     // "33.4 M", "5.29 G": powers of 1000
std::string seconds_text(double seconds);  // "0.21 s", "8.3 s", "12:05"
std::string grouped(std::int64_t number);  // "33,401,234"
std::string steps_text(std::string_view sampler, std::int64_t steps,
                       double shift);  // "heun, 20 steps, shift 3"
// "cfg scale 2", "cfg scale 2 for t <= 0.8", "cfg scale 2 for 0.1 <= t <= 0.8"
std::string guidance_text(double scale, double from, double to);

}  // namespace pom::cli
