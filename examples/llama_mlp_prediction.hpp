// What the block would take on a machine that is described in a file, and how much of its communication is hidden.
#pragma once

#include <optional>
#include <string>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/timeline.hpp"
#include "llama_mlp_tensors.hpp"

namespace llama_mlp {

/// The plans of the block's two products.
struct Plans {
  imbrex::Plan up, down;
};

/// The problems of both products, over so many ranks.
imbrex::Problem up_problem(const Sizes& sizes, int ranks);
imbrex::Problem down_problem(const Sizes& sizes, int ranks);

/// The plans of that strategy, or without one those that suit `machine` best.
Plans choose_plans(const imbrex::Machine& machine, const Sizes& sizes, int ranks,
                   std::optional<imbrex::Strategy> strategy = {});

/// Both products, one behind the other.
struct Prediction {
  double seconds = 0;
  imbrex::Overlap overlap;    ///< of rank 0
  imbrex::Timeline timeline;  ///< rank 0's
};

Prediction predict(const imbrex::Machine& machine, const Plans& plans);

/// The line that tells of `chosen` beside `sequence`, which hides nothing: "  1024 tokens ...".
std::string describe(const char* what, const Prediction& sequence, const Prediction& chosen);

/// `sequence` above `chosen`, on one time axis.
std::string draw(const std::string& title, const imbrex::Machine& machine, Prediction sequence, Prediction chosen);

}  // namespace llama_mlp
