// Tests of TOML for declared fields: what is read, set and written, and what each mistake is told as.
#include "pom/io/toml_fields.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <locale>
#include <map>
#include <random>

#include "pom/base/error.h"

namespace pom::io {
namespace {

struct Deepest {
  double decay = 0.5;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "decay", .help = "of it"}, decay);
  }
};

struct Optimizer {
  double lr = 1e-4;
  bool nesterov = false;
  Deepest ema;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "lr", .help = "learning rate", .least = 0, .most = 100}, lr);
    visit(Field{.name = "nesterov", .help = ""}, nesterov);
    visit(Field{.name = "ema", .help = "an average"}, ema);
  }
};

struct Network {
  std::int64_t dim = 384;
  std::string mixer = "pom";

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "dim", .help = "width", .least = 4, .most = 65536}, dim);
    visit(Field{.name = "mixer", .help = "kind", .choices = {"pom", "attention"}}, mixer);
  }
};

struct Recipe {
  std::string name;
  double scale = 1;
  std::vector<std::string> classes;
  std::vector<std::int64_t> size = {8, 8};
  std::optional<std::int64_t> steps;
  std::optional<double> eta;
  std::optional<std::string> sampler;
  std::optional<bool> grid;
  std::int64_t passing = 5;
  Network network;
  Optimizer optimizer;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "name", .help = "for people"}, name);
    visit(Field{.name = "scale", .help = "of all"}, scale);
    visit(Field{.name = "classes", .help = "what there is to see"}, classes);
    visit(Field{.name = "size", .help = "of pictures", .least = 1, .most = 100}, size);
    visit(Field{.name = "steps", .help = "?", .least = 1}, steps);
    visit(Field{.name = "eta", .help = "?"}, eta);
    visit(Field{.name = "sampler", .help = "?"}, sampler);
    visit(Field{.name = "grid", .help = "?"}, grid);
    visit(Field{.name = "passing", .help = "?", .saved = false}, passing);
    visit(Field{.name = "network", .help = "what learns"}, network);
    visit(Field{.name = "optimizer", .help = "how"}, optimizer);
  }
};

template <class Action>
std::string message(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(std::string_view text) {
  Recipe recipe;
  return message([&] { read_toml(text, recipe, "r.toml"); });
}

std::string set_error(std::string_view assignment) {
  Recipe recipe;
  return message([&] { set_field(assignment, recipe); });
}

// ---- reading ----

TEST(TomlFields, ReadsEveryKind) {
  Recipe r;
  const std::set<std::string> given = read_toml(R"(
name = "é\u00e9\n"   # a comment
scale = 2
classes = [
  "a",
  "b, c",  # and another
]
size = [64, 0x20]
steps = 7_000
eta = 1e-3
sampler = 'heun'
grid = false
optimizer.lr = 0.5
network = {dim = 8}
[optimizer.ema]
decay = 3
)",
                                                r, "r.toml");
  EXPECT_EQ(r.name, "éé\n");
  EXPECT_EQ(r.scale, 2);
  EXPECT_EQ(r.classes, (std::vector<std::string>{"a", "b, c"}));
  EXPECT_EQ(r.size, (std::vector<std::int64_t>{64, 32}));
  EXPECT_EQ(r.steps, 7000);
  EXPECT_EQ(r.eta, 1e-3);
  EXPECT_EQ(r.sampler, "heun");
  EXPECT_EQ(r.grid, false);
  EXPECT_EQ(r.optimizer.lr, 0.5);
  EXPECT_EQ(r.optimizer.ema.decay, 3);
  EXPECT_EQ(r.network.dim, 8);
  EXPECT_EQ(r.network.mixer, "pom") << "what the text leaves out stays";
  EXPECT_EQ(given, (std::set<std::string>{"name", "scale", "classes", "size", "steps", "eta", "sampler",
                                          "grid", "optimizer", "optimizer.lr", "network", "network.dim",
                                          "optimizer.ema", "optimizer.ema.decay"}));
}

TEST(TomlFields, LeavesAloneWhatIsNotGiven) {
  Recipe r;
  r.steps = 3;
  r.passing = 9;
  EXPECT_TRUE(read_toml("", r, "r.toml").empty());
  EXPECT_EQ(read_toml("[network]\n", r, "r.toml"), std::set<std::string>{"network"});
  EXPECT_EQ(r.steps, 3);
  EXPECT_EQ(r.network.dim, 384);
  read_toml("passing = 2", r, "r.toml");
  EXPECT_EQ(r.passing, 2) << "what is not written may still be read";
}

