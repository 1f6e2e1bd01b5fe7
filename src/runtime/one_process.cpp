#include "runtime/one_process.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/bootstrap/bootstrap.hpp"

namespace imbrex::runtime {

bool one_process(World& world) {
  // Processes in different namespaces may share a number, and forked ones the random text.
  struct Identity {
    std::int64_t pid = 0;
    std::array<char, 32> random{};
    bool operator==(const Identity&) const = default;
  };
  static const std::string random = random_id();
  Identity own;
  own.pid = getpid();
  random.copy(own.random.data(), own.random.size());
  std::vector<Identity> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  return std::all_of(all.begin(), all.end(), [&](const Identity& other) { return other == own; });
}

}  // namespace imbrex::runtime
