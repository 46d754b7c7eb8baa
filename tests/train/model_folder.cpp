// Tests of the model folder that a run writes: killed at any step of a save, and with readers beside it, its
// files are those of one save.
#include "pom/train/model_folder.h"

#include "tests/base/child.h"
#include "tests/train/small_checkpoint.h"
#include <atomic>
#include <cstdlib>
#include <gtest/gtest.h>
#include <thread>

#include <ATen/ops/full.h>

#include "pom/base/error.h"
#include "pom/codecs/words.h"
#include "pom/generate/model_files.h"
#include "pom/generate/text_folder.h"
#include "pom/train/run_folder.h"
#include "pom/train/training_model.h"

namespace pom::train {
namespace {

namespace fs = std::filesystem;
using pom::testing::Ending;
using pom::testing::in_child;

Recipe recipe_of(int save) {
  const std::vector<std::string> sets = {
      "data.kind=sprites", "data.size=[8, 8]",   "data.frames=8",      "network.kind=vdipom",
      "network.dim=16",    "network.depth=1",    "network.patch=4",    "network.patch_time=2",
      "text.width=8",      "text.limit=8",       "text.layers=1",      "network.text_width=8",
      "network.classes=1", "network.channels=3", "sample.size=[8, 8]", "log.model_dtype=fp32"};
  Recipe recipe = parse_recipe("", "tiny", sets);
  recipe.run.name = detail::concat("save", save);
  return recipe;
}

// All values are the number of the save, and the words tell it too.
void write_save(const fs::path& folder, int save) {
  const Recipe recipe = recipe_of(save);
  models::Weights weights;
  for (const models::TensorSpec& spec : models::expected_tensors(recipe.network))
    weights[spec.name] = at::full(spec.shape, save);
  const std::string words = detail::concat("a\nword", save, "\n");
  const codecs::Words encoder(recipe.text, codecs::WordPieces::from_lines(words));
  for (const auto& [name, tensor] : encoder.weights())
    weights[text_name(name)] = at::full(tensor.sizes(), save);
  write_model(folder, recipe, {}, weights, words);
}

// The number of the save that all files are of; else what is in them.
std::string read_save(const fs::path& folder) {
  generate::ModelFiles files = generate::open_model(folder);
  const codecs::Words words = codecs::Words::open(generate::stored_text_config(*files.text), *files.text);
  const auto number = [](const at::Tensor& tensor) {
    return std::to_string(static_cast<int>(tensor.flatten()[0].item<float>()));
  };
  const std::string config = files.config.name, network = number(files.weights.take().at("out_proj.bias")),
                    text = number(words.weights().at("places")), word = words.vocabulary().words().back();
  if (config == "save" + network && text == network && word == "word" + network) return network;
  return detail::concat("mixed: ", config, ", ", network, ", ", text, ", ", word);
}

class ModelFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-model-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root = name;
    folder = root / "model";
    ASSERT_EQ(save(1, "").error, "");
  }
  void TearDown() override { fs::remove_all(root); }

  Ending save(int number, const std::string& failpoint) {
    return in_child(failpoint.c_str(), [&] { write_save(folder, number); });
  }

  fs::path root, folder;
};

TEST_F(ModelFolder, KilledBetweenAnyTwoWritesOfASave) {
  ASSERT_EQ(read_save(folder), "1");
  std::vector<std::string> before = {"folder_swap.create:1", "folder_swap.take_along:1", "folder_swap.sync:1",
                                     "folder_swap.exchange:1"};
  for (const char* step : {"create", "write", "sync", "close", "rename", "sync_folder"})
    for (const char* file : {":1", ":2", ":3"}) before.push_back(std::string("atomic_file.") + step + file);
  for (const std::string& failpoint : before) {
    EXPECT_TRUE(save(2, failpoint).killed) << failpoint;
    EXPECT_EQ(read_save(folder), "1") << failpoint;
  }
  for (const char* failpoint : {"folder_swap.sync_folder:1", "folder_swap.remove:1"}) {
    EXPECT_TRUE(save(2, failpoint).killed) << failpoint;
    EXPECT_EQ(read_save(folder), "2") << failpoint;
  }
  EXPECT_EQ(save(3, "").error, "");
  EXPECT_EQ(read_save(folder), "3");
}

TEST_F(ModelFolder, LeftoversGoWhenTheRunIsOpened) {
  EXPECT_TRUE(save(2, "atomic_file.rename:3").killed);
  EXPECT_TRUE(save(2, "folder_swap.exchange:1:EINVAL,folder_swap.rename:1").killed);
  EXPECT_FALSE(fs::exists(folder)) << "it is set aside";
  EXPECT_EQ(read_save(folder), "1") << "and found there";
  const Ending opened = in_child("", [&] {
    fs::create_directory(root / "checkpoints");
    write_checkpoint(root / "checkpoints", testing::small_checkpoint(10));
    const RunFolder run(root, true);
  });
  EXPECT_EQ(opened.error, "");
  EXPECT_EQ(read_save(folder), "1");
  for (const fs::directory_entry& entry : fs::directory_iterator(root))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".pom-")) << entry.path();
}

TEST_F(ModelFolder, IsOfOneSaveForAReaderBesideTheWriter) {
  const Ending ending = in_child("", [&] {
    std::atomic<bool> done = false;
    std::thread writer([&] {
      for (int i = 2; i < 40; ++i) write_save(folder, i);
      done = true;
    });
    std::string wrong;
    for (int reads = 0; !done || reads < 20; ++reads) {
      try {
        if (const std::string found = read_save(folder); found.starts_with("mixed")) wrong = found;
      } catch (const Error& error) {
        wrong = error.what();
      }
    }
    writer.join();
    check(wrong.empty(), wrong);
  });
  EXPECT_EQ(ending.error, "");
  EXPECT_EQ(ending.code, 0);
}

}  // namespace
}  // namespace pom::train
