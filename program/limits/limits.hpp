// What operators run, and what they do not, asked of the code that refuses it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "imbrex/options.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::program {

/// A way that a caller may hold its data, or ranks reach each other.
struct Feature {
  std::string_view name;
  void (*ask)(Problem&, Knobs&);                  ///< null: nothing that the problem says
  std::string (*refusal)(const Plan&) = nullptr;  ///< on GPUs: what does not run of plans that run otherwise
  bool on_cpu = true;                             ///< else it tells GPUs apart
};

/// The first asks for nothing.
const std::vector<Feature>& features();

/// The ways in which a strategy moves what it sends, as the knob `transport` names them.
const std::vector<Transport>& ways_of(Strategy strategy);

/// Why an operator of some usual size does not run with that feature, by the checks of plans and of the executor of
/// that device; empty if it runs. `transport`: of ways_of.
std::string refusal_of(Operator op, Strategy strategy, Transport transport, const Feature& feature, Device device);

/// docs/reference/limits.md: a table for each device, and the reasons.
std::string limits_page();

}  // namespace imbrex::program
