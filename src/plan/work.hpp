// Kinds of work beside products: what a Block is. Checker, JSON, simulator and the CPU executor ask the kind, and know
// none by name. docs/dev/architecture.md says how to add one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "imbrex/operands.hpp"
#include "imbrex/plan.hpp"
#include "problem/descriptor.hpp"

namespace imbrex::problem {
class OwnShards;
}

namespace imbrex::plan {

/// A block of a plan that has passed check_format, on its rank.
struct BlockPlace {
  const Plan& plan;
  const Block& block;
  int rank = 0;
  /// problem::shards_of_ranks, from those who ask about all blocks of a plan; null from others.
  const std::vector<problem::OwnShards>* shards = nullptr;
};

/// A rectangle of a block's rows and columns, and what it holds: element (i, j) of the rectangle is element (row + i,
/// col + j) of `held`'s space.
struct BlockPart {
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;
  problem::Held held;
};

/// What a region that a block reads holds: element (i, j) of the region is element (row + i, col + j) of the space.
using ReadPart = problem::Held;

/// What a block takes, of all its shares together.
struct WorkCost {
  double flops = 0;        ///< in fp32, without tensor cores
  double bytes = 0;        ///< that come from memory beside `reads`, one after the other
  double random_rows = 0;  ///< and as rows here and there
  double row_bytes = 0;    ///< each of these
};

/// Memory, as a block's run finds it on the CPU.
class WorkMemory {
 public:
  virtual ~WorkMemory() = default;
  /// Element (0, 0) of the region, and bytes from one row to the next.
  virtual const std::byte* at(const Region& region) const = 0;
  virtual std::int64_t pitch(const Region& region) const = 0;
  /// What the caller gave the execution beside operands, for the kind to know: Addresses::given.
  virtual const void* given() const = 0;
};

/// Rows of a block.
struct BlockRows {
  std::int64_t begin = 0, end = 0;
};

struct WorkDescriptor {
  std::string name;

  /// Rows and columns. Asked first, of any numbers: {0, 0} where they make no sense.
  Extent (*extent)(const BlockPlace&) = nullptr;
  /// Says what is wrong with reads and args, whose regions are in bounds; "" if nothing is.
  std::string (*check)(const BlockPlace&) = nullptr;
  /// Calls visit(part) for rectangles that cover the block, each element once, where `reads` hold that. Returns what is
  /// wrong with what they hold, or "".
  std::string (*value)(const BlockPlace&, std::span<const ReadPart> reads,
                       const std::function<void(const BlockPart&)>& visit) = nullptr;
  WorkCost (*cost)(const BlockPlace&) = nullptr;
  /// Computes a share's rows of the block into `result`, which holds the whole block by rows, and returns which ones;
  /// all shares together have each row once. Single-threaded; the same bits each time.
  BlockRows (*run)(const BlockPlace&, const WorkMemory&, float* result) = nullptr;
  /// What it does, as timelines name it; null: its name and its first store.
  std::string (*label)(const Block&) = nullptr;
};

/// The kind's; throws Error(invalid_input) for one that does not exist.
const WorkDescriptor& descriptor_of(WorkKind kind);

/// Adds a kind and gives it a number: the next one, so all ranks add the same ones in one order, before they use any.
WorkKind register_work(WorkDescriptor descriptor);

}  // namespace imbrex::plan
