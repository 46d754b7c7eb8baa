// `--set network.order=3` on a struct of declared fields, by way of JSON: one way for builds without TOML.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "pom/base/fields.h"

namespace pom::generate {

// Sets the field of "a.b=c"; c is JSON, or a bare word where the field is a text. Returns the paths that were
// set ("a", "a.b"). Mistakes are told as of a file of the name --set.
std::set<std::string> set_json_field(const std::string& assignment, std::span<const BoundField> fields);

template <class Struct>
std::set<std::string> set_json_fields(const std::vector<std::string>& assignments, Struct& options) {
  std::set<std::string> given;
  const std::vector<BoundField> fields = bind_fields(options);
  for (const std::string& assignment : assignments) given.merge(set_json_field(assignment, fields));
  return given;
}

}  // namespace pom::generate