TEST(TomlFields, WrongTypes) {
  EXPECT_EQ(error_of("\n[optimizer]\nlr = \"fast\""),
            "r.toml: line 3: optimizer.lr: expected a number, got \"fast\"");
  EXPECT_EQ(error_of("network.dim = \"big\""),
            "r.toml: line 1: network.dim: expected an integer, got \"big\"");
  EXPECT_EQ(error_of("network.dim = 384.0"), "r.toml: line 1: network.dim: expected an integer, got 384.0");
  EXPECT_EQ(error_of("network.dim = true"), "r.toml: line 1: network.dim: expected an integer, got true");
  EXPECT_EQ(error_of("network = 3"), "r.toml: line 1: network: expected a table, got 3");
  EXPECT_EQ(error_of("[[network]]"), "r.toml: line 1: network: expected a table, got a list");
  EXPECT_EQ(error_of("optimizer.nesterov = 1"),
            "r.toml: line 1: optimizer.nesterov: expected true or false, got 1");
  EXPECT_EQ(error_of("[name]\na = 1"), "r.toml: line 1: name: expected a string, got a table");
  EXPECT_EQ(error_of("name = 1979-05-27"), "r.toml: line 1: name: expected a string, got a date or time");
  EXPECT_EQ(error_of("scale = 07:32:00"), "r.toml: line 1: scale: expected a number, got a date or time");
  EXPECT_EQ(error_of("steps = 1979-05-27T07:32:00Z"),
            "r.toml: line 1: steps: expected an integer, got a date or time");
  EXPECT_EQ(error_of("classes = \"a\""), "r.toml: line 1: classes: expected a list of strings, got \"a\"");
  EXPECT_EQ(error_of("classes = [\"a\", 1]"), "r.toml: line 1: classes[1]: expected a string, got 1");
  EXPECT_EQ(error_of("size = [64, 1.5]"), "r.toml: line 1: size[1]: expected an integer, got 1.5");
  EXPECT_EQ(error_of("size = 64"), "r.toml: line 1: size: expected a list of integers, got 64");
  EXPECT_EQ(error_of("steps = [1]"), "r.toml: line 1: steps: expected an integer, got a list");
  EXPECT_EQ(error_of("steps = []"), "r.toml: line 1: steps: expected an integer, got an empty list");
}

TEST(TomlFields, RangesAndChoices) {
  EXPECT_EQ(error_of("[network]\ndim = 2"), "r.toml: line 2: network.dim: expected 4 to 65536, got 2");
  EXPECT_EQ(error_of("size = [64, 0]"), "r.toml: line 1: size[1]: expected 1 to 100, got 0");
  EXPECT_EQ(error_of("optimizer.lr = nan"), "r.toml: line 1: optimizer.lr: expected 0 to 100, got nan");
  EXPECT_EQ(error_of("optimizer.lr = inf"), "r.toml: line 1: optimizer.lr: expected 0 to 100, got inf");
  EXPECT_EQ(error_of("network.mixer = \"pon\""),
            "r.toml: line 1: network.mixer: unknown value \"pon\"; did you mean \"pom\"?");
  for (const char* text : {"steps = 9223372036854775808", "steps = -9223372036854775809",
                           "steps = 0xFFFFFFFFFFFFFFFF", "scale = 1e400"})
    EXPECT_EQ(error_of(text).find("r.toml: line 1, column "), 0u) << error_of(text);
  EXPECT_EQ(error_of("steps = 9223372036854775807"), "no error");
}

