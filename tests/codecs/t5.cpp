// The T5 encoder: numbers that transformers gave, a plain second implementation and mistakes that it tells,
// folders, prompts.
#include "pom/codecs/t5.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "pom/base/error.h"
#include "pom/io/json_fields.h"

namespace pom::codecs {
namespace {

namespace st = io::safetensors;
namespace fs = std::filesystem;
using Texts = std::vector<std::string>;
using Weights = std::map<std::string, at::Tensor>;

T5Config v11() {
  T5Config config;
  config.vocab_size = 128, config.d_model = 64, config.d_kv = 16, config.d_ff = 96, config.num_layers = 3;
  config.num_heads = 6, config.feed_forward_proj = "gated-gelu";
  return config;
}

T5Config v10() {
  T5Config config;
  config.vocab_size = 128, config.d_model = 48, config.d_kv = 16, config.d_ff = 96, config.num_layers = 2;
  config.num_heads = 3;
  return config;
}

// Names in the order of their bytes, one fp32 draw for each.
Weights random_weights(const T5Config& config) {
  Weights weights;
  for (const TensorSpec& spec : t5_tensors(config)) weights[spec.name] = at::empty(spec.shape);
  at::Generator generator = at::detail::createCPUGenerator(0);
  for (auto& [name, values] : weights) {
    const at::Tensor r = at::randn(values.sizes(), generator, at::kFloat);
    const bool whole = name == "shared.weight" || name.find("relative") != std::string::npos;
    const bool half = name.find(".q.") != std::string::npos || name.find(".k.") != std::string::npos;
    if (values.dim() == 1)
      values = 1 + 0.1 * r;
    else
      values = whole ? r : r / std::sqrt(static_cast<double>(r.size(1))) * (half ? 0.5 : 1);
  }
  return weights;
}

st::TensorView view_of(const std::string& name, const at::Tensor& values) {
  const st::Dtype dtype = values.scalar_type() == at::kFloat      ? st::Dtype::F32
                          : values.scalar_type() == at::kBFloat16 ? st::Dtype::BF16
                                                                  : st::Dtype::F16;
  return {name,
          dtype,
          {values.sizes().data(), values.sizes().size()},
          {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}};
}

// A folder of the test's own, with an encoder in it.
class EncoderFolder {
 public:
  explicit EncoderFolder(T5Config config, const Weights& weights) {
    std::string name = (fs::temp_directory_path() / "pom-t5-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
    std::vector<st::TensorView> views;
    for (const auto& [key, values] : weights) views.push_back(view_of(key, values));
    st::write(path_ / "model.safetensors", views);
    std::ofstream(path_ / "config.json") << io::write_json(config);
  }
  ~EncoderFolder() { fs::remove_all(path_); }
  EncoderFolder(const EncoderFolder&) = delete;
  EncoderFolder& operator=(const EncoderFolder&) = delete;

  const fs::path& path() const { return path_; }
  io::OpenFolder open() const { return {path_, "text"}; }

 private:
  fs::path path_;
};

// A vocabulary: <pad>, </s>, <unk>, then these words, each one piece.
std::string protobuf(int field, const std::string& bytes) {
  return std::string{static_cast<char>(field << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
void write_vocabulary(const fs::path& path, const Texts& words) {
  std::string model;
  const std::vector<std::pair<std::string, int>> special{{"<pad>", 3}, {"</s>", 3}, {"<unk>", 2}};
  for (const auto& [name, type] : special)
    model += protobuf(1, protobuf(1, name) + std::string{'\x18', static_cast<char>(type)});
  for (const std::string& word : words)
    model += protobuf(1, protobuf(1, "\xe2\x96\x81" + word) + std::string("\x15\0\0\x80\xbf", 5));
  std::ofstream(path, std::ios::binary) << model;
}

TextConfig text_config(std::int64_t limit = 8, bool mask = true) {
  TextConfig config;
  config.kind = "t5", config.limit = limit, config.mask = mask;
  return config;
}

at::Tensor golden_ids() {
  const at::Tensor i = at::arange(226), b = at::arange(2).unsqueeze(1);
  return 3 + (7 * i + 11 * b).remainder(125);
}

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// ---- a second implementation

enum class Mistake {
  none,
  wide_norm,
  erf,
  bias_in_first_block,
  scaled,
  delta,
  epsilon,
  no_norm_weights,
  mask_forgotten
};

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, Mistake mistake) {
  const at::ScalarType dtype = mistake == Mistake::wide_norm ? at::kDouble : at::kFloat;
  const at::Tensor mean = x.to(dtype).pow(2).mean(-1, true);
  const at::Tensor y = x * at::rsqrt(mean + (mistake == Mistake::epsilon ? 1e-5 : 1e-6));
  return mistake == Mistake::no_norm_weights ? y : y * weight;
}

// By the default buckets' borders, written out.
std::int64_t plain_bucket(std::int64_t delta) {
  const std::int64_t distance = std::abs(delta);
  std::int64_t bucket = std::min<std::int64_t>(distance, 8);
  for (const std::int64_t border : {12, 16, 23, 32, 46, 64, 91}) bucket += distance >= border;
  return bucket + (delta > 0 ? 16 : 0);
}

at::Tensor plain(const T5Config& config, const Weights& fp32, const at::Tensor& ids, const at::Tensor& mask,
                 Mistake mistake = Mistake::none) {
  const auto w = [&](const std::string& name) { return fp32.at(name + ".weight").to(at::kDouble); };
  const std::int64_t B = ids.size(0), L = ids.size(1), h = config.num_heads, k = config.d_kv;
  at::Tensor buckets = at::empty({L, L}, at::kLong);
  for (std::int64_t i = 0; i < L; ++i)
    for (std::int64_t j = 0; j < L; ++j)
      buckets.data_ptr<std::int64_t>()[i * L + j] = plain_bucket(mistake == Mistake::delta ? i - j : j - i);
  const at::Tensor table = w("encoder.block.0.layer.0.SelfAttention.relative_attention_bias");
  const at::Tensor bias = at::embedding(table, buckets).permute({2, 0, 1});
  at::Tensor x = at::embedding(w("shared"), ids);
  for (std::int64_t block = 0; block < config.num_layers; ++block) {
    const std::string of = "encoder.block." + std::to_string(block) + ".layer.";
    const at::Tensor y = plain_norm(x, w(of + "0.layer_norm"), mistake);
    const auto heads = [&](const char* name) {
      return at::linear(y, w(of + "0.SelfAttention." + name)).view({B, L, h, k}).transpose(1, 2);
    };
    at::Tensor scores = at::matmul(heads("q"), heads("k").transpose(2, 3));
    if (mistake == Mistake::scaled) scores = scores / std::sqrt(static_cast<double>(k));
    if (block == 0 || mistake != Mistake::bias_in_first_block) scores = scores + bias;
    if (mask.defined() && mistake != Mistake::mask_forgotten)
      scores = scores.masked_fill(mask.logical_not().view({B, 1, 1, L}), -1e300);
    const at::Tensor mixed =
        at::matmul(at::softmax(scores, -1), heads("v")).transpose(1, 2).reshape({B, L, h * k});
    x = x + at::linear(mixed, w(of + "0.SelfAttention.o"));
    const at::Tensor z = plain_norm(x, w(of + "1.layer_norm"), mistake);
    const std::string dense = of + "1.DenseReluDense.";
    at::Tensor u;
    if (config.gated())
      u = at::gelu(at::linear(z, w(dense + "wi_0")), mistake == Mistake::erf ? "none" : "tanh") *
          at::linear(z, w(dense + "wi_1"));
    else
      u = at::relu(at::linear(z, w(dense + "wi")));
    x = x + at::linear(u, w(dense + "wo"));
  }
  return plain_norm(x, w("encoder.final_layer_norm"), mistake);
}

double range_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

// ---- numbers of transformers in fp64

struct Numbers {
  double sum, absolutes, first, last;
};

void expect_numbers(const at::Tensor& states, const Numbers& expected, double most = 1e-8) {
  const auto near = [&](const at::Tensor& found, double number) {
    EXPECT_NEAR(found.item<double>(), number, most * std::max(1.0, std::abs(number)));
  };
  near(states.sum(), expected.sum);
  near(states.abs().sum(), expected.absolutes);
  near(states.flatten()[0], expected.first);
  near(states.flatten()[-1], expected.last);
}

// transformers has the mean squares of its norms in fp32, whatever the dtype. So the numbers are given twice:
// as it is, and as it would be with fp64 there, to which the second implementation is held.
TEST(T5, GivesTheNumbersOfTransformers) {
  const Weights weights = random_weights(v11()), old_weights = random_weights(v10());
  const EncoderFolder newer(v11(), weights), older(v10(), old_weights);
  const T5 t5(text_config(), newer.open(), at::kDouble), first(text_config(), older.open(), at::kDouble);
  std::int64_t values = 0;
  for (const TensorSpec& spec : t5_tensors(v11())) values += c10::multiply_integers(spec.shape);
  EXPECT_EQ(t5_tensors(v11()).size(), 30U);
  EXPECT_EQ(values, 137'856);
  EXPECT_EQ(t5_tensors(v10()).size(), 19U);
  const at::Tensor ids = golden_ids(), mask = at::ones({2, 226}, at::kBool);
  mask[1].slice(0, 37).fill_(false);
  const auto exact = [&](const T5Config& config, const Weights& of, const at::Tensor& hidden) {
    return plain(config, of, ids, hidden, Mistake::wide_norm);
  };
  const auto compare = [](const at::Tensor& ours, const Numbers& theirs, const at::Tensor& wide,
                          const Numbers& theirs_wide) {
    expect_numbers(ours, theirs);
    expect_numbers(wide, theirs_wide);
    expect_numbers(ours, theirs_wide, 1e-6);
  };
  compare(t5.encode_ids(ids), {114.53385544, 23223.44154794, 0.23037698, -0.58128042},
          exact(v11(), weights, {}), {114.53378573, 23223.44127922, 0.23037699, -0.58128079});
  compare(t5.encode_ids(ids, mask)[1].slice(0, 0, 37),
          {-172.16386956, 1879.11214954, 1.22430711, -0.36507509},
          exact(v11(), weights, mask)[1].slice(0, 0, 37),
          {-172.16388031, 1879.11213152, 1.22430672, -0.36507506});
  compare(first.encode_ids(ids), {-825.93202938, 17418.76505381, -0.55486535, -0.20065797},
          exact(v10(), old_weights, {}), {-825.93198376, 17418.76483649, -0.55486533, -0.20065794});
}

TEST(T5, MistakesWouldBeSeen) {
  for (const T5Config& config : {v11(), v10()}) {
    const Weights weights = random_weights(config);
    const EncoderFolder folder(config, weights);
    const at::Tensor ids = golden_ids().slice(1, 0, 100), mask = at::ones({2, 100}, at::kBool);
    mask[1].slice(0, 60).fill_(false);
    const at::Tensor states = T5(text_config(), folder.open(), at::kDouble).encode_ids(ids, mask);
    const auto difference = [&](Mistake mistake) {
      return range_error(states, plain(config, weights, ids, mask, mistake));
    };
    EXPECT_LT(difference(Mistake::none), 1e-12);
    for (const Mistake mistake : {Mistake::bias_in_first_block, Mistake::scaled, Mistake::delta,
                                  Mistake::no_norm_weights, Mistake::mask_forgotten})
      EXPECT_GT(difference(mistake), 0.05) << static_cast<int>(mistake);
    EXPECT_GT(difference(Mistake::epsilon), 1e-7);
    if (config.gated()) {
      EXPECT_GT(difference(Mistake::erf), 1e-5);
    }
  }
}

TEST(T5, BucketsBeginWhereTheyShould) {
  const std::vector<std::int64_t> buckets = t5_buckets({}, 300);
  for (std::int64_t delta = -299; delta < 300; ++delta)
    EXPECT_EQ(buckets[static_cast<std::size_t>(delta + 299)], plain_bucket(delta)) << delta;
  EXPECT_EQ(t5_buckets({}, 1), std::vector<std::int64_t>{0});
  T5Config few;
  few.relative_attention_num_buckets = 4, few.relative_attention_max_distance = 2;
  EXPECT_EQ(t5_buckets(few, 4), (std::vector<std::int64_t>{1, 1, 1, 0, 3, 3, 3}));
}

TEST(T5, KnowsTheSizesOfPublishedModels) {
  const auto values = [](std::int64_t d, std::int64_t f, std::int64_t blocks, std::int64_t h, bool gated) {
    T5Config config;
    config.d_model = d, config.d_ff = f, config.num_layers = blocks, config.num_heads = h;
    if (gated) config.feed_forward_proj = "gated-gelu";
    std::int64_t sum = 0;
    for (const TensorSpec& spec : t5_tensors(config)) sum += c10::multiply_integers(spec.shape);
    return sum;
  };
  EXPECT_EQ(values(512, 1024, 8, 6, true), 35'332'800);
  EXPECT_EQ(values(1024, 2816, 24, 16, true), 341'231'104);
  EXPECT_EQ(values(4096, 10240, 24, 64, true), 4'762'310'656);
  EXPECT_EQ(values(512, 2048, 6, 8, false), 35'330'816);
  EXPECT_EQ(values(1024, 4096, 24, 16, false), 334'939'648);
}

TEST(T5, AllDtypesAreNear) {
  const Weights weights = random_weights(v11());
  const EncoderFolder folder(v11(), weights);
  const at::Tensor ids = golden_ids().slice(1, 0, 50);
  const at::Tensor exact = plain(v11(), weights, ids, {});
  const std::pair<at::ScalarType, double> dtypes[] = {
      {at::kFloat, 5e-6}, {at::kHalf, 5e-3}, {at::kBFloat16, 2e-2}};
  for (const auto& [dtype, most] : dtypes) {
    const T5 t5(text_config(), folder.open(), dtype);
    const at::Tensor states = t5.encode_ids(ids);
    EXPECT_EQ(states.scalar_type(), dtype);
    EXPECT_FALSE(states.requires_grad());
    EXPECT_LT(range_error(states, exact), most) << dtype;
    EXPECT_TRUE(at::equal(t5.encode_ids(ids.slice(0, 1))[0], states[1])) << dtype;  // whatever is beside it
  }
  EXPECT_EQ(T5(text_config(), folder.open(), at::kFloat).weight_bytes(), 4 * 137'856);
  EXPECT_EQ(T5(text_config(), folder.open(), at::kHalf).weight_bytes(), 2 * 137'856 + 2 * 3 * 64 * 96);
}

// Scores of more than 2^24 are computed in parts.
TEST(T5, LongTextsAreComputedInParts) {
  T5Config config = v10();
  config.num_heads = 14, config.d_kv = 2, config.num_layers = 1;
  const Weights weights = random_weights(config);
  const EncoderFolder folder(config, weights);
  const at::Tensor ids = (at::arange(1100) * 37).remainder(128).unsqueeze(0);
  const at::Tensor mask = at::ones({1, 1100}, at::kBool);
  mask[0].slice(0, 1000).fill_(false);
  const T5 t5(text_config(), folder.open(), at::kDouble);
  EXPECT_LT(range_error(t5.encode_ids(ids, mask), plain(config, weights, ids, mask)), 1e-12);
}

TEST(T5, CanLeaveAndComeBack) {
  const EncoderFolder folder(v11(), random_weights(v11()));
  T5 t5(text_config(), folder.open(), at::kFloat);
  const at::Tensor ids = golden_ids().slice(1, 0, 10), states = t5.encode_ids(ids);
  t5.unload();
  EXPECT_TRUE(at::equal(t5.encode_ids(ids), states));
  t5.to(at::kCPU);
  EXPECT_TRUE(at::equal(t5.encode_ids(ids), states));
}

// ---- folders and prompts

TEST(T5, ReadsPrompts) {
  const EncoderFolder folder(v11(), random_weights(v11()));
  write_vocabulary(folder.path() / "spiece.model", {"a", "red", "star"});
  const T5 t5(text_config(5), folder.open());
  const T5::Ids read = t5.ids(Texts{"a red star", "", "star star star star star", "a blue \xe2\x9a\xa1"});
  const at::Tensor expected =
      at::tensor({3, 4, 5, 1, 0, 1, 0, 0, 0, 0, 5, 5, 5, 5, 1, 3, 2, 1, 0, 0}, at::kLong).view({4, 5});
  EXPECT_TRUE(at::equal(read.ids, expected)) << read.ids;
  EXPECT_EQ(read.mask.sum(1).equal(at::tensor({4, 1, 5, 3}, at::kLong)), true);
  EXPECT_EQ(read.warnings,
            (Texts{"prompt: expected at most 5 pieces of text, got 6: truncated to 5",
                   "\"blue \xe2\x9a\xa1\" is not in the text encoder's vocabulary and means nothing to it"}));
}

TEST(T5, HidesPaddingOrDoesNot) {
  const EncoderFolder folder(v11(), random_weights(v11()));
  write_vocabulary(folder.path() / "spiece.model", {"a", "red", "star"});
  const Texts prompts{"a red star", ""};
  const T5 masked(text_config(7), folder.open()), unmasked(text_config(7, false), folder.open());
  const T5::Ids read = masked.ids(prompts);
  const EncodedText with = masked.encode(prompts), without = unmasked.encode(prompts);
  EXPECT_TRUE(at::equal(with.tokens, masked.encode_ids(read.ids, read.mask)));
  EXPECT_TRUE(at::equal(with.mask, read.mask));
  EXPECT_TRUE(at::equal(without.tokens, masked.encode_ids(read.ids)));
  EXPECT_TRUE(without.mask.all().item<bool>());
  EXPECT_EQ(without.tokens.sizes(), (at::IntArrayRef{2, 7, 64}));
  EXPECT_GT((with.tokens - without.tokens)[0][0].abs().max().item<double>(), 0.1);
  EXPECT_EQ(masked.encode(Texts{}).tokens.sizes(), (at::IntArrayRef{0, 7, 64}));
  EXPECT_EQ(masked.hash(), unmasked.hash());
  EXPECT_NE(masked.settings(), unmasked.settings());
}

TEST(T5, OpensAsATextEncoder) {
  const EncoderFolder folder(v11(), random_weights(v11()));
  write_vocabulary(folder.path() / "spiece.model", {"a", "red", "star"});
  TextConfig config = text_config(6);
  config.width = 64;
  const std::unique_ptr<TextEncoder> encoder = open_text_encoder(config, folder.open(), at::kBFloat16);
  EXPECT_EQ(encoder->width(), 64);
  EXPECT_EQ(encoder->limit(), 6);
  EXPECT_EQ(encoder->hash().size(), 64U);
  EXPECT_EQ(encoder->encode(Texts{"a star"}).tokens.scalar_type(), at::kBFloat16);
  config.width = 65;
  EXPECT_EQ(message_of([&] { open_text_encoder(config, folder.open()); }),
            folder.path().string() + ": d_model: expected 65, as text.width says, got 64");
}

TEST(T5, RefusesVocabulariesOfAnother) {
  T5Config small = v10();
  small.vocab_size = 5;
  const EncoderFolder folder(small, random_weights(small));
  const std::string path = folder.path() / "spiece.model";
  write_vocabulary(path, {"a", "red", "star"});
  EXPECT_EQ(message_of([&] { T5(text_config(), folder.open()); }),
            path + ": expected at most 5 pieces, as vocab_size of " + folder.path().string() +
                "/config.json says, got 6");
  std::ofstream(path, std::ios::binary)
      << protobuf(1, protobuf(1, "<unk>") + "\x18\x02") + protobuf(1, protobuf(1, "a"));
  EXPECT_EQ(message_of([&] { T5(text_config(), folder.open()); }),
            path + ": expected </s>, a control piece, as piece 1");
  fs::remove(path);
  const T5 mute(text_config(), folder.open());
  EXPECT_EQ(message_of([&] { mute.encode(Texts{"a"}); }),
            "text: no spiece.model: looked for text_encoder/spiece.model, tokenizer/spiece.model, "
            "spiece.model in " +
                folder.path().string());
  EXPECT_EQ(mute.encode_ids(at::zeros({1, 3}, at::kLong)).size(2), 48);
}

TEST(T5, SaysWhatTurnsInfiniteInHalfPrecision) {
  Weights weights = random_weights(v10());
  weights["encoder.final_layer_norm.weight"] *= 1e6;
  const EncoderFolder folder(v10(), weights);
  const at::Tensor ids = at::ones({1, 4}, at::kLong);
  EXPECT_EQ(message_of([&] { T5(text_config(), folder.open(), at::kHalf).encode_ids(ids); }),
            folder.path().string() +
                ": expected finite tokens, got others in fp16: the weights are too "
                "large for it; use bf16 or fp32");
  EXPECT_EQ(message_of([&] { T5(text_config(), folder.open(), at::kBFloat16).encode_ids(ids); }), "no error");
}

// What config.json says of words is as it was before there were others.
TEST(T5, TextConfigSaysWhatItsKindNeeds) {
  TextConfig words, t5 = text_config(226, false);
  EXPECT_EQ(io::write_json(words), R"({"kind":"words","width":128,"limit":64,"layers":2})");
  EXPECT_EQ(io::write_json(t5), R"({"kind":"t5","width":128,"limit":226,"mask":false})");
  TextConfig back;
  io::read_json(io::write_json(t5), back, "config.json");
  EXPECT_EQ(back.kind, "t5");
  EXPECT_FALSE(back.mask);
}

}  // namespace
}  // namespace pom::codecs
