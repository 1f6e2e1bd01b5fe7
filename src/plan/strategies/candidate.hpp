#pragma once

#include "imbrex/plan.hpp"

namespace imbrex::plan {

/// What makes a plan of a problem. Trivially copyable: ranks tell each other which one they run.
struct Candidate {
  Strategy strategy = Strategy::sequential;
  Knobs knobs;
};

}  // namespace imbrex::plan
