// Which tiles a rank computes, in which order.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "plan/builder.hpp"

namespace imbrex::plan {

/// A block of a product.
struct TileBlock {
  Range rows, cols;
};

/// The blocks of an area, in CTA swizzle groups of `group` block rows: columns outer, rows inner.
std::vector<TileBlock> blocks_of(Range rows, Range cols, const Knobs& knobs);

/// The part of the product that one rank owns.
struct Area {
  int owner = 0;
  Range rows, cols;
};

bool are_of_one_size(const std::vector<Area>& areas);

/// A block and the index of its area.
struct OwnedBlock {
  TileBlock block;
  int owner = 0;
  int index = 0;  ///< position among the owner's blocks, the same on every rank
};

/// A tile that spans areas: its first part in RankTiles::pieces, and how many there are.
struct RankTile {
  TileBlock block;
  std::size_t first = 0, count = 0;
};

/// A rank's tiles in its order, and the parts of them that go to different owners.
struct RankTiles {
  std::vector<RankTile> spanning;  ///< empty: every piece is a tile
  std::vector<OwnedBlock> pieces;

  std::size_t size() const { return spanning.empty() ? pieces.size() : spanning.size(); }
  const TileBlock& block(std::size_t tile) const {
    return spanning.empty() ? pieces[tile].block : spanning[tile].block;
  }
  std::span<const OwnedBlock> pieces_of(std::size_t tile) const {
    if (spanning.empty()) return {&pieces[tile], 1};
    return {&pieces[spanning[tile].first], spanning[tile].count};
  }
};

/// All tiles of a product and their parts in each area, in swizzle groups as blocks_of.
RankTiles spanning_tiles(const Extent& product, const std::vector<Area>& areas, const Knobs& knobs);

/// How many blocks an area has.
std::int64_t count_blocks(const Area& area, const Knobs& knobs);

// Blocks come one by one: a list of them all would take as long to touch as tasks to make.
using BlockVisit = std::function<void(const OwnedBlock&)>;

/// Every area's blocks in the order in which `rank` computes them when results travel to the owners: other owners'
/// first, rotated by rank, own blocks last (TileOrder::naive: as they lie in the product).
void for_each_scattered(const std::vector<Area>& areas, int ranks, int rank, const Knobs& knobs,
                        const BlockVisit& visit);

/// How many of the blocks of `area` come before the first one of `other`, another owner's, in that order.
std::int64_t scatter_lead(const Area& area, const Area& other, int ranks, int rank, const Knobs& knobs);

/// The same order where operands travel from the owners: own blocks first, the others by `arrival` of their owners.
void for_each_gathered(const std::vector<Area>& areas, const std::vector<int>& arrival, int rank, const Knobs& knobs,
                       const BlockVisit& visit);

}  // namespace imbrex::plan
