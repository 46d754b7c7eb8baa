#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include "cli/command.h"
#include "cli/foreign_flags.h"
#include "cli/help.h"
#include "cli/values.h"

namespace pom::cli {
namespace {

struct Options {
  bool fast = false;
  std::int64_t steps = 5;
  std::optional<double> cfg_scale;
  std::string mode = "plain", place;
  std::vector<std::int64_t> sizes;
  std::string kind;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "fast", .help = "hurry"}, fast);
    visit(Field{.name = "steps", .help = "how many", .value = "N", .group = "Work", .least = 1, .most = 9},
          steps);
    visit(Field{.name = "cfg_scale", .help = "how much", .formerly = "guidance"}, cfg_scale);
    visit(Field{.name = "mode", .help = "how", .choices = {"plain", "fancy"}}, mode);
    visit(Field{.name = "place", .help = "where"}, place);
    visit(Field{.name = "sizes", .help = "several"}, sizes);
    visit(Field{.name = "kind", .help = "which"}, kind);
  }
};

Options parse(std::vector<std::string> words) {
  Options options;
  CLI::App app;
  Flags flags(app);
  flags.letter("steps", 's');
  flags.positional("place");
  flags.once("kind", "write --kind a,b");
  flags.add(options);
  std::ranges::reverse(words);  // as CLI11 takes them
  app.parse(words);
  return options;
}

std::string message(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(Flags, AFormerNameIsAnsweredWithTheNewOne) {
  EXPECT_EQ(message({"--guidance", "2"}), "--guidance: expected its new name, --cfg-scale");
  EXPECT_EQ(message({"--guidance=2"}), "--guidance: expected its new name, --cfg-scale");
}

TEST(Flags, EveryKindOfField) {
  const Options options =
      parse({"--fast", "-s", "3", "--cfg-scale=1.5", "here", "--mode", "fancy", "--sizes", "4,5"});
  EXPECT_TRUE(options.fast);
  EXPECT_EQ(options.steps, 3);
  EXPECT_EQ(options.cfg_scale, 1.5);
  EXPECT_EQ(options.mode, "fancy");
  EXPECT_EQ(options.place, "here");
  EXPECT_EQ(options.sizes, (std::vector<std::int64_t>{4, 5}));
}

TEST(Flags, WhatIsNotGivenStays) {
  const Options options = parse({});
  EXPECT_FALSE(options.fast);
  EXPECT_EQ(options.steps, 5);
  EXPECT_FALSE(options.cfg_scale.has_value());
}

TEST(Flags, TheLastOneCounts) {
  EXPECT_EQ(parse({"--steps", "2", "--steps", "4"}).steps, 4);
}

TEST(Flags, WhatIsGivenOnceIsNotGivenTwice) {
  EXPECT_EQ(parse({"--kind", "a,b"}).kind, "a,b");
  EXPECT_EQ(message({"--kind", "a", "--kind", "b"}), "--kind: given twice; write --kind a,b");
  EXPECT_EQ(message({"--kind=a", "--fast", "--kind=b"}), "--kind: given twice; write --kind a,b");
}

TEST(Help, FormerNamesAreNotShown) {
  Options options;
  CLI::App app;
  app.set_help_flag("-h,--help", "this text")->group("Other");
  Flags flags(app);
  flags.add(options);
  Command command;
  command.name = "work";
  const std::string text = command_help(app, command);
  EXPECT_EQ(text.find("--guidance"), std::string::npos) << text;
  EXPECT_EQ(text.find("\n\n\n"), std::string::npos) << text;
  EXPECT_NE(text.find("--cfg-scale"), std::string::npos) << text;
}

TEST(Foreign, FlagsOfOthers) {
  EXPECT_EQ(foreign_flag("--guidance-scale"), "use --cfg-scale");
  EXPECT_EQ(foreign_flag("--cfg-scale"), "");
}

TEST(Flags, MistakesNameTheFlag) {
  EXPECT_EQ(message({"--steps", "0"}), "--steps: expected 1 to 9, got 0");
  EXPECT_EQ(message({"--steps", "2x"}), "--steps: expected a whole number, 1 to 9, got \"2x\"");
  EXPECT_EQ(message({"--cfg-scale", "inf"}), "--cfg-scale: expected a number, got \"inf\"");
  EXPECT_NE(message({"--mode", "fncy"}).find("did you mean \"fancy\"?"), std::string::npos);
  EXPECT_EQ(message({"--mode", "--fast"}), "--mode: expected a value, got the flag --fast");
}

TEST(Flags, NegativeNumbersAreValues) {
  EXPECT_EQ(parse({"--cfg-scale", "-1"}).cfg_scale, -1);
}

TEST(Values, Bytes) {
  EXPECT_EQ(parse_bytes("4G", ""), std::int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("512M", ""), 512 << 20);
  EXPECT_EQ(parse_bytes("1.5 GiB", ""), 3 << 29);
  EXPECT_EQ(parse_bytes("64kb", ""), 64 << 10);
  EXPECT_EQ(parse_bytes("100", ""), 100);
  EXPECT_EQ(parse_bytes("100b", ""), 100);
  for (const char* odd : {"", "G", "-1G", "4X", "4GG", "1e30", "nan", "0"})
    EXPECT_THROW(parse_bytes(odd, "--memory-limit"), UsageError) << odd;
}

TEST(Values, Texts) {
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text(100), "100 bytes");
  EXPECT_EQ(bytes_text(3.5 * (1 << 30)), "3.50 GiB");
  EXPECT_EQ(amount_text(33'400'000), "33.4 M");
  EXPECT_EQ(amount_text(999), "999");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(seconds_text(0.214), "0.21 s");
  EXPECT_EQ(seconds_text(725), "12:05");
}

}  // namespace
}  // namespace pom::cli
