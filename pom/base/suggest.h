// What a person may have meant: the names nearest to one that does not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pom {

bool same_letters(std::string_view a, std::string_view b);  // letter case aside

// Insertions, deletions, substitutions and swaps of neighbours between two words, letter case aside.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Up to `most` of the candidates that are near to `name`, the nearest first; none where nothing is.
std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> candidates,
                                       std::size_t most = 3);

// For the end of a message: "; did you mean \"steps\"?", or "; there are a, b, c" where nothing is near, and
// nothing where those would be too many.
std::string suggestion(std::string_view name, std::span<const std::string> candidates);

}  // namespace pom
