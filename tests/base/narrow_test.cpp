// Numbers that must fit, and text from outside in messages.
#include <gtest/gtest.h>

#include <limits>

#include "base/ceil_div.hpp"
#include "base/json.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"
#include "imbrex/error.hpp"

namespace imbrex::base {
namespace {

template <typename F>
std::string message_of(F&& f) {
  try {
    f();
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
}

TEST(Narrow, NamesTheNumberAndTheRule) {
  EXPECT_EQ(narrow<int>(std::int64_t{2147483647}, "rows"), 2147483647);
  EXPECT_EQ(narrow<std::uint32_t>(std::int64_t{4294967295}, "rows"), 4294967295u);
  EXPECT_EQ(message_of([] { narrow<int>(std::int64_t{2147483648}, "rows"); }),
            "rows = 2147483648: it must be from -2147483648 to 2147483647");
  EXPECT_EQ(message_of([] { narrow<std::uint32_t>(-1, "rows"); }), "rows = -1: it must be from 0 to 4294967295");
  EXPECT_EQ(message_of([] { narrow<std::int64_t>(~std::uint64_t{0}, "bytes"); }),
            "bytes = 18446744073709551615: it must be from -9223372036854775808 to 9223372036854775807");
}

TEST(Narrow, CountsEndAtTheLargest) {
  constexpr std::int64_t large = std::int64_t{1} << 40;
  EXPECT_EQ(counted_product(3, 5, 7), 105);
  EXPECT_EQ(counted_product(large, large), uncountable);
  EXPECT_EQ(counted_product(large, large, 0), 0);
  EXPECT_EQ(counted_product(large, large, large, 2), uncountable);
  EXPECT_EQ(counted_sum(1, 2, uncountable), uncountable);
  EXPECT_EQ(ceil_div(10, uncountable), 1);
  EXPECT_EQ(ceil_div(0, 3), 0);
  EXPECT_EQ(ceil_div(9, 3), 3);
  EXPECT_EQ(ceil_div(10, 3), 4);
}

TEST(Text, ShowsWhatATerminalMayShow) {
  EXPECT_EQ(printable("slots_2 \"x\" \u00e9\u4e2d"), "slots_2 \"x\" \u00e9\u4e2d");
  EXPECT_EQ(printable("\x1b[31m\n\x7f"), "\\x1b[31m\\x0a\\x7f");
  const std::string second = {'\xc2', '\x9b'}, turned = {'\xe2', '\x80', '\xae'}, overlong = {'\xe0', '\x80', '\x8a'};
  EXPECT_EQ(printable(second), "\\xc2\\x9b");
  EXPECT_EQ(printable(turned), "\\xe2\\x80\\xae");
  EXPECT_EQ(printable(overlong), "\\xe0\\x80\\x8a");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable(std::string(81, 'n')), std::string(80, 'n') + "...");
  EXPECT_EQ(printable("\u00e9\u00e9", 3), "\u00e9...");
  EXPECT_TRUE(is_printable(std::string(200, 'n') + "\u4e2d"));
  EXPECT_FALSE(is_printable("a\tb"));
}

TEST(Json, IsReadStrictly) {
  const std::string text = R"({"a": [1, -2, 2.5, true, null, "x", {}, []], "b": {"a": 18446744073709551615}})";
  EXPECT_EQ(parse_json(text, "file"), nlohmann::json::parse(text));
  EXPECT_EQ(parse_json("7", "file"), 7);
  const auto refusal = [](const std::string& json) { return message_of([&] { parse_json(json, "file"); }); };
  EXPECT_EQ(refusal(R"({"a": 1, "b": {"a": 2, "b": 3, "a": 4}})"), "file: the key 'a' comes twice in one object");
  EXPECT_EQ(refusal(R"({"\u001b[31m": 1, "\u001b[31m": 2})"), "file: the key '\\x1b[31m' comes twice in one object");
  EXPECT_EQ(refusal(std::string(65, '[')), "file: it nests deeper than 64 levels");
  EXPECT_EQ(refusal(std::string(64, '[') + std::string(64, ']')), "accepted");
  for (const std::string& json : {std::string(5000000, '1'), "[1" + std::string(5000000, '0') + "x]",
                                  "\"" + std::string(5000000, 'n'), "[1e" + std::string(5000000, '9') + "]"}) {
    const std::string message = refusal(json);
    EXPECT_NE(message, "accepted");
    EXPECT_LT(message.size(), 200u) << message.substr(0, 300);
  }
  EXPECT_NE(refusal("1e999").find("no double holds this number"), std::string::npos);
  for (const std::string& json : {std::string("[1, 2"), std::string("\"\xff\""), std::string("[1] x"), std::string()})
    EXPECT_NE(refusal(json).find("this is not JSON"), std::string::npos) << json;
}

}  // namespace
}  // namespace imbrex::base
