// Tests of checkpoints through a crash: killed or out of space at every step of a save, the folder still has
// a whole checkpoint, the last or the one before.
#include "tests/base/child.h"
#include "tests/train/small_checkpoint.h"
#include <cstdlib>
#include <gtest/gtest.h>

namespace pom::train {
namespace {

namespace fs = std::filesystem;
using pom::testing::Ending;
using pom::testing::in_child;
using testing::same;
using testing::small_checkpoint;

class CheckpointCrash : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-crash-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
    ASSERT_EQ(save(10, "").code, 0);
  }
  void TearDown() override { fs::remove_all(folder); }

  Ending save(std::int64_t step, const char* failpoint) {
    return in_child(failpoint, [&] { write_checkpoint(folder, small_checkpoint(step)); });
  }

  // The step of the newest checkpoint, when it is what was written and nothing in the folder is damaged.
  std::int64_t newest() const {
    bool damaged = false;
    const auto found = newest_checkpoint(folder, [&](auto&&...) { damaged = true; });
    return found && !damaged && same(*found, small_checkpoint(found->state.step)) ? found->state.step : -1;
  }

  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  }

  fs::path folder;
};

TEST_F(CheckpointCrash, KilledAtEveryStepOfASave) {
  const char* const before[] = {"atomic_file.create:1", "atomic_file.write:1",  "atomic_file.write:2",
                                "atomic_file.write:9",  "atomic_file.write:17", "atomic_file.sync:1",
                                "atomic_file.close:1",  "atomic_file.rename:1"};
  for (const char* failpoint : before) {
    EXPECT_TRUE(save(20, failpoint).killed) << failpoint;
    EXPECT_EQ(newest(), 10) << failpoint;
  }
  EXPECT_EQ(files(), 2) << "the one before, and what the last one left: each removes what it finds";
  prune_checkpoints(folder, 3);
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(save(20, "atomic_file.sync_folder:1").killed);
  EXPECT_EQ(newest(), 20);
  EXPECT_EQ(files(), 2);
}

TEST_F(CheckpointCrash, AFullDiskLeavesEarlierCheckpointsAlone) {
  for (const char* failpoint :
       {"atomic_file.create:1:ENOSPC", "atomic_file.write:1:ENOSPC", "atomic_file.write:9:ENOSPC",
        "atomic_file.sync:1:ENOSPC", "atomic_file.close:1:ENOSPC", "atomic_file.rename:1:ENOSPC"}) {
    const Ending ending = save(20, failpoint);
    EXPECT_EQ(ending.code, 1) << failpoint;
    EXPECT_NE(ending.error.find("No space left on device"), std::string::npos) << ending.error;
    EXPECT_NE(ending.error.find("step_00000020.safetensors"), std::string::npos) << ending.error;
    EXPECT_EQ(newest(), 10) << failpoint;
    EXPECT_EQ(files(), 1) << failpoint;
  }
}

TEST_F(CheckpointCrash, ASaveOverADamagedOneMendsIt) {
  ASSERT_EQ(save(20, "").code, 0);
  fs::resize_file(folder / checkpoint_name(20), 100);
  EXPECT_TRUE(save(20, "atomic_file.rename:1").killed);
  EXPECT_EQ(newest(), -1) << "still damaged";
  EXPECT_EQ(save(20, "").code, 0);
  EXPECT_EQ(newest(), 20);
}

}  // namespace
}  // namespace pom::train
