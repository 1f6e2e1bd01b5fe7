// Random operators as callers hold their data, and what is said of them, wherever they run.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/problem.hpp"
#include "support/operators.hpp"
#include "support/problem_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex::test {

struct RandomOperator {
  Problem problem;
  OperatorOptions options;
  int groups = 1;                  ///< worlds of the problem's ranks, side by side in one of all of them
  std::vector<std::int64_t> rows;  ///< M of the calls
  bool any_m = false, exact = false;
  std::int64_t parts = 1;  ///< of the rows of what has three dimensions

  GemmShape shape() const {
    GemmShape shape = shape_of(problem);
    shape.any_m = any_m;
    return shape;
  }

  /// The operands of a call of that problem; those of groups differ.
  std::unique_ptr<program::OperandSource> values(const Problem& of, const World& all, const World& world) const {
    const auto seed = static_cast<std::uint64_t>(of.m + 1000 * (all.rank() / world.size()));
    if (exact) return std::make_unique<WholeOperands>(of, seed);
    return seeded_operands(of, seed);
  }

  std::vector<Operand> operands(ProblemMemory& memory) const {
    return memory.operands([this](std::int64_t of) { return of % parts == 0 ? parts : std::int64_t{1}; });
  }
};

/// The calls of an operator whose problem is known: one, or, where it takes any M, some with M below the largest.
inline void draw_calls(Random& random, RandomOperator& c, bool takes_any_m = true) {
  const Problem& p = c.problem;
  c.any_m = random.chance(0.6) && takes_any_m;
  const std::int64_t unit = plan::splits_m(p.op) ? p.ranks : 1;
  c.rows = {p.m};
  for (int i = 0; c.any_m && i < 2; ++i) c.rows.insert(c.rows.begin() + i, unit * random.between(1, p.m / unit));
  c.parts = random.chance(0.5) ? random.between(2, 4) : 1;
}

inline std::string describe(const RandomOperator& c) {
  const RandomCase plain{c.problem, c.options.strategy.value_or(Strategy::fused), c.options.knobs.value_or(Knobs{})};
  return fmt::format("{}{} more N {} {}{}{}, {} groups, rows in {} parts", describe(plain),
                     c.options.strategy ? "" : " (strategy left open)", c.problem.more_n[0], c.problem.more_n[1],
                     c.problem.gathered_a ? ", gathered A" : "", c.any_m ? ", any M" : "", c.groups, c.parts);
}

}  // namespace imbrex::test
