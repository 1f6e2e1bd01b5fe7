// The options of `run embedding_all_to_all`.
#pragma once

#include "command.hpp"
#include "run_options.hpp"

namespace imbrex::cli {

struct EmbeddingRunOptions {
  Pooling pooling = Pooling::sum;
  IndexType index_type = IndexType::int64;
  std::optional<Optimizer> optimizer;
  bool weighted = false;
  double rate = 0.01;
  CLI::App* app = nullptr;

  void add_to(CLI::App& command);

  /// Whether `plan` names embedding_all_to_all. Throws Error(invalid_input) for options that belong to the others.
  bool asked_for(const PlanOptions& plan) const;

  int run(const Program& program, const PlanOptions& plan, const RunOptions& run) const;
};

}  // namespace imbrex::cli
