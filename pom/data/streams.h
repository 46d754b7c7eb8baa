// The steps of noise_for::data_content: which of this room's choices a random number is for. Numbers are part
// of every data set's identity: add new ones, never change or reuse one.
#pragma once

#include <cstdint>

namespace pom::data::streams {

inline constexpr std::uint32_t shapes = 0;          // position: 32 x index + number
inline constexpr std::uint32_t mirror = 1;          // position: see mirror.h
inline constexpr std::uint32_t held_back = 2;       // the permutation that picks validation examples
inline constexpr std::uint32_t sprites = 3;         // position: 64 x index + number
inline constexpr std::uint32_t clip_start = 4;      // where in a long clip of a folder training looks
inline constexpr std::uint32_t scenes = 5;          // position: 2^18 x index + number
inline constexpr std::uint32_t sprite_changes = 6;  // position: 128 x index + number

}  // namespace pom::data::streams
