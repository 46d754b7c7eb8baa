// Tests of checkpoints: what is written comes back, what is damaged is refused and says how, and which files
// of a folder are taken and kept.
#include "pom/train/checkpoint.h"

#include "tests/train/small_checkpoint.h"
#include <algorithm>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <memory>
#include <sstream>

#include <c10/core/CPUAllocator.h>

#include "pom/base/error.h"
#include "pom/io/safetensors.h"

namespace pom::train {
namespace {

namespace fs = std::filesystem;
namespace st = io::safetensors;
using testing::same;
using testing::small_checkpoint;

std::string contents(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void put(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-checkpoint-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  fs::path write(std::int64_t step) {
    write_checkpoint(folder, small_checkpoint(step));
    return folder / checkpoint_name(step);
  }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      names.insert(entry.path().filename().string());
    return names;
  }

  // A file like the one of a checkpoint, after `change` has had its tensors and metadata.
  template <class Change>
  fs::path rewritten(const fs::path& path, Change change) {
    const st::File file = st::File::open(path);
    std::vector<st::TensorView> tensors = file.tensors();
    st::Metadata metadata = *file.header().metadata();
    change(tensors, metadata);
    const fs::path other = folder / "other.safetensors";
    st::write(other, tensors, metadata);
    return other;
  }

  fs::path folder;
};

using Tensors = std::vector<st::TensorView>;

TEST_F(CheckpointTest, Names) {
  EXPECT_EQ(checkpoint_name(0), "step_00000000.safetensors");
  EXPECT_EQ(checkpoint_name(1000), "step_00001000.safetensors");
  EXPECT_EQ(checkpoint_name(12'345'678'901), "step_12345678901.safetensors");
  EXPECT_THROW(checkpoint_name(-1), Error);
}

TEST_F(CheckpointTest, ReadsWhatWasWritten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    Checkpoint checkpoint = small_checkpoint(1000, dtype);
    checkpoint.weights["in.weight"] = checkpoint.weights["in.weight"].t().contiguous().t();  // strided
    write_checkpoint(folder, checkpoint);
    const Checkpoint again = read_checkpoint(folder / "step_00001000.safetensors");
    EXPECT_TRUE(same(again, checkpoint));
    EXPECT_TRUE(again.ema.at("in.weight").is_contiguous());
  }
  EXPECT_EQ(files(), std::set<std::string>{"step_00001000.safetensors"});
}

TEST_F(CheckpointTest, TheSameTwiceIsTheSameFile) {
  const std::string first = contents(write(5));
  EXPECT_EQ(contents(write(5)), first);
}

TEST_F(CheckpointTest, GroupsOfDifferentPrecisionComeBack) {
  Checkpoint checkpoint = small_checkpoint(3);
  checkpoint.moment2 = testing::small_weights(9, at::kDouble);
  write_checkpoint(folder, checkpoint);
  EXPECT_TRUE(same(read_checkpoint(folder / checkpoint_name(3)), checkpoint));
}

TEST_F(CheckpointTest, RefusesToWriteWhatItCouldNotRead) {
  const auto refusal = [&](auto change) {
    Checkpoint checkpoint = small_checkpoint(1);
    change(checkpoint);
    return error_of([&] { write_checkpoint(folder, checkpoint); });
  };
  EXPECT_EQ(refusal([](Checkpoint& c) { c.ema.erase("scale"); }),
            "write_checkpoint: ema/scale: missing; expected it next to weights/scale");
  EXPECT_EQ(refusal([](Checkpoint& c) { c.moment1["extra"] = at::zeros({1}); }),
            "write_checkpoint: moment1/extra: expected weights/extra next to it, got nothing");
  EXPECT_EQ(refusal([](Checkpoint& c) { c.moment2["in.bias"] = at::zeros({3}); }),
            "write_checkpoint: moment2/in.bias: expected shape (2), as of weights/in.bias, got (3)");
  EXPECT_EQ(refusal([](Checkpoint& c) { c.weights["scale"] = at::zeros({}, at::kBFloat16); }),
            "write_checkpoint: weights/scale: expected fp32 or fp64, got BFloat16");
  EXPECT_NE(refusal([](Checkpoint& c) { c.recipe = "\xff"; }).find("UTF-8"), std::string::npos);
  EXPECT_TRUE(files().empty());
}

// ---- damage ----

TEST_F(CheckpointTest, EveryFlippedByteIsNoticed) {
  const fs::path path = write(7);
  const std::string whole = contents(path);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto put_byte = [&](std::size_t i, char byte) {
    file.seekp(static_cast<std::streamoff>(i)).put(byte).flush();
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const int bit = i % 2 == 0 ? 0 : 5;
    put_byte(i, static_cast<char>(whole[i] ^ (1 << bit)));
    ASSERT_NE(error_of([&] { read_checkpoint(path); }), "") << "byte " << i << ", bit " << bit;
    put_byte(i, whole[i]);
  }
  EXPECT_EQ(error_of([&] { read_checkpoint(path); }), "") << "all bytes are back";
  std::string damaged = whole;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  put(path, damaged);
  const std::string message = error_of([&] { read_checkpoint(path); });
  EXPECT_EQ(message.find("read_checkpoint: " + path.string() + ": expected SHA-256 "), 0u) << message;
  EXPECT_NE(message.find("it is damaged"), std::string::npos);
  put(path, whole);
  EXPECT_TRUE(same(read_checkpoint(path), small_checkpoint(7)));
}

TEST_F(CheckpointTest, EveryTruncationIsNoticed) {
  const fs::path path = write(7);
  const std::string whole = contents(path);
  for (std::size_t size = whole.size(); size-- > 0;) {
    fs::resize_file(path, size);
    const std::string message = error_of([&] { read_checkpoint(path); });
    ASSERT_NE(message.find(path.string()), std::string::npos) << size << ": " << message;
  }
  put(path, whole + "x");
  EXPECT_NE(error_of([&] { read_checkpoint(path); }), "");
}

TEST_F(CheckpointTest, SaysWhatIsMissing) {
  const fs::path path = write(7);
  const auto refusal = [&](auto change) {
    const fs::path other = rewritten(path, change);
    const std::string where = "read_checkpoint: " + other.string() + ": ";
    const std::string message = error_of([&] { read_checkpoint(other); });
    EXPECT_EQ(message.find(where), 0u) << message;
    return message.substr(std::min(where.size(), message.size()));
  };
  EXPECT_EQ(refusal([](Tensors& tensors, st::Metadata&) {
              std::erase_if(tensors, [](const st::TensorView& t) { return t.name.starts_with("moment2/"); });
            }),
            "moment2/in.bias: missing; expected it next to weights/in.bias");
  EXPECT_EQ(refusal([](Tensors& tensors, st::Metadata&) {
              std::erase_if(tensors, [](const st::TensorView& t) { return t.name == "weights/scale"; });
            }),
            "ema/scale: expected weights/scale next to it, got nothing");
  EXPECT_EQ(refusal([](Tensors& tensors, st::Metadata&) {
              for (st::TensorView& t : tensors)
                if (t.name == "ema/scale") t.name = "emu/scale";
            }),
            "expected tensors of weights/, ema/, moment1/ and moment2/, got \"emu/scale\"");
  static const std::vector<std::int64_t> two = {1, 2};
  EXPECT_EQ(refusal([](Tensors& tensors, st::Metadata&) {
              for (st::TensorView& t : tensors)
                if (t.name == "ema/in.bias") t.shape = two;
            }),
            "ema/in.bias: expected shape (2), as of weights/in.bias, got (1, 2)");
  EXPECT_EQ(refusal([](Tensors&, st::Metadata& metadata) { metadata[0].second = "2"; }),
            "expected a checkpoint of format 1, got format 2");
  for (const std::size_t i : {0, 1, 2, 3}) {
    const char* keys[] = {"format", "state", "recipe", "sha256"};
    EXPECT_EQ(refusal([&](Tensors&, st::Metadata& metadata) {
                metadata.erase(metadata.begin() + static_cast<std::ptrdiff_t>(i));
              }),
              "expected metadata \"" + std::string(keys[i]) + "\", got none: not a checkpoint");
  }
  EXPECT_EQ(refusal([](Tensors&, st::Metadata& metadata) { metadata.emplace_back("more", ""); }),
            "expected metadata format, state, recipe and sha256, got \"more\" as well");
}

// Whatever the digest covers: a change of any of it that keeps the file well-formed.
TEST_F(CheckpointTest, TheDigestCoversAll) {
  const fs::path path = write(7);
  const auto refused = [&](auto change) {
    const fs::path other = rewritten(path, change);
    return error_of([&] { read_checkpoint(other); }).find("expected SHA-256") != std::string::npos;
  };
  EXPECT_FALSE(refused([](Tensors&, st::Metadata&) {}));
  EXPECT_TRUE(refused([](Tensors&, st::Metadata& metadata) { metadata[1].second += " "; }));
  EXPECT_TRUE(refused([](Tensors&, st::Metadata& metadata) { metadata[2].second += "\n"; }));
  EXPECT_TRUE(refused([](Tensors&, st::Metadata& metadata) {  // the border between the two
    metadata[2].second.insert(0, 1, metadata[1].second.back());
    metadata[1].second.pop_back();
  }));
  static const std::vector<std::int64_t> shape = {3, 2};
  EXPECT_TRUE(refused([](Tensors& tensors, st::Metadata&) {
    for (st::TensorView& t : tensors)
      if (t.name.ends_with("in.weight")) t.shape = shape;
  }));
  EXPECT_TRUE(refused([](Tensors& tensors, st::Metadata&) {
    std::swap(tensors[0].data, tensors[4].data);  // in.bias of two groups
  }));
  static std::string names[4] = {"weights/x", "ema/x", "moment1/x", "moment2/x"};
  EXPECT_TRUE(refused([](Tensors& tensors, st::Metadata&) {
    int i = 0;
    for (const char* name : {"weights/scale", "ema/scale", "moment1/scale", "moment2/scale"})
      for (st::TensorView& t : tensors)
        if (t.name == name) t.name = names[i++];
  }));
}

TEST_F(CheckpointTest, AModelIsNoCheckpoint) {
  models::write_weights(folder / "model.safetensors", testing::small_weights(1), at::kFloat);
  EXPECT_EQ(error_of([&] { read_checkpoint(folder / "model.safetensors"); }),
            "read_checkpoint: " + (folder / "model.safetensors").string() +
                ": expected metadata \"format\", got none: not a checkpoint");
  EXPECT_NE(error_of([&] { read_checkpoint(folder / "none"); }).find("No such file"), std::string::npos);
}

// ---- folders ----

TEST_F(CheckpointTest, ListsTheNewestFirstAndNothingElse) {
  for (const char* name : {"step_00000010.safetensors", "step_00000009.safetensors",
                           "step_123456789.safetensors", "step_99999999.safetensors"})
    put(folder / name, "");
  for (const char* name : {"step_9.safetensors", "step_00000011.safetensors.bak", "step_-0000001.safetensors",
                           "model.safetensors", "step_000000011.safetensors", "step_00000x11.safetensors",
                           ".pom-tmp-0123456789abcdef"})
    put(folder / name, "");
  fs::create_directory(folder / "step_00000077.safetensors");
  std::vector<std::string> names;
  for (const fs::path& path : list_checkpoints(folder)) names.push_back(path.filename().string());
  EXPECT_EQ(names, (std::vector<std::string>{"step_123456789.safetensors", "step_99999999.safetensors",
                                             "step_00000010.safetensors", "step_00000009.safetensors"}));
  EXPECT_TRUE(list_checkpoints(folder / "none").empty());
  EXPECT_NE(error_of([&] { list_checkpoints(folder / "model.safetensors"); }).find("list_checkpoints: "),
            std::string::npos);
}

TEST_F(CheckpointTest, TakesTheNewestThatIsWhole) {
  std::vector<std::string> told;
  const auto newest = [&] {
    told.clear();
    return newest_checkpoint(folder, [&](const fs::path& path, const std::string& why) {
      EXPECT_NE(why.find(path.string()), std::string::npos) << why;
      told.push_back(path.filename().string());
    });
  };
  EXPECT_FALSE(newest());
  for (const std::int64_t step : {10, 20, 30}) write(step);
  EXPECT_TRUE(same(*newest(), small_checkpoint(30)));
  EXPECT_TRUE(told.empty());
  fs::resize_file(folder / checkpoint_name(30), fs::file_size(folder / checkpoint_name(30)) - 1);
  EXPECT_TRUE(same(*newest(), small_checkpoint(20)));
  EXPECT_EQ(told, (std::vector<std::string>{"step_00000030.safetensors"}));
  put(folder / checkpoint_name(20), "");
  EXPECT_TRUE(same(*newest(), small_checkpoint(10)));
  EXPECT_EQ(told, (std::vector<std::string>{"step_00000030.safetensors", "step_00000020.safetensors"}));
  put(folder / checkpoint_name(10), std::string(100, 'x'));
  EXPECT_FALSE(newest());
  EXPECT_EQ(told.size(), 3u);
  EXPECT_EQ(files().size(), 3u) << "damaged files stay";
}

TEST_F(CheckpointTest, PassesOverTheNewest) {
  for (const std::int64_t step : {10, 20, 30, 40}) write(step);
  const auto step_after = [&](std::int64_t passed_over) {
    return newest_checkpoint(folder, nullptr, passed_over)->state.step;
  };
  EXPECT_EQ(step_after(0), 40);
  EXPECT_EQ(step_after(2), 20);
  EXPECT_EQ(step_after(9), 10) << "the oldest, where there are fewer";
  put(folder / checkpoint_name(30), "damaged");
  EXPECT_EQ(step_after(1), 20) << "one that is damaged does not count";
  put(folder / checkpoint_name(10), "damaged");
  EXPECT_EQ(step_after(9), 20) << "the oldest that is whole, which comes before a damaged one";
}

// Tensors' memory that is in use, and the most that was.
class CountedMemory : public c10::Allocator {
 public:
  CountedMemory() { c10::SetCPUAllocator(this, priority); }
  ~CountedMemory() override { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), priority); }

