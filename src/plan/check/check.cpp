#include "plan/check/dataflow.hpp"
#include "plan/check/graph.hpp"

namespace imbrex {

std::optional<Finding> check(const Plan& plan) {
  if (auto finding = check_format(plan)) return finding;
  check_detail::Graph graph(plan);
  if (auto finding = graph.find_deadlock()) return finding;
  if (auto finding = check_detail::find_dataflow_fault(plan, graph)) return finding;
  return graph.find_signal_reuse();
}

}  // namespace imbrex
