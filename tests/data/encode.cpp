// Crops, the pool of workers, and where `pom encode` finds what it encodes.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <numeric>
#include <unistd.h>

#include "pom/base/error.h"
#include "pom/data/clips.h"
#include "pom/data/encode_source.h"
#include "pom/data/ordered_work.h"
#include "pom/data/resample.h"
#include "pom/io/tar.h"

namespace pom::data {
namespace {

namespace fs = std::filesystem;

io::Image noise_picture(int width, int height) {
  io::Image picture = io::make_image("test", width, height, 3);
  std::uint32_t state = 1;
  for (std::uint8_t& sample : picture.data) {
    state = state * 1664525u + 1013904223u;
    sample = static_cast<std::uint8_t>(state >> 24);
  }
  return picture;
}

// FNV-1a; the values below are those of Pillow 13 for the same pictures.
std::uint64_t sum_of(const std::vector<std::uint8_t>& bytes) {
  std::uint64_t sum = 14695981039346656037u;
  for (const std::uint8_t byte : bytes) sum = (sum ^ byte) * 1099511628211u;
  return sum;
}

TEST(Resample, IsPillows) {
  const io::Image picture = noise_picture(37, 23);
  EXPECT_EQ(sum_of(resample(picture, 16, 40, Filter::bicubic).data), 13745854392243069361u);
  EXPECT_EQ(sum_of(resample(picture, 20, 9, Filter::bilinear).data), 15756500710993067005u);
  EXPECT_EQ(sum_of(resample(picture, 18, 11, Filter::box).data), 9002488184540964599u);
}

TEST(Resample, LeavesThePictureOfThisSizeAsItIs) {
  const io::Image picture = noise_picture(8, 5);
  EXPECT_EQ(resample(picture, 8, 5, Filter::bicubic), picture);
}

std::vector<std::uint8_t> crop(const io::Image& picture, const std::string& name, int width, int height) {
  std::vector<std::uint8_t> planes(static_cast<std::size_t>(3 * width * height)), rows(planes.size());
  crop_picture(picture, name, width, height, planes.data());
  const auto pixels = static_cast<std::size_t>(width * height);
  for (std::size_t i = 0; i < pixels; ++i)
    for (std::size_t c = 0; c < 3; ++c) rows[3 * i + c] = planes[c * pixels + i];
  return rows;
}

TEST(Crop, IsAdms) {
  EXPECT_EQ(sum_of(crop(noise_picture(150, 97), "adm", 16, 16)), 10706956834077374232u);  // halved twice
  EXPECT_EQ(sum_of(crop(noise_picture(13, 21), "adm", 16, 16)), 6923232730865472762u);    // grows
}

TEST(Crop, IsTheAuthors) {
  EXPECT_EQ(sum_of(crop(noise_picture(61, 40), "homm", 16, 16)), 98101672183173939u);
  EXPECT_EQ(sum_of(crop(noise_picture(90, 50), "homm-clips", 24, 16)), 13797256095554703342u);
}

TEST(Crop, CoversWhateverThePicture) {
  for (const char* name : {"homm", "homm-clips", "cover"})
    for (const auto& [w, h] : {std::pair{1, 1}, {7, 300}, {300, 7}, {24, 16}})
      EXPECT_NO_THROW(crop(noise_picture(w, h), name, 24, 16)) << name << w << "x" << h;
  EXPECT_NO_THROW(crop(noise_picture(3, 200), "adm", 16, 16));
}

TEST(Crop, RefusesWhatItCannotGive) {
  const auto message = [](const std::string& name, std::int64_t width) {
    try {
      check_crop(name, width, 16);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("adm", 24), "crop: adm: expected a square, got 24x16");
  EXPECT_NE(message("admm", 16).find("did you mean \"adm\"?"), std::string::npos);
  // A side that would be a thousand million pixels long is an error, and nothing is allocated for it.
  EXPECT_THROW(crop(noise_picture(1, 60000), "homm", 8192, 8192), Error);
}

TEST(OrderedWork, KeepsTheOrderAndStaysWithinItsBounds) {
  std::atomic<std::int64_t> made = 0, taken = 0, most = 0;
  OrderedWork<std::int64_t> work(5, 300, 4, 9, [&](std::int64_t i) {
    const std::int64_t ahead = ++made - taken;
    for (std::int64_t seen = most; ahead > seen && !most.compare_exchange_weak(seen, ahead);) {
    }
    if (i % 7 == 0) std::this_thread::yield();
    return 10 * i;
  });
  for (std::int64_t i = 5; i < 300; ++i) {
    ASSERT_EQ(work.next(), 10 * i);
    ++taken;
  }
  EXPECT_LE(most, 11);
}

TEST(OrderedWork, CarriesWhatIsThrownToWhoTakesIt) {
  OrderedWork<int> work(0, 10, 3, 4, [](std::int64_t i) {
    if (i == 4) throw std::runtime_error("no memory");
    return static_cast<int>(i);
  });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(work.next(), i);
  EXPECT_THROW(work.next(), std::runtime_error);
  EXPECT_EQ(work.next(), 5);
}

TEST(OrderedWork, EndsBeforeAllIsTaken) {
  OrderedWork<int> work(0, 1000, 2, 4, [](std::int64_t i) { return static_cast<int>(i); });
  EXPECT_EQ(work.next(), 0);
}

class EncodeSources : public testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("pom-encode-" + std::to_string(::getpid()));

  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  }
};

TEST_F(EncodeSources, ReadWebVidsTable) {
  const std::string table = file("webvid.csv",
                                 "id,page,name,file\n"
                                 "1,https://www.shutterstock.com/1,\"A cat, asleep\",a/1.mp4\n"
                                 "2,https://other.org/2,A shutterstock dog,2.mp4\n");
  const auto clips = find_webvid_clips(table);
  ASSERT_EQ(clips.size(), 2u);
  EXPECT_EQ(clips[0].caption, "A cat, asleep, shutterstock watermark");
  EXPECT_EQ(clips[0].path, folder / "a/1.mp4");
  EXPECT_EQ(clips[1].caption, "A shutterstock dog");
  EXPECT_THROW(find_webvid_clips(file("out.csv", "x,../other.mp4\n")), Error);
  EXPECT_THROW(find_webvid_clips(file("one.csv", "1.mp4\n")), Error);
  EXPECT_THROW(find_webvid_clips(file("none.csv", "caption,file\n")), Error);
}

TEST_F(EncodeSources, KeepWhatATarHasAndNameWhatItLacks) {
  const fs::path path = folder / "data-000.tar";
  {
    io::TarWriter tar(path);
    tar.add("a.jpg", "no picture");
    tar.add("a.cls", "2\n");
    tar.add("b.cls", "1");
    tar.add("c.png", "");
    tar.add("c.cls", "-4");
    tar.finish();
  }
  const auto source = open_encode_source((folder / "data-{000..000}.tar").string(), false);
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(source->name_of(0), "data-000.tar/a.jpg");
  EXPECT_EQ(source->classes(), (std::vector<std::string>{"0", "1", "2"}));
  const auto message = [&](std::int64_t index) {
    try {
      source->read(index, {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message(0).find("data-000.tar/a.jpg"), std::string::npos);
  EXPECT_NE(message(1).find("expected jpg, jpeg or png, got none"), std::string::npos);
  EXPECT_NE(message(2).find("cls: expected a number below 65536, got \"-4\""), std::string::npos);
  EXPECT_EQ(source->list_hash(), open_encode_source(folder.string(), false)->list_hash());
}

TEST_F(EncodeSources, RefuseWhatIsNone) {
  EXPECT_THROW(open_encode_source("", false), Error);
  EXPECT_THROW(open_encode_source((folder / "absent").string(), false), Error);
  EXPECT_THROW(open_encode_source(file("words.txt", "x"), true), Error);
  EXPECT_THROW(open_encode_source(file("table.csv", "a,b.mp4"), false), Error);
  EXPECT_THROW(open_encode_source(folder.string(), true), Error);
}

}  // namespace
}  // namespace pom::data
