// Tests of the request's own words: sizes, omega, and the fields that the program's flags are made of.
#include "pom/generate/request.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "pom/base/error.h"
#include "pom/io/json_fields.h"

namespace pom::generate {
namespace {

TEST(Request, Size) {
  Request request;
  set_size(request, "64x48");
  EXPECT_EQ(request.width, 64);
  EXPECT_EQ(request.height, 48);
  set_size(request, "32");
  EXPECT_EQ(request.width, 32);
  EXPECT_EQ(request.height, 32);
  for (const char* text :
       {"", "x", "64x", "x64", "64x48x3", "64.5", "-64x64", "0x64", "64 x 48", "99999999999999999999"})
    EXPECT_THROW(set_size(request, text), Error) << text;
  EXPECT_EQ(request.width, 32) << "a refused size changed the request";
}

TEST(Request, Omega) {
  EXPECT_EQ(scale_of_omega("0.5", 8, 8, 8), 1.5);
  EXPECT_EQ(scale_of_omega("0", 8, 8, 8), 1);
  EXPECT_EQ(scale_of_omega("auto", 256, 256, 256), 5);
  EXPECT_EQ(scale_of_omega("auto", 512, 128, 256), 5);
  EXPECT_EQ(scale_of_omega("auto", 512, 512, 256), 9);
  for (const char* text : {"", "a", "1x", "nan", "inf", "-2", "1e6", "AUTO"})
    EXPECT_THROW(scale_of_omega(text, 8, 8, 8), Error) << text;
}

TEST(Request, EveryFieldHasHelpGroupAndValue) {
  Request request;
  for (const BoundField& bound : bind_fields(request)) {
    const bool takes_value = !std::holds_alternative<bool*>(bound.value);
    EXPECT_FALSE(bound.field.help.empty() || bound.field.group.empty()) << bound.field.name;
    EXPECT_EQ(bound.field.value.empty(), !takes_value) << bound.field.name;
    EXPECT_NE(bound.field.help.back(), '.') << bound.field.name;
  }
  EXPECT_EQ(field_names(request).front(), "class");
}

// A field is one line: with it, reading, writing and mistakes are there.
struct WithOneMore : Request {
  std::optional<double> warmth = {};

  template <class Visit>
  void fields(Visit&& visit) {
    Request::fields(visit);
    visit(Field{.name = "warmth", .help = "of the colours", .value = "X", .group = "What to make", .most = 2},
          warmth);
  }
};

TEST(Request, AFieldIsOneLine) {
  WithOneMore request;
  io::read_json(R"({"class": "star", "warmth": 1.5, "seed": [3, 4]})", request, "test");
  EXPECT_EQ(request.warmth, 1.5);
  EXPECT_EQ(io::write_json(request), R"({"class":"star","seed":[3,4],"count":1,"warmth":1.5})");
  try {
    io::read_json(R"({"warmth": 3})", request, "test");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "test: warmth: expected at most 2, got 3");
  }
}

// One value or several, numbers or texts: as a person would write them.
TEST(Request, ListsOfOneAndNumbersAsTexts) {
  Request request;
  io::read_json(R"({"prompt": "a star", "seed": 7, "frames": 48, "omega": 1.5})", request, "test");
  EXPECT_EQ(request.prompt, std::vector<std::string>{"a star"});
  EXPECT_EQ(request.frames, "48");
  EXPECT_EQ(io::write_json(request), R"({"prompt":"a star","seed":7,"count":1,"omega":1.5,"frames":48})");
  request.frames = "inf", request.prompt = {"a", "b"};
  EXPECT_EQ(io::write_json(request), R"({"prompt":["a","b"],"seed":7,"count":1,"omega":1.5,"frames":"inf"})");
}

TEST(Request, SamplersAreThoseOfDiffusion) {
  const std::vector<std::string>& names = sampler_names();
  for (const char* name : {"ddim", "ddpm", "dpm++2m", "euler", "heun"})
    EXPECT_NE(std::ranges::find(names, name), names.end()) << name;
}

}  // namespace
}  // namespace pom::generate
