// Blocks of bags as the kernel of lookups takes them. Pure host code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "execute/cuda/work_on_gpu.hpp"

namespace imbrex::cuda {

/// Columns of one of the rank's shards, and where they begin among those of a row that is stored.
struct BagColumns {
  std::uint32_t shard = 0, first = 0, count = 0, at = 0;

  bool operator==(const BagColumns&) const = default;
};

/// Rows of the batch that follow each other where they are stored, too, one task's after another's: a slice each.
struct BagStrip {
  std::uint32_t task = 0;     ///< the first slice's, in the table
  std::uint64_t address = 0;  ///< of the first row's first column, in copy 0, relative to `base`
  Base base{};
  std::uint32_t output = 0;
  std::uint32_t first_row = 0, rows = 0;
  bool waits = false;                    ///< for what the rounds wait for, before it stores
  std::optional<std::uint64_t> posts{};  ///< the counter in set 0, after each slice

  bool operator==(const BagStrip&) const = default;
};

/// One launch of the kernel: round i stores slice i of every strip.
struct BagRounds {
  std::vector<BagColumns> columns;
  Type type{};
  std::uint64_t pitch = 0, copy_stride = 0;  ///< bytes, of what is stored to
  std::uint32_t slices = 1, slice_rows = 0;  ///< rows of every slice but a strip's last
  std::vector<BagStrip> strips;
  std::optional<WaitEntry> wait{};

  bool operator==(const BagRounds&) const = default;
};

/// As WorkOnGpu's.
std::string refusal_of_bags(const Plan& plan, int rank, const Block& block);
std::vector<BlockLaunch> bag_launches(const Plan& plan, int rank, const RankTable& table, std::size_t first,
                                      std::size_t end);

/// What a launch of bag_launches is. One that signals is one launch of the kernel. Another has as many as its block
/// stores to places that lie apart.
std::vector<BagRounds> bag_rounds(const Plan& plan, int rank, const RankTable& table, const BlockLaunch& launch);

}  // namespace imbrex::cuda
