// The words a person uses for classes, and the numbers the network knows them by.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pom::generate {

// The classes that a text stands for, in its order, repeats kept: names (in any letter case), numbers, ranges
// "0-9", "all", "none" (no class: the number `count`), and lists of these with commas. Names come before
// numbers and words, and may have commas themselves. `names` is empty or has `count` names.
std::vector<std::int64_t> parse_classes(std::string_view text, std::span<const std::string> names,
                                        std::int64_t count);

// What stands for one class, so that parse_classes gives it back: its name where that is unique, or its
// number.
std::string class_text(std::int64_t index, std::span<const std::string> names, std::int64_t count);

}  // namespace pom::generate
