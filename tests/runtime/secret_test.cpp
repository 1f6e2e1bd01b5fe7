#include "runtime/bootstrap/secret.hpp"

#include <gtest/gtest.h>

#include <set>

#include "runtime/bootstrap/rendezvous.hpp"

namespace imbrex::runtime {
namespace {

// Whatever library computes them: BLAKE2b by another implementation, Python's hashlib, of 16 and 64 bytes under the key
// blake2b("a key", 32).
TEST(Secret, IsKeyedBlake2b) {
  EXPECT_EQ(Secret("a key").name("world/0"), "ea90a31570329b4691fc7fed2c9a15df");
  std::array<std::uint8_t, 64> keys{};
  Secret("a key").derive("world/0", keys);
  EXPECT_EQ(keys[0], 0x72);
  EXPECT_EQ(keys[63], 0x14);
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
