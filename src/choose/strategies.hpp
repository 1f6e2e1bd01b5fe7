// What machines make of the strategies, a row each. What a plan takes from them: plan/strategies/registry.hpp.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"
#include "plan/strategies/candidate.hpp"

namespace imbrex::choose {

/// A search for candidates.
struct Search {
  const Problem& problem;
  const Machine& machine;
  bool asked = false;        ///< for this strategy by name
  bool unreachable = false;  ///< ranks do not reach each other's memory
  std::vector<Knobs> tiles;  ///< shapes that suit the product, the best one first
};

struct StrategyChoice {
  Strategy strategy;
  bool hides = false;    ///< one rank alone has nothing to hide
  bool untried = false;  ///< was never measured on GPUs that reach each other's memory
  /// Adds candidates worth comparing.
  void (*add)(const Search& search, std::vector<plan::Candidate>& list);
  /// As quick_seconds.
  double (*seconds)(const Problem& problem, const Knobs& knobs, const Machine& machine);
};

/// Numbers of chunks worth comparing. What a decomposed plan gathers is in the ranks' blocks already.
constexpr std::array<int, 2> usual_chunks(Operator op) {
  return op == Operator::all_gather_gemm ? std::array{1, 2} : std::array{2, 4};
}

/// The first of equal times counts.
std::span<const StrategyChoice> strategy_choices();
const StrategyChoice& choice_of(Strategy strategy);

// choose.cpp
void add_fused(const Search& search, std::vector<plan::Candidate>& list);
void add_sequential(const Search& search, std::vector<plan::Candidate>& list);
void add_decomposed(const Search& search, std::vector<plan::Candidate>& list);
void add_signaled(const Search& search, std::vector<plan::Candidate>& list);

// quick_times.cpp
double fused_seconds(const Problem& problem, const Knobs& knobs, const Machine& machine);
double sequential_seconds(const Problem& problem, const Knobs& knobs, const Machine& machine);
double decomposed_seconds(const Problem& problem, const Knobs& knobs, const Machine& machine);
double signaled_seconds(const Problem& problem, const Knobs& knobs, const Machine& machine);

}  // namespace imbrex::choose
