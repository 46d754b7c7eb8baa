#include "pom/generate/tensor_file.h"

#include <array>
#include <charconv>
#include <utility>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"

namespace pom::generate {
namespace {

namespace st = io::safetensors;

constexpr std::array<std::pair<at::ScalarType, st::Dtype>, 6> kDtypes{{{at::kFloat, st::Dtype::F32},
                                                                       {at::kDouble, st::Dtype::F64},
                                                                       {at::kBFloat16, st::Dtype::BF16},
                                                                       {at::kHalf, st::Dtype::F16},
                                                                       {at::kLong, st::Dtype::I64},
                                                                       {at::kByte, st::Dtype::U8}}};

}  // namespace

TensorFile read_tensors(const st::Reader& reader) {
  TensorFile file;
  for (const st::TensorInfo& tensor : reader.header().tensors()) {
    const auto* known = std::find_if(kDtypes.begin(), kDtypes.end(),
                                     [&](const auto& pair) { return pair.second == tensor.dtype; });
    check(known != kDtypes.end(), reader.file(), ": tensor \"", shown(tensor.name),
          "\": expected F32, F64, BF16, F16, I64 or U8, got ", st::name(tensor.dtype));
    at::Tensor values = at::empty(tensor.shape, known->first);
    reader.read(tensor, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
    file.tensors[tensor.name] = values;
  }
  file.metadata = reader.header().metadata().value_or(st::Metadata());
  return file;
}

void write_tensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                   const st::Metadata& metadata) {
  std::vector<at::Tensor> kept;
  std::vector<st::TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().to(at::kCPU).contiguous());
    const at::Tensor& values = kept.back();
    const auto* known = std::find_if(kDtypes.begin(), kDtypes.end(),
                                     [&](const auto& pair) { return pair.first == values.scalar_type(); });
    check(known != kDtypes.end(), "write_tensors: ", name, ": expected real numbers, got ",
          values.scalar_type());
    views.push_back({name,
                     known->second,
                     {values.sizes().data(), values.sizes().size()},
                     {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}});
  }
  st::write(path, views, metadata);
}

std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace pom::generate
