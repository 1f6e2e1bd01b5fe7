#include "plan/check/dataflow.hpp"
#include "plan/check/graph.hpp"
#include "plan/check/pairs.hpp"

namespace imbrex {

std::optional<Finding> check(const Plan& plan) {
  if (auto finding = check_format(plan)) return finding;
  plan::Graph graph(plan);
  if (auto finding = graph.find_deadlock()) return finding;
  if (auto finding = plan::find_pair_fault(plan)) return finding;
  if (auto finding = plan::find_dataflow_fault(plan, graph)) return finding;
  if (auto finding = graph.find_signal_reuse()) return finding;
  return graph.find_early_leave();
}

}  // namespace imbrex
