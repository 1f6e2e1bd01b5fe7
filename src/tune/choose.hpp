// Which plan to run: candidates for a problem, and the one that costs least.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex {

struct Candidate {
  Strategy strategy = Strategy::sequential;
  Knobs knobs;
};

/// Candidates worth comparing for `problem` on `machine`; with `strategy`, only its. Never empty.
std::vector<Candidate> candidates(const Problem& problem, const Machine& machine, std::optional<Strategy> strategy);

/// The plan of least cost; of equals the first candidate's. `cost` predicts seconds.
Plan choose(const Problem& problem, const std::vector<Candidate>& candidates,
            const std::function<double(const Plan&)>& cost);

}  // namespace imbrex
