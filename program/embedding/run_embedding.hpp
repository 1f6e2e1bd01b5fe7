// One lookup over ranks from start to end, and a step of an optimizer: tables and bags from a seed, results checked and
// written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "imbrex/embedding.hpp"
#include "imbrex/world.hpp"
#include "plan/given_knobs.hpp"
#include "program/embedding/bag_files.hpp"

namespace imbrex::program {

/// Rows and bags come from `files`, or follow from the seed: elements from -1 to 1 (int8: any codes), bags of 0 to
/// twice the table's hotness, indices uniform. With an optimizer, the last lookup is followed by one update.
struct EmbeddingRequest {
  Device device = Device::automatic;
  int ranks = 4;
  EmbeddingShape shape;
  std::optional<Strategy> strategy;
  plan::GivenKnobs knobs;
  std::shared_ptr<const Plan> plan;  ///< not null: what runs, as OperatorOptions::plan
  BagPaths files;
  std::uint64_t seed = 0;
  float rate = 0.01f;
  std::string out_prefix;  ///< not empty: PREFIX.rank<r>.npy, float32
  bool verify = false;     ///< against float64, every element within its bound; repeats bitwise equal
  int repeat = 1;
  bool threads = false;  ///< ranks are threads of this process instead of processes
  int workers = 1;       ///< CPU: threads a rank
  int ranks_per_gpu = 1;
  double wait_limit = 0;  ///< seconds; 0: the usual one
};

struct EmbeddingResult {
  Strategy strategy = Strategy::fused;
  Device device = Device::cpu;  ///< that the ranks worked on
  std::int64_t indices = 0;     ///< of all ranks
  std::size_t shards = 0;
  std::vector<double> seconds;  ///< per repeat, of the slowest rank
  double update_seconds = 0;
  bool verified = false;
  double max_error_over_bound = 0;  ///< over all elements, of rows after a step too; right is at most 1
  std::string message;              ///< what was wrong, where; empty if nothing was
  std::string digest;               ///< of the plan that ran
};

/// What jobs with lookups have in common: the ranks agree on the request, and each calls `body` with its files and the
/// device, in a world with room for so many operators. Returns and throws as run().
int on_embedding_ranks(const EmbeddingRequest& request, int operators,
                       const std::function<int(World&, const BagFiles&, Device)>& body);

/// As run().
int run_embedding(const EmbeddingRequest& request, const std::function<void(const EmbeddingResult&)>& report);

}  // namespace imbrex::program
