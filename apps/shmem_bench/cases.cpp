#include "apps/shmem_bench/cases.hpp"

#include <array>
#include <cstddef>

namespace imbrex::apps {

std::string_view name_of(ShmemCall call) {
  constexpr std::array<std::string_view, shmem_calls> names{
      "put", "get", "p", "g", "put_signal", "p_signal", "packet", "add", "fetch_add", "fence", "quiet"};
  return names[static_cast<std::size_t>(call)];
}

std::string_view name_of(ShmemScope scope) {
  constexpr std::array<std::string_view, 4> names{"thread", "warp", "block", "wide"};
  return names[static_cast<std::size_t>(scope)];
}

std::string_view name_of(ShmemMeasure measure) {
  constexpr std::array<std::string_view, shmem_measures> names{"latency", "complete", "issue", "bandwidth", "rate"};
  return names[static_cast<std::size_t>(measure)];
}

}  // namespace imbrex::apps
