// Tests of JSON for declared fields: what is read and written, and what each mistake is told as.
#include "pom/io/json_fields.h"

#include <fstream>
#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::io {
namespace {

struct Network {
  std::int64_t dim = 384;
  std::string mixer = "pom";

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "dim", .help = "width", .least = 4, .most = 65536}, dim);
    visit(Field{.name = "mixer", .help = "kind", .choices = {"pom", "attention"}}, mixer);
  }
};

struct Options {
  bool fast = false;
  double scale = 1;
  std::string name;
  std::vector<std::string> classes;
  std::vector<std::int64_t> size = {8, 8};
  std::optional<std::int64_t> steps;
  std::optional<double> eta;
  std::optional<std::string> sampler;
  std::optional<bool> grid;
  std::int64_t passing = 5;
  std::optional<double> clamp;
  Network network;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "fast", .help = "?"}, fast);
    visit(Field{.name = "scale", .help = "?", .least = 0}, scale);
    visit(Field{.name = "name", .help = "?"}, name);
    visit(Field{.name = "classes", .help = "?"}, classes);
    visit(Field{.name = "size", .help = "?", .least = 1, .most = 100}, size);
    visit(Field{.name = "steps", .help = "?", .least = 1}, steps);
    visit(Field{.name = "eta", .help = "?"}, eta);
    visit(Field{.name = "sampler", .help = "?"}, sampler);
    visit(Field{.name = "grid", .help = "?"}, grid);
    visit(Field{.name = "passing", .help = "?", .saved = false}, passing);
    visit(Field{.name = "clamp", .help = "?", .formerly = "clip"}, clamp);
    visit(Field{.name = "network", .help = "?"}, network);
  }
};

std::string error_of(std::string_view text) {
  Options options;
  try {
    read_json(text, options, "c.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(JsonFields, AFormerNameIsReadAndNotWritten) {
  Options options;
  EXPECT_EQ(read_json(R"({"clip": 2.5})", options, "c.json"), std::set<std::string>{"clamp"});
  EXPECT_EQ(options.clamp, 2.5);
  EXPECT_NE(write_json(options).find(R"("clamp":2.5)"), std::string::npos);
  EXPECT_EQ(write_json(options).find("clip"), std::string::npos);
  EXPECT_EQ(error_of(R"({"clip": 1, "clamp": 1})"), "c.json: clamp: given twice, also as clip");
}

TEST(JsonFields, ReadsEveryKind) {
  Options o;
  o.eta = 3;
  const std::set<std::string> given = read_json(
      R"({"fast": true, "scale": 2, "name": "é\u00e9\n", "classes": ["a", "b, c"], "size": [64, 32], "steps": 7,
          "eta": null, "sampler": "heun", "grid": false, "network": {"dim": 8}})",
      o, "c.json");
  EXPECT_TRUE(o.fast);
  EXPECT_EQ(o.scale, 2);
  EXPECT_EQ(o.name, "éé\n");
  EXPECT_EQ(o.classes, (std::vector<std::string>{"a", "b, c"}));
  EXPECT_EQ(o.size, (std::vector<std::int64_t>{64, 32}));
  EXPECT_EQ(o.steps, 7);
  EXPECT_FALSE(o.eta);
  EXPECT_EQ(o.sampler, "heun");
  EXPECT_EQ(o.grid, false);
  EXPECT_EQ(o.network.dim, 8);
  EXPECT_EQ(o.network.mixer, "pom") << "what the text leaves out stays";
  EXPECT_TRUE(given.contains("network") && given.contains("network.dim") && !given.contains("network.mixer"));
}

TEST(JsonFields, WritesWhatItReads) {
  Options o;
  o.name = "a \"name\"\t";
  o.scale = 0.1;
  o.steps = INT64_MAX;
  o.classes = std::vector<std::string>(200, "twelve chars");
  for (const JsonStyle style : {JsonStyle::line, JsonStyle::pages}) {
    const std::string text = write_json(o, style);
    Options again;
    again.passing = 9;
    read_json(text, again, "c.json");
    EXPECT_EQ(write_json(again, style), text);
    EXPECT_EQ(again.name, o.name);
    EXPECT_EQ(again.scale, 0.1);
    EXPECT_EQ(again.steps, INT64_MAX);
    EXPECT_EQ(again.classes, o.classes);
    EXPECT_FALSE(again.eta);
    EXPECT_EQ(again.passing, 9) << "a field that is not saved was";
    std::size_t longest = 0, begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      longest = std::max(longest, end - begin);
    EXPECT_LE(longest, 110u);
  }
  Network network;
  EXPECT_EQ(write_json(network), R"({"dim":384,"mixer":"pom"})");
  EXPECT_EQ(write_json(network, JsonStyle::pages), "{\n  \"dim\": 384,\n  \"mixer\": \"pom\"\n}\n");
}