  c10::DataPtr allocate(std::size_t bytes) override {
    auto* block = new Block{c10::GetDefaultCPUAllocator()->allocate(bytes), bytes, this};
    used_ += bytes;
    most_ = std::max(most_, used_);
    return {block->memory.get(), block, free, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  std::size_t most() const { return most_; }

 private:
  static constexpr std::uint8_t priority = 1;  // above the default's
  struct Block {
    c10::DataPtr memory;
    std::size_t bytes;
    CountedMemory* owner;
  };
  static void free(void* block) {
    const std::unique_ptr<Block> gone(static_cast<Block*>(block));
    gone->owner->used_ -= gone->bytes;
  }

  std::size_t used_ = 0, most_ = 0;
};

TEST_F(CheckpointTest, NoMoreThanOneIsInMemory) {
  for (const std::int64_t step : {10, 20, 30}) write(step);
  put(folder / checkpoint_name(5), "damaged");
  const auto most_when = [&](std::int64_t passed_over) {
    CountedMemory memory;
    newest_checkpoint(folder, nullptr, passed_over);
    return memory.most();
  };
  const std::size_t one = most_when(0);
  EXPECT_GT(one, 0u);
  EXPECT_EQ(most_when(1), one);
  EXPECT_EQ(most_when(2), one);
  EXPECT_EQ(most_when(3), one) << "the last is read again after the damaged one";
}

TEST_F(CheckpointTest, PrunesToTheNewest) {
  for (const std::int64_t step : {10, 20, 30, 40}) write(step);
  for (const char* name : {".pom-tmp-0123456789abcdef", ".pom-tmp-ffffffffffffffff", ".pom-tmp-notes",
                           ".pom-tmp-0123456789abcdeg", "notes.txt", "step_5.safetensors", ".lock"})
    put(folder / name, "x");
  fs::create_directory(folder / ".pom-tmp-00000000000000aa");
  prune_checkpoints(folder, 2);
  EXPECT_EQ(files(), (std::set<std::string>{"step_00000030.safetensors", "step_00000040.safetensors",
                                            ".pom-tmp-notes", ".pom-tmp-0123456789abcdeg", "notes.txt",
                                            "step_5.safetensors", ".lock", ".pom-tmp-00000000000000aa"}));
  prune_checkpoints(folder, 5);
  EXPECT_EQ(list_checkpoints(folder).size(), 2u);
  EXPECT_EQ(error_of([&] { prune_checkpoints(folder, 0); }),
            "prune_checkpoints: keep: expected at least 1, got 0");
}

TEST_F(CheckpointTest, PruningKeepsWhatWasWrittenAfterADamagedOne) {
  const auto age = [&](std::int64_t step, int seconds) {
    fs::last_write_time(folder / checkpoint_name(step),
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  };
  for (const std::int64_t step : {10, 20, 15}) write(step);
  put(folder / checkpoint_name(20), "damaged");
  age(10, 30);
  age(20, 20);
  age(15, 10);
  prune_checkpoints(folder, 1);
  EXPECT_EQ(files(), (std::set<std::string>{"step_00000015.safetensors", "step_00000020.safetensors"}));
  EXPECT_TRUE(same(*newest_checkpoint(folder, nullptr), small_checkpoint(15)));
}

}  // namespace
}  // namespace pom::train
