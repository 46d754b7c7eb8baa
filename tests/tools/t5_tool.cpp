// A command line around the T5 encoder and its tokenizer, for referees that are not written in C++.
//
//   t5_tool ids MODEL TEXTS OUT                     pieces of texts by a spiece.model
//   t5_tool states FOLDER INPUTS OUT key=value…     what the encoder makes of ids (B, L), mask (B, L) uint8
//   t5_tool encode FOLDER TEXTS OUT key=value…      the same of texts, with the tokenizer beside it
//   t5_tool lines                                   one of these a line of stdin, with tabs between its
//   words.
//                                                   A line of stdout answers each: the warnings, or the error
//
// TEXTS has bytes (uint8) and ends (int64), so that any bytes may be a text; OUT of `ids` gets ids and ends
// likewise, of the others `states` and `mask`, in fp64 where the encoder is, else in fp32. Keys are dtype,
// device, limit, mask (0 or 1), cache (a folder).
#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/codecs/t5.h"
#include "pom/codecs/text_cache.h"

namespace {

using namespace pom;
namespace st = io::safetensors;
using Words = std::vector<std::string>;
using Tensors = std::map<std::string, at::Tensor>;

constexpr std::pair<st::Dtype, at::ScalarType> dtypes[] = {{st::Dtype::I64, at::kLong},
                                                           {st::Dtype::U8, at::kByte},
                                                           {st::Dtype::F64, at::kDouble},
                                                           {st::Dtype::F32, at::kFloat},
                                                           {st::Dtype::BOOL, at::kBool}};

Tensors read_tensors(const std::string& path) {
  const st::File file = st::File::open(path);
  Tensors tensors;
  for (const st::TensorView& view : file.tensors())
    for (const auto& [stored, dtype] : dtypes)
      if (stored == view.dtype) {
        at::Tensor& values = tensors[std::string(view.name)];
        values = at::empty({view.shape.data(), view.shape.size()}, dtype);
        std::memcpy(values.data_ptr(), view.data.data(), view.data.size());
      }
  return tensors;
}

void write_tensors(const std::string& path, const Tensors& tensors) {
  std::vector<at::Tensor> kept;
  std::vector<st::TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor& values = kept.emplace_back(tensor.contiguous());
    for (const auto& [stored, dtype] : dtypes)
      if (dtype == values.scalar_type())
        views.push_back({name,
                         stored,
                         {values.sizes().data(), values.sizes().size()},
                         {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}});
  }
  st::write(path, views);
}

std::vector<std::string> read_texts(const std::string& path) {
  Tensors in = read_tensors(path);
  const at::Tensor bytes = in.at("bytes"), ends = in.at("ends");
  std::vector<std::string> texts;
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < ends.numel(); ++i) {
    const std::int64_t end = ends.data_ptr<std::int64_t>()[i];
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data_ptr<std::uint8_t>()) + first, end - first);
    first = end;
  }
  return texts;
}

void write_ids(const std::string& model, const std::string& texts, const std::string& out) {
  const io::SentencePieces pieces(io::read_sentence_pieces(std::filesystem::path(model)), model);
  std::vector<std::int64_t> ids, ends;
  for (const std::string& text : read_texts(texts)) {
    const std::vector<std::int64_t> row = pieces.encode(text);
    ids.insert(ids.end(), row.begin(), row.end());
    ends.push_back(static_cast<std::int64_t>(ids.size()));
  }
  write_tensors(out, {{"ids", at::tensor(ids, at::kLong)}, {"ends", at::tensor(ends, at::kLong)}});
}

std::map<std::string, std::string> parse(const Words& words) {
  std::map<std::string, std::string> given;
  for (std::size_t i = 4; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    check(equals != std::string::npos, "t5_tool: expected key=value, got ", words[i]);
    given[words[i].substr(0, equals)] = words[i].substr(equals + 1);
  }
  return given;
}

std::optional<at::ScalarType> dtype_named(const std::string& name) {
  const std::map<std::string, at::ScalarType> names{
      {"fp32", at::kFloat}, {"fp64", at::kDouble}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};
  if (name.empty()) return std::nullopt;
  return names.at(name);
}

at::Tensor widened(const at::Tensor& states) {
  return states.cpu().to(states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

std::string encode(const Words& words) {
  std::map<std::string, std::string> given = parse(words);
  codecs::TextConfig config;
  config.kind = "t5";
  if (given.contains("limit")) config.limit = std::stoll(given["limit"]);
  if (given.contains("mask")) config.mask = given["mask"] != "0";
  const io::OpenFolder folder(words[1], "text");
  auto t5 = std::make_unique<codecs::T5>(config, folder, dtype_named(given["dtype"]));
  if (given.contains("device")) t5->to(c10::Device(given["device"]));
  if (words[0] == "states") {
    const Tensors in = read_tensors(words[2]);
    write_tensors(words[3],
                  {{"states", widened(t5->encode_ids(in.at("ids"),
                                                     in.contains("mask") ? in.at("mask") : at::Tensor()))}});
    return {};
  }
  std::unique_ptr<codecs::TextEncoder> encoder = std::move(t5);
  if (given.contains("cache"))
    encoder = std::make_unique<codecs::CachedText>(std::move(encoder), codecs::TextCache(given["cache"]));
  const codecs::EncodedText text = encoder->encode(read_texts(words[2]));
  write_tensors(words[3], {{"states", widened(text.tokens)}, {"mask", text.mask.cpu()}});
  std::string warnings;
  for (const std::string& warning : text.warnings) warnings += (warnings.empty() ? "" : "; ") + warning;
  return warnings;
}

std::string obey(const Words& words) {
  check(words.size() >= 4, "t5_tool: expected ids, states or encode with three files");
  if (words[0] != "ids") return encode(words);
  write_ids(words[1], words[2], words[3]);
  return {};
}

void obey_lines() {
  for (std::string line; std::getline(std::cin, line);) {
    Words words;
    std::istringstream parts(line);
    for (std::string word; std::getline(parts, word, '\t');) words.push_back(word);
    std::string answer;
    try {
      answer = obey(words);
    } catch (const std::exception& error) {
      answer = std::string("error: ") + error.what();
    }
    std::ranges::replace(answer, '\n', ' ');
    std::cout << answer << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const Words words(argv + 1, argv + argc);
  if (words == Words{"lines"})
    obey_lines();
  else
    std::cout << obey(words) << '\n';
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
