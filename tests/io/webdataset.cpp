// Tests of WebDataset's rules: names to keys and fields, members to samples, patterns to names of shards.
#include "pom/io/webdataset.h"

#include "tests/io/picture_support.h"

namespace pom::io {
namespace {

using WebDatasetTest = PictureTest;
using Names = std::vector<std::string>;

TEST(WebDatasetNames, KeyAndField) {
  const auto split = [](std::string_view name) {
    const auto parts = split_webdataset_name(name);
    return parts ? parts->first + " | " + parts->second : "none";
  };
  EXPECT_EQ(split("a/b/01.mean.NPY"), "a/b/01 | mean.npy");
  EXPECT_EQ(split("a.b/01.txt"), "a.b/01 | txt");
  EXPECT_EQ(split("01."), "01 | ");
  EXPECT_EQ(split("nothing"), "none");
  EXPECT_EQ(split("a.b/nothing"), "none");
  EXPECT_EQ(split(".hidden"), "none");
  EXPECT_EQ(split("a/.hidden"), "a/ | hidden");
  EXPECT_EQ(split("a.b/.hidden"), "none");
}

TEST(WebDatasetNames, Braces) {
  EXPECT_EQ(expand_webdataset("data-{000008..000011}.tar"),
            (Names{"data-000008.tar", "data-000009.tar", "data-000010.tar", "data-000011.tar"}));
  EXPECT_EQ(expand_webdataset("{a,b}{1..2}"), (Names{"a1", "a2", "b1", "b2"}));
  EXPECT_EQ(expand_webdataset("x::y{,z}"), (Names{"x", "y", "yz"}));
  EXPECT_EQ(expand_webdataset("{1,{3..2}}"), (Names{"1", "3", "2"}));
  EXPECT_EQ(expand_webdataset("{0..10..5}{c..a}").size(), 9u);
  EXPECT_EQ(expand_webdataset("{one}\\{"), (Names{"{one}{"}));
  EXPECT_EQ(expand_webdataset("plain.tar"), (Names{"plain.tar"}));
  EXPECT_EQ(expand_webdataset("{-1..01}"), (Names{"-1", "00", "01"}));
  error_of([] { expand_webdataset("{1..3"); }, {"expected a closing brace"});
  error_of([] { expand_webdataset("1..3}"); }, {"expected an opening brace"});
  error_of([] { expand_webdataset("{0..9999999}"); }, {"expected at most 1000000 names"});
  error_of([] { expand_webdataset("{0..999}{0..999}{0..999}"); }, {"expected at most 1000000 names"});
  error_of([] { expand_webdataset(std::string(200, '{') + std::string(200, '}')); }, {"levels of braces"});
}

TEST_F(WebDatasetTest, ConsecutiveMembersOfOneKey) {
  TarWriter writer(folder / "a.tar");
  const Names names = {"__meta__", "1.txt", "1.cls",       "README", "1.json",
                       "2.txt",    "1.txt", "__d__/3.txt", "4.pkl"};
  for (const std::string& name : names) writer.add(name, "of " + name);
  writer.finish();
  WebShard shard(folder / "a.tar");
  std::vector<Names> samples;
  WebSample sample;
  while (shard.next(sample)) {
    samples.push_back({sample.key});
    for (const WebField& field : sample.fields) samples.back().push_back(field.name);
    if (sample.key == "4") {
      error_of([&] { shard.read(sample.fields[0], 100); }, {"member \"4.pkl\"", "a pickle"});
      continue;
    }
    EXPECT_EQ(shard.read(sample.fields[0], 100), "of " + sample.key + ".txt");
    const std::string range = shard.tar().range(sample.begin, sample.end);
    const WebSample again = web_sample_in(range, sample.begin, "range");
    EXPECT_EQ(again.key, sample.key);
    EXPECT_EQ(again.fields.size(), sample.fields.size());
    EXPECT_NE(again.find("txt"), nullptr);
  }
  EXPECT_EQ(samples,
            (std::vector<Names>{{"1", "txt", "cls", "json"}, {"2", "txt"}, {"1", "txt"}, {"4", "pkl"}}));
}

TEST_F(WebDatasetTest, AFieldTwiceIsAnError) {
  TarWriter writer(folder / "a.tar");
  for (const char* name : {"1.txt", "1.TXT"}) writer.add(name, "");
  writer.finish();
  WebSample sample;
  error_of([&] { WebShard(folder / "a.tar").next(sample); },
           {"member \"1.TXT\" at byte 512: the sample has the field txt already"});
}

TEST_F(WebDatasetTest, OneSampleOfARange) {
  const std::string first = tar_member("1.txt", {}), second = tar_member("2.txt", {});
  error_of([&] { web_sample_in(first + second, 0, "range"); }, {"range: at byte 0: expected one sample"});
  error_of([&] { web_sample_in("", 512, "range"); }, {"range: at byte 512: expected a sample, got none"});
}

}  // namespace
}  // namespace pom::io
