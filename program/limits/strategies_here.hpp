// Which strategies a machine can run, and why.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "imbrex/gpu.hpp"

namespace imbrex::program {

struct StrategyHere {
  std::string_view name;
  bool runs = false;
  std::string why;  ///< what it runs on, or what keeps it from running
};

/// For ranks that are processes, one to each GPU of the survey; where that has none, on the CPU.
std::vector<StrategyHere> strategies_here(const GpuSurvey& survey);

}  // namespace imbrex::program
