// A command line around the class-conditional network, for referees that are not written in C++.
//
//   network_tool variants                           every variant with its parameters
//   network_tool run WEIGHTS INPUTS OUT key=value…  the module's output y and the gradients of sum(y * dy),
//   and
//                                                   what Denoiser makes of the same, in the dtype of the
//                                                   inputs
//
// INPUTS has x (B, C, H, W), t (B), y (B, int64), dy like x. OUT gets `output`, `grad.x`, `grad.NAME`, and
// for a batch that shares one time `denoised` and `denoised_both`.
#include <charconv>
#include <iostream>
#include <map>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/counts.h"
#include "pom/models/denoiser.h"
#include "pom/models/dipom.h"

namespace {

using namespace pom;

struct SetField {
  const std::map<std::string, std::string>& given;
  template <class T>
  void operator()(const Field& field, T& value) const {
    const auto found = given.find(std::string(field.name));
    if (found == given.end()) return;
    if constexpr (std::is_same_v<T, std::string>)
      value = found->second;
    else
      value = std::stoll(found->second);
  }
};

models::NetworkConfig parse_config(int argc, char** argv, int first) {
  std::map<std::string, std::string> given;
  for (int i = first; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equals = text.find('=');
    check(equals != std::string::npos, "network_tool: expected key=value, got ", text);
    given[text.substr(0, equals)] = text.substr(equals + 1);
  }
  models::NetworkConfig config;
  if (given.contains("variant")) config = models::variant(given["variant"]);
  config.fields(SetField{given});
  return config;
}

at::ScalarType torch_dtype(io::safetensors::Dtype dtype) {
  using io::safetensors::Dtype;
  if (dtype == Dtype::I64) return at::kLong;
  return dtype == Dtype::F64 ? at::kDouble : at::kFloat;
}

std::map<std::string, at::Tensor> read_tensors(const char* path) {
  const io::safetensors::File file = io::safetensors::File::open(path);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& view : file.tensors())
    tensors[std::string(view.name)] =
        at::from_blob(const_cast<std::byte*>(view.data.data()), {view.shape.data(), view.shape.size()},
                      torch_dtype(view.dtype))
            .clone();
  return tensors;
}

void run(const char* weights_file, const char* inputs_file, const char* out_file,
         const models::NetworkConfig& config) {
  std::map<std::string, at::Tensor> in = read_tensors(inputs_file);
  const at::ScalarType dtype = in.at("x").scalar_type();
  const models::Weights weights = models::read_weights(weights_file, config, dtype);
  models::DiPoM network(config);
  network->to(dtype);
  network->set_weights(weights);
  at::Tensor x = in.at("x").requires_grad_(true);
  const at::Tensor output = network->forward(x, in.at("t"), in.at("y"));
  (output * in.at("dy")).sum().backward();
  models::Weights out{{"output", output.detach()}, {"grad.x", x.grad()}};
  for (const auto& item : network->named_parameters()) out["grad." + item.key()] = item.value().grad();

  const at::Tensor t = in.at("t").to(at::kDouble), y = in.at("y");
  if ((t == t[0]).all().item<bool>()) {
    const auto denoiser = models::Denoiser::make(config, weights, dtype);
    const double time = t[0].item<double>();
    denoiser->plan({x.size(0), x.size(2), x.size(3), {{time, false}, {time, true}}});
    const std::int64_t* const classes = y.const_data_ptr<std::int64_t>();
    denoiser->tell({.classes = {classes, classes + y.numel()}});
    out["denoised"] = (*denoiser)(x.detach(), 0).clone();
    out["denoised_both"] = (*denoiser)(x.detach(), 1).clone();
  }
  models::write_weights(out_file, out, dtype);
}

void print_variants() {
  for (const std::string& name : models::variant_names())
    std::cout << name << ' ' << models::count_parameters(models::variant(name)) << '\n';
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "variants")
    print_variants();
  else if (command == "run" && argc > 4)
    run(argv[2], argv[3], argv[4], parse_config(argc, argv, 5));
  else
    pom::fail("network_tool: expected variants, or run WEIGHTS INPUTS OUT key=value…");
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
