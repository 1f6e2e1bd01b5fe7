#include "runtime/bootstrap/secret.hpp"

#include <gtest/gtest.h>

#include <set>

#include "runtime/bootstrap/rendezvous.hpp"

namespace imbrex::runtime {
namespace {

// From the reference implementation's vectors: the key is 00 01 ... 0f, the text 00 01 ... (n - 1).
TEST(SipHash, IsTheReferences) {
  const std::array<std::uint64_t, 2> key = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::string text;
  EXPECT_EQ(siphash(key, text), 0x726fdb47dd0e0e31);
  for (char c = 0; c < 15; ++c) text += c;
  EXPECT_EQ(siphash(key, text.substr(0, 8)), 0x93f5f5799a932462);
  EXPECT_EQ(siphash(key, text), 0xa129ca6149be45e5);
}

TEST(Secret, TellsKeysAndTextsApart) {
  std::set<std::string> names;
  for (const char* key : {"", "a", "b", "imbrex launch\nabc"})
    for (const char* what : {"", "a", "world/0", "world/1"}) {
      EXPECT_EQ(Secret(key).name(what), Secret(key).name(what));
      names.insert(Secret(key).name(what));
    }
  EXPECT_EQ(names.size(), 16u);
}

// Everybody can see the name of a world's socket. The next world's, and the launcher's, must not follow from it.
TEST(Secret, NamesOfSocketsHaveNothingInCommon) {
  const std::string key = launch_key("0123456789abcdef0123456789abcdef");
  const std::string first = socket_name(key, 0);
  const std::size_t random = first.rfind('/') + 1;
  EXPECT_EQ(first.size() - random, 32u);
  for (const std::string& other : {socket_name(key, 1), obituary_name(key)}) {
    ASSERT_EQ(other.size(), first.size());
    int same = 0;
    for (std::size_t i = random; i < first.size(); ++i) same += first[i] == other[i];
    EXPECT_LT(same, 12);  // 2 on average
  }
}

}  // namespace
}  // namespace imbrex::runtime
