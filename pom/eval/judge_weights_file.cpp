#include "pom/eval/judge_weights_file.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/data/shapes.h"
#include "pom/io/safetensors.h"

namespace pom::eval {
namespace {

namespace st = io::safetensors;

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

st::Metadata metadata_of(const std::string& format, const JudgeConfig& config) {
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
JudgeConfig read_judge_config(const st::Header& header, const std::string& format, const Canvas& canvas,
                              const std::string& file) {
  JudgeConfig config;
  config.canvas = canvas;
  for (const auto& [key, expected] : metadata_of(format, config)) {
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

JudgeFile read_judge_file(const std::filesystem::path& path, const std::string& format, const Canvas& canvas,
                          const JudgeShapes& shapes) {
  const std::string name = path.string();
  const st::File file = st::File::open(path);
  JudgeFile judge{read_judge_config(file.header(), format, canvas, name), {}};
  for (const auto& [tensor, shape] : shapes)
    judge.weights.emplace(tensor, read_tensor(file, tensor, shape, name));
  return judge;
}

void write_judge_file(const std::filesystem::path& path, const std::string& format, const JudgeConfig& config,
                      const JudgeWeights& weights) {
  std::vector<st::TensorView> views;
  for (const auto& [name, tensor] : weights)
    views.push_back({name,
                     st::Dtype::F32,
                     {tensor.sizes().data(), tensor.sizes().size()},
                     {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  st::write(path, views, metadata_of(format, config));
}

}  // namespace pom::eval
