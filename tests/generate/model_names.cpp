// Tests of models by name, in the places where models lie.
#include "pom/generate/model_names.h"

#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include "pom/base/error.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

// An empty folder to work in, with a folder of two models in $POM_MODELS.
class ModelNames : public testing::Test {
 protected:
  void SetUp() override {
    before_ = fs::current_path();
    folder_ = fs::temp_directory_path() / ("pom-models-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    make(folder_ / "more" / "stars");
    make(folder_ / "more" / "hearts");
    fs::current_path(folder_);
    ::setenv("POM_MODELS", "nowhere:more", 1);
  }
  void TearDown() override {
    ::unsetenv("POM_MODELS");
    fs::current_path(before_);
    fs::remove_all(folder_);
  }
  static void make(const fs::path& model) {
    fs::create_directories(model);
    std::ofstream(model / "config.json") << "{}";
  }
  static std::string refusal(const std::string& name) {
    try {
      model_folder(name, "Engine");
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  fs::path before_, folder_;
};

TEST_F(ModelNames, NamesAreLookedFor) {
  EXPECT_EQ(model_folder("stars", "Engine"), fs::path("more/stars"));
  make("models/stars");
  EXPECT_EQ(model_folder("stars", "Engine"), fs::path("more/stars")) << "$POM_MODELS comes first";
  make("assets/rings");
  EXPECT_EQ(model_folder("rings", "Engine"), fs::path("assets/rings"));
}

TEST_F(ModelNames, WhatIsThereIsNoName) {
  fs::create_directories("stars");
  EXPECT_EQ(model_folder("stars", "Engine"), fs::path("stars"));
  EXPECT_EQ(model_folder("no/such", "Engine"), fs::path("no/such")) << "and a path is a path";
  make("run/model");
  EXPECT_EQ(model_folder("run", "Engine"), fs::path("run/model"));
}

TEST_F(ModelNames, OthersAreRefusedWithWhatThereIs) {
  EXPECT_EQ(refusal("star"),
            "Engine: expected a model folder or the name of a model, got \"star\"; models found: nowhere "
            "(none), more (hearts, stars), assets (none), models (none); did you mean stars?");
  EXPECT_NE(refusal("").find("got \"\""), std::string::npos);
  make("more/.hidden");
  EXPECT_NE(refusal(".hidden").find("got \".hidden\""), std::string::npos);
}

}  // namespace
}  // namespace pom::generate
