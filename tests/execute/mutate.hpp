// Breaks plans, in the ways in which a strategy could get one wrong.
#pragma once

#include <optional>
#include <string>

#include "imbrex/plan.hpp"
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
  other_buffer
};
inline constexpr int mutation_kinds = 9;

std::string name_of(Mutation mutation);

/// Applies the mutation at a random place; says where. Nothing if the plan has no place for it.
std::optional<std::string> mutate(Plan& plan, Mutation mutation, Random& random);

}  // namespace imbrex::test
