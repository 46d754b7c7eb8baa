// torch.ops.pom.request_fields and sampler_names: what a request may say, for Python. A test compares it with
// the keywords that python/libpom/engine.py declares.
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <ATen/core/Dict.h>
#include <torch/library.h>

#include "pom/generate/request.h"

namespace pom::generate {
namespace {

template <class Value>
constexpr const char* type_name(const Value*) {
  if constexpr (std::is_same_v<Value, bool>) return "bool";
  if constexpr (std::is_same_v<Value, std::int64_t>) return "int";
  if constexpr (std::is_same_v<Value, double>) return "float";
  if constexpr (std::is_same_v<Value, std::string>) return "str";
  return "other";
}
template <class Value>
constexpr const char* type_name(const std::optional<Value>*) {
  return type_name(static_cast<const Value*>(nullptr));
}
template <class Value>
constexpr const char* type_name(const std::vector<Value>*) {
  return std::is_same_v<Value, std::string> ? "list[str]" : "list[int]";
}

// "int", "float", "str", or the choices where nothing else will do: "fp32 | bf16".
std::string type_of(const BoundField& bound) {
  std::string choices;
  for (const std::string& choice : bound.field.choices) choices += (choices.empty() ? "" : " | ") + choice;
  if (bound.field.closed && !choices.empty()) return choices;
  return std::visit(
      []<class Pointer>(Pointer pointer) -> std::string {
        if constexpr (std::is_same_v<Pointer, std::monostate>)
          return "other";
        else
          return type_name(pointer);
      },
      bound.value);
}

c10::Dict<std::string, std::string> request_fields() {
  Request request;
  c10::Dict<std::string, std::string> fields;
  for (const BoundField& bound : bind_fields(request))
    fields.insert(std::string(bound.field.name), type_of(bound));
  return fields;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pom, m) {
  m.def("request_fields() -> Dict(str, str)", request_fields);
  m.def("sampler_names() -> str[]", [] { return sampler_names(); });
}

}  // namespace pom::generate