TEST(JsonFields, WrongTypes) {
  EXPECT_EQ(error_of(R"({"network": {"dim": "big"}})"),
            "c.json: network.dim: expected an integer, got \"big\"");
  EXPECT_EQ(error_of(R"({"network": {"dim": 384.0}})"),
            "c.json: network.dim: expected an integer, got 384.0");
  EXPECT_EQ(error_of(R"({"network": {"dim": null}})"), "c.json: network.dim: expected an integer, got null");
  EXPECT_EQ(error_of(R"({"network": {"dim": true}})"), "c.json: network.dim: expected an integer, got true");
  EXPECT_EQ(error_of(R"({"network": 3})"), "c.json: network: expected an object, got 3");
  EXPECT_EQ(error_of(R"({"fast": 1})"), "c.json: fast: expected true or false, got 1");
  EXPECT_EQ(error_of(R"({"scale": "1"})"), "c.json: scale: expected a number, got \"1\"");
  EXPECT_EQ(error_of(R"({"name": {}})"), "c.json: name: expected a string, got an object");
  EXPECT_EQ(error_of(R"({"classes": "a"})"), "c.json: classes: expected a list of strings, got \"a\"");
  EXPECT_EQ(error_of(R"({"classes": ["a", 1]})"), "c.json: classes[1]: expected a string, got 1");
  EXPECT_EQ(error_of(R"({"size": [64, 1.5]})"), "c.json: size[1]: expected an integer, got 1.5");
  EXPECT_EQ(error_of(R"({"steps": [1]})"), "c.json: steps: expected an integer, got a list");
  EXPECT_EQ(error_of("[]"), "c.json: expected an object {…}, got an empty list");
  EXPECT_EQ(error_of("17"), "c.json: expected an object {…}, got 17");
}

TEST(JsonFields, RangesAndChoices) {
  EXPECT_EQ(error_of(R"({"network": {"dim": 2}})"), "c.json: network.dim: expected 4 to 65536, got 2");
  EXPECT_EQ(error_of(R"({"size": [64, 0]})"), "c.json: size[1]: expected 1 to 100, got 0");
  EXPECT_EQ(error_of(R"({"network": {"mixer": "pon"}})"),
            "c.json: network.mixer: unknown value \"pon\"; did you mean \"pom\"?");
  EXPECT_EQ(error_of(R"({"steps": 18446744073709551615})"),
            "c.json: steps: expected an integer of 63 bits, got 18446744073709551615");
  EXPECT_EQ(error_of(R"({"steps": 1e400})").find("c.json: "), 0u);
}

TEST(JsonFields, UnknownAndRepeatedKeys) {
  EXPECT_EQ(error_of(R"({"network": {"dims": 2}})"),
            "c.json: network.dims: unknown field; did you mean \"dim\"?");
  EXPECT_EQ(error_of(R"({"stpes": 2})"), "c.json: stpes: unknown field; did you mean \"steps\"?");
  EXPECT_EQ(error_of(R"({"steps": 2, "steps": 3})"), "c.json: steps: duplicate key");
  EXPECT_EQ(error_of(R"({"network": {"dim": 8}, "\u006eetwork": {}})"), "c.json: network: duplicate key");
  EXPECT_EQ(error_of(R"({"size": [1, 2], "classes": ["size", "size"]})"), "no error");
}

// Half a character would make the message no UTF-8, which Python cannot even raise.
TEST(JsonFields, LongTextsAreCutBetweenCharacters) {
  Options options;
  const auto message = [&](const std::string& text) {
    try {
      read_json(text, options, "x");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  std::string long_text;
  for (int i = 0; i < 80; ++i) long_text += "é";
  for (const std::string before : {"", "a"}) {
    EXPECT_NE(message("{\"steps\": \"" + before + long_text + "\"}").find("é…"), std::string::npos);
    EXPECT_NE(message("{\"" + before + long_text + "\": 1}").find("é…"), std::string::npos);
  }
}

TEST(JsonFields, SyntaxErrorsSayWhere) {
  EXPECT_EQ(error_of("{\n  \"fast\": true,\n}").find("c.json: line 3, column 1: "), 0u)
      << error_of("{\n  \"fast\": true,\n}");
  EXPECT_EQ(error_of("{\"fast\": yes}").find("c.json: line 1, column "), 0u);
  for (const char* text :
       {"", " ", "{", "{\"fast\"", "{\"fast\": true", "{}{}", "{} x", "// no\n{}", "{'fast': true}",
        "{\"name\": \"\xff\"}", "{\"name\": \"\\ud800\"}", "{\"scale\": NaN}", "{\"scale\": 01}"})
    EXPECT_EQ(error_of(text).find("c.json: line "), 0u) << text << " -> " << error_of(text);
}

TEST(JsonFields, LimitsOfSizeAndDepth) {
  EXPECT_NE(error_of(std::string(max_json_bytes + 1, ' ')).find("expected at most"), std::string::npos);
  EXPECT_NE(error_of(std::string(100'000, '[')).find("levels"), std::string::npos);
  std::string deep = "{\"name\": ";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  EXPECT_NE(error_of(deep).find("levels"), std::string::npos);
}

TEST(JsonFields, ReadsFiles) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "pom-json-fields.json";
  std::ofstream(path) << "{\"fast\": true}";
  EXPECT_EQ(read_json_text(path), "{\"fast\": true}");
  std::filesystem::remove(path);
  EXPECT_THROW(read_json_text(path), Error);
  EXPECT_THROW(read_json_text("/"), Error);
}

TEST(JsonFields, Quotes) {
  EXPECT_EQ(json_quoted("a\"b\n"), "\"a\\\"b\\n\"");
  EXPECT_EQ(json_quoted("\xff"), "\"\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace pom::io
