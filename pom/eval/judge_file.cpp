// Files of a judge: safetensors, with what it was trained for as metadata.
#include <cstring>
#include <vector>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/data/shapes.h"
#include "pom/eval/judge.h"
#include "pom/eval/judge_network.h"
#include "pom/io/safetensors.h"

namespace pom::eval {
namespace {

namespace st = io::safetensors;

constexpr const char* format = "pom judge of shapes, 1";

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

st::Metadata metadata_of(const JudgeConfig& config) {
  return {{"format", format},
          {"size", detail::concat(config.canvas.width, "x", config.canvas.height)},
          {"shapes", joined(data::shape_names())},
          {"hues", joined(data::hue_names())},
          {"seed", std::to_string(config.seed)},
          {"steps", std::to_string(config.steps)},
          {"batch", std::to_string(config.batch)}};
}

std::string text_at(const st::Header& header, const char* key, const std::string& file) {
  const std::string* text = header.find_metadata(key);
  check(text != nullptr, "judge: ", file, ": expected a file that a judge was written to, got one without \"",
        key, "\"");
  return *text;
}

std::int64_t number_at(const st::Header& header, const char* key, const std::string& file) {
  const std::string text = text_at(header, key, file);
  char* end = nullptr;
  const auto number = static_cast<std::int64_t>(std::strtoull(text.c_str(), &end, 10));
  check(!text.empty() && *end == '\0', "judge: ", file, ": ", key, ": expected a number, got \"", shown(text),
        "\"");
  return number;
}

// Another size, other shapes or an older kind of file: a judge of something else.
JudgeConfig read_judge_config(const st::Header& header, const Canvas& canvas, const std::string& file) {
  JudgeConfig config;
  config.canvas = canvas;
  for (const auto& [key, expected] : metadata_of(config)) {
    if (key == "seed" || key == "steps" || key == "batch") continue;
    const std::string found = text_at(header, key.c_str(), file);
    check(found == expected, "judge: ", file, ": ", key, ": expected ", expected, ", got ", shown(found),
          "; another file name makes a new judge");
  }
  config.seed = static_cast<std::uint64_t>(number_at(header, "seed", file));
  config.steps = number_at(header, "steps", file);
  config.batch = number_at(header, "batch", file);
  return config;
}

at::Tensor read_tensor(const st::File& file, const std::string& name, const std::vector<std::int64_t>& shape,
                       const std::string& path) {
  const st::TensorView& view = file.at(name);
  check(view.dtype == st::Dtype::F32 && std::ranges::equal(view.shape, shape), "judge: ", path, ": ", name,
        ": expected F32 ", at::IntArrayRef(shape), ", got ", st::name(view.dtype), " ",
        at::IntArrayRef(view.shape.data(), view.shape.size()));
  at::Tensor tensor = at::empty(shape, at::TensorOptions(at::kFloat));
  std::memcpy(tensor.data_ptr<float>(), view.data.data(), view.data.size());
  return tensor;
}

}  // namespace

Judge Judge::read(const std::filesystem::path& path, const Canvas& canvas) {
  const std::string name = path.string();
  const st::File file = st::File::open(path);
  const JudgeConfig config = read_judge_config(file.header(), canvas, name);
  Weights weights;
  for (const auto& [tensor, shape] : judge_shapes(canvas))
    weights.emplace(tensor, read_tensor(file, tensor, shape, name));
  return Judge(config, std::move(weights));
}

void Judge::write(const std::filesystem::path& path) const {
  std::vector<st::TensorView> views;
  for (const auto& [name, tensor] : weights_)
    views.push_back({name,
                     st::Dtype::F32,
                     {tensor.sizes().data(), tensor.sizes().size()},
                     {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  st::write(path, views, metadata_of(config_));
}

}  // namespace pom::eval