TEST(TomlFields, UnknownKeysSuggestTheNearest) {
  EXPECT_EQ(error_of("\n[network]\n\ndims = 2"),
            "r.toml: line 4: network.dims: unknown field; did you mean \"dim\"?");
  EXPECT_EQ(error_of("stpes = 2"), "r.toml: line 1: stpes: unknown field; did you mean \"steps\"?");
  EXPECT_EQ(error_of("[optimiser]\nlr = 2"),
            "r.toml: line 1: optimiser: unknown field; did you mean \"optimizer\"?");
  EXPECT_EQ(error_of("lr = 2"), "r.toml: line 1: lr: unknown field; did you mean \"optimizer.lr\"?");
  EXPECT_EQ(error_of("LR = 2"), "r.toml: line 1: LR: unknown field; did you mean \"optimizer.lr\"?");
  EXPECT_EQ(error_of("[network]\nlr = 2"),
            "r.toml: line 2: network.lr: unknown field; did you mean \"optimizer.lr\"?");
  EXPECT_EQ(error_of("nestorov = true"),
            "r.toml: line 1: nestorov: unknown field; did you mean \"optimizer.nesterov\"?");
  EXPECT_EQ(error_of("decay = 1"),
            "r.toml: line 1: decay: unknown field; did you mean \"optimizer.ema.decay\"?");
  EXPECT_EQ(error_of("[optimizer]\ndecay = 1"),
            "r.toml: line 2: optimizer.decay: unknown field; did you mean \"optimizer.ema.decay\"?");
  EXPECT_EQ(error_of("[network]\nsteps = 1"),
            "r.toml: line 2: network.steps: unknown field; did you mean \"steps\"?");
  EXPECT_EQ(error_of("[network]\nzzzzz = 1"),
            "r.toml: line 2: network.zzzzz: unknown field; there are dim, mixer");
}

TEST(TomlFields, TheFirstMistakeIsToldFirst) {
  EXPECT_EQ(error_of("zzzzz = 1\nsteps = 0").find("r.toml: line 1: zzzzz"), 0u);
  EXPECT_EQ(error_of("steps = 0\naaaaa = 1").find("r.toml: line 1: steps"), 0u);
}

TEST(TomlFields, SyntaxErrorsSayWhere) {
  EXPECT_EQ(error_of("name = \"a\"\nscale = \n").find("r.toml: line 2, column 9: "), 0u)
      << error_of("name = \"a\"\nscale = \n");
  EXPECT_EQ(error_of("steps = 2\nsteps = 3").find("r.toml: line 2, column "), 0u);
  EXPECT_NE(error_of("steps = 2\nsteps = 3").find("redefine"), std::string::npos);
  EXPECT_NE(error_of("network.dim = 8\n[network]\nmixer = \"pom\"").find("line 2"), std::string::npos);
  for (const char* text :
       {"steps", "steps =", "steps = yes", "= 2", "[network", "name = \"a", "name = \"\xff\"",
        "name = \"\\q\"", "scale = 01", "scale = 1.", "size = [1", "name = \"\"\"a"})
    EXPECT_EQ(error_of(text).find("r.toml: line 1, column "), 0u) << text << " -> " << error_of(text);
}

