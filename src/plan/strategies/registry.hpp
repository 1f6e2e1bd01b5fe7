// The strategies, a row each: what a plan takes from them. What a machine makes of them: choose/strategies.hpp.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "plan/strategies/strategies.hpp"

namespace imbrex::plan {

struct StrategyEntry {
  Strategy strategy;
  std::string_view name;
  bool reaches_peers = false;  ///< stores to peers' memory, which ends at the host, and sends no codes
  bool one_output = false;     ///< multiplies by one B, and does not give the gathered A
  // One of the two. Problem and knobs are valid.
  std::unique_ptr<StreamedStrategy> (*stream)(const Problem&, const Knobs&, int only) = nullptr;  ///< as Builder's
  Plan (*make)(const Problem&, const Knobs&) = nullptr;
  /// Throws Error(invalid_input) for knobs that break a rule of its own.
  void (*validate)(const Problem&, const Knobs&) = nullptr;
};

inline constexpr std::array<StrategyEntry, 4> strategy_entries{{
    {.strategy = Strategy::sequential, .name = "sequential", .make = sequential_plan},
    {.strategy = Strategy::decomposed, .name = "decomposed", .make = decomposed_plan, .validate = validate_decomposed},
    {.strategy = Strategy::fused,
     .name = "fused",
     .reaches_peers = true,
     .stream = fused_strategy,
     .validate = validate_fused},
    {.strategy = Strategy::signaled,
     .name = "signaled",
     .one_output = true,
     .make = signaled_plan,
     .validate = validate_signaled},
}};

constexpr const StrategyEntry& entry_of(Strategy strategy) {
  for (const StrategyEntry& entry : strategy_entries)
    if (entry.strategy == strategy) return entry;
  return strategy_entries.front();
}

/// "sequential, decomposed and fused": those that are so.
template <typename Is>
std::string names_of_strategies(Is&& is) {
  std::string names, last;
  for (const StrategyEntry& entry : strategy_entries) {
    if (!is(entry)) continue;
    if (!last.empty()) names += (names.empty() ? "" : ", ") + last;
    last = entry.name;
  }
  return names.empty() ? last : names + " and " + last;
}

/// Names of the strategies that leave peers' memory to a library.
inline std::string names_without_peers() {
  return names_of_strategies([](const StrategyEntry& entry) { return !entry.reaches_peers; });
}

}  // namespace imbrex::plan
