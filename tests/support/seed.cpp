#include <cstdlib>
#include <iostream>

#include "support/random_plan.hpp"

namespace imbrex::test {

std::uint64_t seed_from_environment() {
  const char* text = std::getenv("IMBREX_TEST_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : 20261121;
  std::cout << "seed " << seed << " (set IMBREX_TEST_SEED to change it)\n";
  return seed;
}

}  // namespace imbrex::test
