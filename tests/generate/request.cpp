// Tests of the request's own words: sizes, omega, and the fields that the program's flags are made of.
#include "pom/generate/request.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "pom/base/error.h"

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
    EXPECT_FALSE(bound.field.help.empty() || bound.field.group.empty() || bound.field.value.empty())
        << bound.field.name;
    EXPECT_NE(bound.field.help.back(), '.') << bound.field.name;
  }
  EXPECT_EQ(field_names(request).front(), "class");
}

TEST(Request, SamplersAreThoseOfDiffusion) {
  const std::vector<std::string>& names = sampler_names();
  for (const char* name : {"ddim", "ddpm", "dpm++2m", "euler", "heun"})
    EXPECT_NE(std::ranges::find(names, name), names.end()) << name;
}

}  // namespace
}  // namespace pom::generate
