// Breaks plans, in the ways in which a strategy could get one wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"
#include "support/random_plan.hpp"

namespace imbrex::test {

enum class Mutation {
  drop_post,
  double_post,
  lower_wait,
  redirect_wait,
  swap_tasks,
  shift_region,
  shrink_buffer,
  break_parity,
  other_buffer,
  turn_exchange
};
inline constexpr int mutation_kinds = 10;

std::string name_of(Mutation mutation);

/// Applies the mutation at a random place; says where. Nothing if the plan has no place for it.
std::optional<std::string> mutate(Plan& plan, Mutation mutation, Random& random);

/// Runs `rank` on each of the plan's ranks, which are threads; an Error is its code. The limit is in seconds.
int run_ranks_of(const Plan& plan, double wait_limit, const std::function<int(World&)>& rank);

/// Runs of a mutant: with delays, which come from the seed.
CpuOptions mutant_options(std::uint64_t seed);

/// Expects that the checker refutes each of so many mutants, of plans of several ranks among those that `draw` gives,
/// whose `run` ends with another code than 0; and that more than one in `share` do. `run` takes a wait limit in
/// seconds.
void expect_harmful_refuted(int mutants, int share, const std::function<Plan(Random&, int)>& draw,
                            const std::function<int(const Plan&, const CpuOptions&, double)>& run);

}  // namespace imbrex::test
