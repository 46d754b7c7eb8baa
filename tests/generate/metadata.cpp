// Tests of what pictures say about themselves: written into a PNG and read back, and pictures of others.
#include "pom/generate/metadata.h"

#include <fstream>
#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

Origin origin() {
  Origin o;
  o.request.class_name = "star";
  o.request.seed = {7};
  o.request.steps = 20;
  o.request.sampler = "heun";
  o.request.shift = 1;
  o.request.eta = 0;
  o.request.cfg_scale = 2;
  o.request.cfg_from = 0;
  o.request.cfg_to = 1;
  o.request.clamp = 0;
  o.request.width = 64;
  o.request.height = 64;
  o.request.dtype = "fp32";
  o.model = "shapes64";
  o.model_hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  o.version = "0.1.0";
  return o;
}

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Metadata, TextOfBothKinds) {
  const std::vector<io::TextEntry> text = metadata_of(origin());
  ASSERT_EQ(text.size(), 2u);
  EXPECT_EQ(text[0].keyword, "parameters");
  EXPECT_EQ(text[0].text,
            "star\nSteps: 20, Sampler: Heun, CFG scale: 2, Seed: 7, Size: 64x64, Model hash: 0123456789, "
            "Model: shapes64, Version: libpom 0.1.0");
  EXPECT_EQ(text[1].keyword, "pom");
  EXPECT_EQ(text[1].text.find(R"({"format":1,"request":{"class":"star","seed":7,"count":1,)"), 0u)
      << text[1].text;
}

TEST(Metadata, RoundTripThroughAPicture) {
  const fs::path path = fs::temp_directory_path() / "pom-metadata.png";
  Origin made = origin();
  made.request.class_name = "Zwölf, 星";
  made.request.cfg_scale = 1 + 0.7;
  made.request.seed = {INT64_MAX};
  io::write_png(path, io::make_image("test", 2, 2, 3), metadata_of(made));
  const Origin read = origin_of(io::read_png_text(path), path.string());
  fs::remove(path);
  EXPECT_EQ(request_json(read.request), request_json(made.request));
  EXPECT_EQ(read.request.class_name, made.request.class_name);
  EXPECT_EQ(read.request.cfg_scale, made.request.cfg_scale);
  EXPECT_EQ(read.model, made.model);
  EXPECT_EQ(read.model_hash, made.model_hash);
  EXPECT_EQ(read.version, made.version);
}

TEST(Metadata, PicturesFromWhenClampWasCalledClip) {
  std::vector<io::TextEntry> text = metadata_of(origin());
  const std::string now = R"("clamp":0.0)";
  ASSERT_NE(text[1].text.find(now), std::string::npos) << text[1].text;
  text[1].text.replace(text[1].text.find(now), now.size(), R"("clip":1.5)");
  EXPECT_EQ(origin_of(text, "p.png").request.clamp, 1.5);
  EXPECT_EQ(request_from_json(R"({"clip": 2})", "state").clamp, 2);
}

TEST(Metadata, PicturesOfOthers) {
  const auto refusal = [](std::vector<io::TextEntry> text) {
    return error_of([&] { origin_of(text, "p.png"); });
  };
  EXPECT_NE(refusal({}).find("p.png: expected the text \"pom\""), std::string::npos);
  EXPECT_NE(refusal({}).find("edited"), std::string::npos);
  EXPECT_NE(refusal({{"parameters", "a cat\nSteps: 20"}}).find("only \"parameters\""), std::string::npos);
  EXPECT_EQ(refusal({{"pom", "{"}}).find("p.png: pom: line 1"), 0u);
  EXPECT_EQ(refusal({{"pom", "{}"}}), "p.png: pom: missing field format");
  EXPECT_EQ(refusal({{"pom", R"({"format": 9})"}}), "p.png: pom: format: expected 1 to 1, got 9");
  const fs::path path = fs::temp_directory_path() / "pom-metadata-not.png";
  std::ofstream(path) << "not a png";
  EXPECT_NE(error_of([&] { origin_of(io::read_png_text(path), path.string()); }).find("pom-metadata-not.png"),
            std::string::npos);
  fs::remove(path);
  EXPECT_NE(error_of([&] { origin_of(io::read_png_text(path), path.string()); }).find("No such file"),
            std::string::npos);
}

TEST(Metadata, HalfARequestIsNone) {
  const std::string whole = metadata_of(origin())[1].text;
  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return error_of([&] { origin_of({{"pom", text}}, "p.png"); });
  };
  EXPECT_EQ(refusal("\"steps\":20,", ""), "p.png: pom: request.steps: expected a value, and it is missing");
  EXPECT_EQ(refusal("\"seed\":7,", ""), "p.png: pom: missing field request.seed");
  EXPECT_EQ(refusal("\"seed\":7", "\"seed\":-1").find("p.png: pom: request."), 0u);
  EXPECT_EQ(refusal("\"count\":1", "\"count\":2").find("p.png: pom: request."), 0u);
  EXPECT_EQ(refusal("\"steps\":20", "\"steps\":20.5"),
            "p.png: pom: request.steps: expected an integer, got 20.5");
  EXPECT_EQ(refusal("\"steps\"", "\"stepz\"").find("p.png: pom: request.stepz: unknown field"), 0u);
  EXPECT_NE(refusal("0123456789ab", "0123").find("64 hexadecimal digits"), std::string::npos);
}

TEST(Metadata, ShiftIsSaidWhereThereIsOneAndWasNotThereBefore) {
  Origin made = origin();
  made.request.shift = 3;
  const std::vector<io::TextEntry> text = metadata_of(made);
  EXPECT_NE(text[0].text.find(", Shift: 3, "), std::string::npos) << text[0].text;
  EXPECT_EQ(origin_of(text, "p.png").request.shift, 3);
  std::string older = text[1].text;
  const std::string said = "\"shift\":3.0,";
  ASSERT_NE(older.find(said), std::string::npos) << older;
  older.erase(older.find(said), said.size());
  EXPECT_EQ(origin_of({{"pom", older}}, "p.png").request.shift, 1);
}

TEST(Metadata, NoiseThatIsNotTheSeeds) {
  EXPECT_EQ(metadata_of(origin())[1].text.find("noise"), std::string::npos);
  Origin made = origin();
  made.noise_file = "some/where/noise.safetensors", made.noise_hash = made.model_hash, made.noise_row = 3;
  const std::vector<io::TextEntry> text = metadata_of(made);
  EXPECT_EQ(text[1].text.find("some/where"), std::string::npos) << "a file says nothing of this machine";
  const Origin read = origin_of(text, "p.png");
  EXPECT_EQ(read.noise_file, "noise.safetensors");
  EXPECT_EQ(read.noise_hash, made.noise_hash);
  EXPECT_EQ(read.noise_row, 3);
  std::string odd = text[1].text;
  odd.replace(odd.find(R"("noise_sha256":"0)") + 16, 1, "x");
  EXPECT_NE(error_of([&] {
              origin_of({{"pom", odd}}, "p.png");
            }).find("noise_sha256: expected 64"),
            std::string::npos);
}

TEST(Metadata, OnlyOfCompleteRequests) {
  Origin open = origin();
  open.request.steps.reset();
  EXPECT_NE(error_of([&] { metadata_of(open); }).find("steps"), std::string::npos);
  Origin unhashed = origin();
  unhashed.model_hash = "";
  EXPECT_NE(error_of([&] { metadata_of(unhashed); }).find("hash"), std::string::npos);
}

}  // namespace
}  // namespace pom::generate
