#include "choose/strategies.hpp"

#include <algorithm>
#include <array>

#include "plan/strategies/registry.hpp"

namespace imbrex::choose {
namespace {

constexpr std::array<StrategyChoice, plan::strategy_entries.size()> rows{{
    {.strategy = Strategy::fused, .add = add_fused, .seconds = fused_seconds},
    {.strategy = Strategy::sequential, .add = add_sequential, .seconds = sequential_seconds},
    {.strategy = Strategy::decomposed, .hides = true, .add = add_decomposed, .seconds = decomposed_seconds},
    {.strategy = Strategy::signaled, .hides = true, .untried = true, .add = add_signaled, .seconds = signaled_seconds},
}};

constexpr bool has_each_once() {
  for (const plan::StrategyEntry& entry : plan::strategy_entries)
    if (std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return row.strategy == entry.strategy; }) != 1)
      return false;
  return true;
}
static_assert(has_each_once(), "a strategy of plan/strategies/registry.hpp has no row here, or two");

}  // namespace

std::span<const StrategyChoice> strategy_choices() { return rows; }

const StrategyChoice& choice_of(Strategy strategy) {
  return *std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.strategy == strategy; });
}

}  // namespace imbrex::choose