TEST(TomlFields, LimitsOfSizeAndDepth) {
  EXPECT_NE(error_of(std::string(max_toml_bytes + 1, ' ')).find("expected at most"), std::string::npos);
  std::string dots = "a", quotes = "a", header = "[a";
  for (int i = 0; i < 300'000; ++i) {
    dots += ".a";
    quotes += ".\"=\"";
    header += " . a";
  }
  EXPECT_EQ(error_of("\n" + dots + " = 1"), "r.toml: line 2: expected at most 32 levels, got more");
  EXPECT_EQ(error_of("name = \"\"\"\n\"\"\"\n" + quotes + " = 1").find("r.toml: line 3: expected at most"),
            0u);
  EXPECT_NE(error_of(header + "]").find("levels"), std::string::npos);
  EXPECT_NE(error_of("network = {" + dots + " = 1}").find("levels"), std::string::npos);
  EXPECT_NE(error_of("size = " + std::string(100'000, '[')).find("line 1"), std::string::npos);
  EXPECT_EQ(error_of("name = \"" + std::string(1000, '.') + "\" # " + std::string(1000, '.')), "no error");
  EXPECT_EQ(error_of("name = 'a\\'\nscale = 1"), "no error");
}

TEST(TomlFields, LongTextsAreCutBetweenCharacters) {
  std::string long_text;
  for (int i = 0; i < 80; ++i) long_text += "é";
  for (const std::string before : {"", "a"}) {
    EXPECT_NE(error_of("steps = \"" + before + long_text + "\"").find("é…"), std::string::npos);
    EXPECT_NE(error_of("\"" + before + long_text + "\" = 1").find("é…"), std::string::npos);
  }
}

TEST(TomlFields, ReadsFiles) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "pom-toml-fields.toml";
  std::ofstream(path) << "scale = 2";
  EXPECT_EQ(read_toml_text(path), "scale = 2");
  std::filesystem::remove(path);
  EXPECT_NE(message([&] { read_toml_text(path); }).find("No such file"), std::string::npos);
}

// ---- --set ----

TEST(TomlFields, SetsOneField) {
  Recipe r;
  EXPECT_EQ(set_field("optimizer.lr=2e-4", r), "optimizer.lr");
  EXPECT_EQ(r.optimizer.lr, 2e-4);
  EXPECT_EQ(set_field(" optimizer.ema.decay = 3 ", r), "optimizer.ema.decay");
  EXPECT_EQ(r.optimizer.ema.decay, 3);
  set_field("size=[3, 4]", r);
  EXPECT_EQ(r.size, (std::vector<std::int64_t>{3, 4}));
  set_field("classes=[\"a\", 'b']", r);
  EXPECT_EQ(r.classes, (std::vector<std::string>{"a", "b"}));
  set_field("steps=12", r);
  EXPECT_EQ(r.steps, 12);
  set_field("grid=true", r);
  EXPECT_EQ(r.grid, true);
  set_field("network={dim = 16, mixer = \"attention\"}", r);
  EXPECT_EQ(r.network.dim, 16);
  EXPECT_EQ(r.network.mixer, "attention");
}

TEST(TomlFields, SetsTextsWithAndWithoutQuotes) {
  Recipe r;
  const auto name = [&](std::string_view text) {
    set_field("name=" + std::string(text), r);
    return r.name;
  };
  EXPECT_EQ(name("circle"), "circle");
  EXPECT_EQ(name("/data/my pictures=1"), "/data/my pictures=1");
  EXPECT_EQ(name("a#b"), "a#b");
  EXPECT_EQ(name("123"), "123");
  EXPECT_EQ(name("true"), "true");
  EXPECT_EQ(name("\"two\\nlines\""), "two\nlines");
  EXPECT_EQ(name("'raw\\n'"), "raw\\n");
  EXPECT_EQ(name(""), "");
  set_field("sampler=heun", r);
  EXPECT_EQ(r.sampler, "heun");
}

TEST(TomlFields, MistakesOfSet) {
  EXPECT_EQ(set_error("steps"), "--set: expected field=value, got \"steps\"");
  EXPECT_EQ(set_error("=2"), "--set: expected field=value, got \"=2\"");
  EXPECT_EQ(set_error(""), "--set: expected field=value, got \"\"");
  EXPECT_EQ(set_error("optimizer.lr=fast"), "--set: optimizer.lr: expected a number, got fast");
  EXPECT_EQ(set_error("optimizer.lr=\"fast\""), "--set: optimizer.lr: expected a number, got \"fast\"");
  EXPECT_EQ(set_error("optimizer.lr="), "--set: optimizer.lr: expected a number, got nothing");
  EXPECT_EQ(set_error("steps=1\nscale=2"), "--set: steps: expected an integer, got 1\\nscale=2");
  EXPECT_EQ(set_error("steps=0"), "--set: steps: expected at least 1, got 0");
  EXPECT_EQ(set_error("lr=1"), "--set: lr: unknown field; did you mean \"optimizer.lr\"?");
  EXPECT_EQ(set_error("optimizer.lrr=1"), "--set: optimizer.lrr: unknown field; did you mean \"lr\"?");
  EXPECT_EQ(set_error("optimiser.lr=1"), "--set: optimiser: unknown field; did you mean \"optimizer\"?");
  EXPECT_EQ(set_error("optimizer.lr.x=1"), "--set: optimizer.lr.x: unknown field");
  EXPECT_EQ(set_error("optimizer=1"), "--set: optimizer: expected a table, got 1");
  EXPECT_EQ(set_error("classes=[a, b]"), "--set: classes: expected a list of strings, got [a, b]");
  EXPECT_EQ(set_error("network.mixer=pon"),
            "--set: network.mixer: unknown value \"pon\"; did you mean \"pom\"?");
  EXPECT_EQ(set_error("name=\"half"), "--set: name: expected a string, got \"half");
}

// ---- writing ----

TEST(TomlFields, WritesTablesWithHelp) {
  Recipe r;
  r.name = "a";
  EXPECT_EQ(write_toml(r),
            "name = \"a\"     # for people\n"
            "scale = 1.0    # of all\n"
            "classes = []   # what there is to see\n"
            "size = [8, 8]  # of pictures\n"
            "\n"
            "# what learns\n"
            "[network]\n"
            "dim = 384      # width\n"
            "mixer = \"pom\"  # kind\n"
            "\n"
            "# how\n"
            "[optimizer]\n"
            "lr = 1e-4         # learning rate\n"
            "nesterov = false\n"
            "\n"
            "# an average\n"
            "[optimizer.ema]\n"
            "decay = 0.5  # of it\n");
}

TEST(TomlFields, WritesOneValue) {
  Recipe r;
  std::map<std::string, std::string> texts;
  for (const BoundField& bound : bind_fields(r)) texts[std::string(bound.field.name)] = toml_value(bound);
  EXPECT_EQ(texts["name"], "\"\"");
  EXPECT_EQ(texts["scale"], "1.0");
  EXPECT_EQ(texts["size"], "[8, 8]");
  EXPECT_EQ(texts["passing"], "5");
  EXPECT_EQ(texts["steps"], "") << "not set";
  EXPECT_EQ(texts["network"], "") << "a table";
}

TEST(TomlFields, WritesWhatItReads) {
  Recipe r;
  r.name = "a \"name\"\t\\ é 😀 \x01\x7f\r\n";
  r.name += '\0';
  r.steps = INT64_MIN + 1;
  r.steps = INT64_MAX;
  r.sampler = "";
  r.grid = false;
  r.classes = std::vector<std::string>(200, "twelve chars");
  r.size = {};
  const std::string text = write_toml(r);
  Recipe again;
  again.passing = 9;
  read_toml(text, again, "r.toml");
  EXPECT_EQ(write_toml(again), text);
  EXPECT_EQ(again.name, r.name);
  EXPECT_EQ(again.steps, INT64_MAX);
  EXPECT_EQ(again.sampler, "");
  EXPECT_EQ(again.grid, false);
  EXPECT_EQ(again.classes, r.classes);
  EXPECT_TRUE(again.size.empty());
  EXPECT_FALSE(again.eta) << "an optional that is not set is not written";
  EXPECT_EQ(again.passing, 9) << "a field that is not saved was";
  std::size_t longest = 0, begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    longest = std::max(longest, end - begin);
  EXPECT_LE(longest, 110u);
}

TEST(TomlFields, NumbersReadBackToTheBit) {
  const auto again = [](double value) {
    Deepest number{value}, read;
    const std::string text = write_toml(number);
    EXPECT_NE(text.substr(8, text.find('#') - 8).find_first_of(".ein"), std::string::npos) << text;
    read_toml(text, read, "n.toml");
    return read.decay;
  };
  const auto same = [](double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  };
  for (const double value :
       {0.0, -0.0, 1.0, 0.1, 1e-4, 1e-8, 1e15, 1e16, 1e22, 1e100, 1e300, 5e-324, 2.2250738585072014e-308,
        1.7976931348623157e308, 1.0 / 3, -2.5e-10, 123456789012345680.0,
        std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()})
    EXPECT_TRUE(same(again(value), value)) << value;
  std::mt19937_64 bits(7);
  for (int i = 0; i < 20'000; ++i) {
    const double value = std::bit_cast<double>(bits());
    ASSERT_TRUE(!std::isfinite(value) || same(again(value), value)) << value;
  }
}

TEST(TomlFields, NumbersAreTheSameInEveryLocale) {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  Recipe r, again;
  r.optimizer.lr = 1.5;
  r.steps = 1234567;
  const std::locale before = std::locale::global(std::locale(std::locale(), new Comma));
  const std::string text = write_toml(r);
  read_toml(text, again, "r.toml");
  std::locale::global(before);
  EXPECT_NE(text.find("lr = 1.5"), std::string::npos);
  EXPECT_EQ(again.optimizer.lr, 1.5);
  EXPECT_EQ(again.steps, 1234567);
}

TEST(TomlFields, RefusesToWriteWhatIsNoText) {
  Recipe r;
  r.network.mixer = "\xff";
  EXPECT_EQ(message([&] { write_toml(r); }),
            "write_toml: network.mixer: expected a text in UTF-8, got other bytes");
}

}  // namespace
}  // namespace pom::io
