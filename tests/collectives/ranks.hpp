// Collectives on ranks that are threads, and what they throw.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"

namespace imbrex::test {

inline constexpr WorldOptions roomy{.heap_bytes = std::size_t{1} << 26, .wait_limit = 20};

/// Body of a rank that returns what was wrong, or nothing.
inline int run_ranks(int ranks, const std::function<std::string(World&)>& body) {
  return run_threads(ranks, roomy, [&](World& world) {
    const std::string fault = body(world);
    if (fault.empty()) return 0;
    fmt::print(stderr, "rank {}: {}\n", world.rank(), fault);
    return 1;
  });
}

/// Code and message of the Error that a call throws.
inline std::pair<int, std::string> thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  }
  return {0, "nothing was thrown"};
}

}  // namespace imbrex::test
