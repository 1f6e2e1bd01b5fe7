// What a rank gives to lookups and updates, in the memory of its device.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "imbrex/embedding.hpp"
#include "program/all_reduce/all_reduce_job.hpp"
#include "program/embedding/seeded_bags.hpp"

namespace imbrex::program {

class PlacedBags {
 public:
  /// Throws as rank_tables.
  PlacedBags(Device device, const SeededBags& seeded, const EmbeddingShape& shape,
             const std::vector<EmbeddingShard>& shards, int rank);

  /// Operands of a call of `op`. `matrix`: "out", or "gradients" of an update.
  std::vector<Operand> operands(const EmbeddingAllToAll& op, bool update, void* matrix);

  /// As they were placed.
  const RankTables& own() const { return own_; }
  /// Rows of a shard as they are now.
  const std::vector<std::byte>& read_rows(std::size_t shard) { return rows_[shard]->read(); }

 private:
  RankTables own_;
  bool weighted_;
  std::vector<std::unique_ptr<DeviceTensor>> rows_, states_;
  std::unique_ptr<DeviceTensor> indices_, offsets_, weights_;
};

}  // namespace imbrex::program
