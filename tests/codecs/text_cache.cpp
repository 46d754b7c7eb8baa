// Encoded prompts on disk.
#include "pom/codecs/text_cache.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

// Counts what it is asked; a prompt's tokens are its length and its bytes.
class Counting : public TextEncoder {
 public:
  explicit Counting(std::vector<std::string>& asked, std::string hash = "1234")
      : asked_(asked), hash_(hash) {}
  std::int64_t width() const override { return 3; }
  std::int64_t limit() const override { return limit_; }
  EncodedText encode(std::span<const std::string> prompts) const override {
    std::int64_t length = 1;
    for (const std::string& prompt : prompts)
      length = std::max(length, static_cast<std::int64_t>(prompt.size()));
    const auto B = static_cast<std::int64_t>(prompts.size());
    EncodedText text{at::zeros({B, length, 3}, at::kBFloat16), at::zeros({B, length}, at::kBool), {}};
    for (std::int64_t b = 0; b < B; ++b) {
      const std::string& prompt = prompts[static_cast<std::size_t>(b)];
      asked_.push_back(prompt);
      for (std::size_t i = 0; i < prompt.size(); ++i) {
        text.tokens[b][static_cast<std::int64_t>(i)].fill_(prompt[i]);
        text.mask[b][static_cast<std::int64_t>(i)] = true;
      }
      if (prompt.ends_with('!')) text.warnings.push_back("\"" + prompt + "\" is loud");
    }
    return text;
  }
  void to(const c10::Device&) override {}
  const std::string& hash() const override { return hash_; }
  std::string settings() const override { return settings_; }
  void unload() override { settings_ += "unloaded"; }

  std::int64_t limit_ = 100;
  std::string settings_ = "plain";

 private:
  std::vector<std::string>& asked_;
  std::string hash_;
};

class Cache : public testing::Test {
 protected:
  Cache() {
    std::string name = (fs::temp_directory_path() / "pom-cache-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = fs::path(name) / "made";
  }
  ~Cache() override { fs::remove_all(folder_.parent_path()); }

  CachedText cached(std::string hash = "1234", std::uint64_t most = 1 << 20) {
    return {std::make_unique<Counting>(asked_, hash), TextCache(folder_, most)};
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  Texts asked() { return std::exchange(asked_, {}); }

  fs::path folder_;
  Texts asked_;
};

TEST_F(Cache, EncodesEachPromptOnce) {
  const Texts prompts{"ab", "c!", "ab", ""};
  const CachedText first = cached();
  const EncodedText made = first.encode(prompts);
  EXPECT_EQ(asked(), (Texts{"ab", "c!", ""}));
  EXPECT_EQ(files(), 3U);
  const EncodedText plain = Counting(asked_).encode(prompts);
  asked();
  EXPECT_TRUE(at::equal(made.tokens, plain.tokens));
  EXPECT_TRUE(at::equal(made.mask, plain.mask));
  EXPECT_EQ(made.tokens.scalar_type(), at::kBFloat16);
  EXPECT_EQ(made.warnings, plain.warnings);
  const EncodedText again = cached().encode(prompts);  // of another process, as it were
  EXPECT_EQ(asked(), Texts{});
  EXPECT_TRUE(at::equal(again.tokens, plain.tokens));
  EXPECT_TRUE(at::equal(again.mask, plain.mask));
  EXPECT_EQ(again.warnings, plain.warnings);
  EXPECT_EQ(cached().encode(Texts{}).tokens.size(0), 0);
}

TEST_F(Cache, KnowsWhatTokensDependOn) {
  const CachedText one = cached(), other = cached("1235");
  EXPECT_NE(one.key_of("a"), one.key_of("b"));
  EXPECT_NE(one.key_of("a"), other.key_of("a"));
  EXPECT_EQ(one.key_of("a").size(), 64U);
  CachedText changed = cached();
  static_cast<Counting&>(changed.encoder()).limit_ = 99;
  EXPECT_NE(one.key_of("a"), changed.key_of("a"));
  CachedText unloaded = cached();
  unloaded.unload();
  EXPECT_NE(one.key_of("a"), unloaded.key_of("a"));
}

TEST_F(Cache, KeepsNothingOfAnEncoderWithoutAHash) {
  const CachedText text = cached("");
  text.encode(Texts{"a"});
  text.encode(Texts{"a"});
  EXPECT_EQ(asked(), (Texts{"a", "a"}));
  EXPECT_EQ(files(), 0U);
}

TEST_F(Cache, MakesDamagedEntriesAgainAndSaysSo) {
  const CachedText text = cached();
  const EncodedText made = text.encode(Texts{"abc"});
  const fs::path file = folder_ / (text.key_of("abc") + ".safetensors");
  const auto size = fs::file_size(file);
  const std::function<void()> damages[] = {
      [&] { fs::resize_file(file, size - 1); },
      [&] { fs::resize_file(file, 0); },
      [&] { std::ofstream(file) << "hello"; },
      [&] {
        std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
        bytes.seekp(-2, std::ios::end).put('\x7f');
      },
      [&] {  // a good entry of another prompt, of another width
        const TextCache cache(folder_);
        TextCache(folder_).put(text.key_of("abc"), {at::zeros({3, 4}), at::ones({3}, at::kBool), {}});
      },
      [&] { fs::remove(file), fs::create_directory(file); },
  };
  for (const auto& damage : damages) {
    asked();
    damage();
    const EncodedText again = text.encode(Texts{"abc"});
    EXPECT_EQ(asked(), Texts{"abc"});
    EXPECT_TRUE(at::equal(again.tokens, made.tokens));
    ASSERT_GE(again.warnings.size(), 1U);
    EXPECT_TRUE(again.warnings[0].starts_with("text cache: a damaged entry is made again: "))
        << again.warnings[0];
    if (fs::is_directory(file)) continue;
    EXPECT_EQ(text.encode(Texts{"abc"}).warnings, Texts{});
    EXPECT_EQ(asked(), Texts{});
  }
}

TEST_F(Cache, StaysWithinItsSizeAndLeavesOthersAlone) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "notes.txt") << std::string(100'000, 'x');
  const CachedText text = cached("1234", 20'000);
  const auto file = [&](int i) { return folder_ / (text.key_of(std::to_string(1000 + i)) + ".safetensors"); };
  const auto use = [&](int i) { text.encode(Texts{std::to_string(1000 + i)}); };
  const auto an_hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (int i = 0; i < 200; ++i) {
    use(0);
    use(i);
    if (i > 0) fs::last_write_time(file(i), an_hour_ago + std::chrono::seconds(i));
    std::uintmax_t bytes = 0;
    for (const auto& item : fs::directory_iterator(folder_)) bytes += item.file_size();
    EXPECT_LE(bytes, 100'000U + 20'000U + 1'000U);
  }
  asked();
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
  EXPECT_TRUE(fs::exists(file(0)));  // used all the time
  EXPECT_TRUE(fs::exists(file(199)));
  EXPECT_FALSE(fs::exists(file(1)));
}

TEST_F(Cache, NeedsAFolder) {
  std::ofstream(folder_) << "a file";
  try {
    TextCache cache(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(
        std::string(error.what()).starts_with("text cache: " + folder_.string() + ": expected a folder"))
        << error.what();
  }
}

}  // namespace
}  // namespace pom::codecs
