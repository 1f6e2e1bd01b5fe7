// Strategies of one lookup over ranks, timed in turn.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "program/embedding/run_embedding.hpp"

namespace imbrex::program {

struct EmbeddingBenchRequest {
  EmbeddingRequest lookup;  ///< batch, strategy, knobs, files and what follows a lookup count nothing
  std::vector<std::int64_t> batches;
  std::vector<Strategy> strategies;
  int rounds = 9;  ///< samples of each
  int runs = 0;    ///< calls in a sample, one queued after the other; 0: what takes 10 ms
};

struct EmbeddingBenchResult {
  struct Way {
    Strategy strategy = Strategy::fused;
    double seconds = 0;   ///< of a call, on the slowest rank, the median
    std::string refusal;  ///< why it was not timed; else empty
  };
  std::int64_t batch = 0;
  Device device = Device::cpu;
  std::int64_t indices = 0;  ///< of all ranks
  std::size_t shards = 0;
  int runs = 0;
  std::vector<Way> ways;  ///< as the strategies
  bool alike = true;      ///< all strategies gave the same bits on every rank
};

/// As run(), but calls `report` for each batch; 1 where results differ.
int bench_embedding(const EmbeddingBenchRequest& request,
                    const std::function<void(const EmbeddingBenchResult&)>& report);

}  // namespace imbrex::program
