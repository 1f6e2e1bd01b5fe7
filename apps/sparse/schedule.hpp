// The analysis of a triangular system: which PE solves which rows, in which order, and what PEs send each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/sparse/matrix.hpp"
#include "apps/sparse/tasks.hpp"

namespace imbrex::apps::sparse {

/// How rows are shared out.
enum class Sharing {
  contiguous,  ///< a range of rows each, of equal numbers of entries: few rows are cut
  cyclic,      ///< blocks of rows in turn: all PEs have something to do on every level
};

Sharing parse_sharing(std::string_view name);
std::string_view name_of(Sharing sharing);

/// Levels of a system: a row's is one more than the highest of the rows it needs. From 0.
struct Levels {
  std::vector<std::uint32_t> of;  ///< by row
  std::uint32_t count = 0;
};

Levels levels_of(const Triangular& system);

struct Shares {
  Sharing sharing;
  std::int64_t block = 0;           ///< cyclic: rows
  std::vector<std::uint8_t> owner;  ///< by row
};

/// `sharing`: none: cyclic where a level holds many rows for every PE, as what limits is throughput there; else the way
/// along the levels limits, and contiguous cuts it least. `block`: 0: 64 blocks a PE.
Shares share(const Triangular& system, const Levels& levels, int pes, std::optional<Sharing> sharing,
             std::int64_t block);

/// Kernel boundaries: what can be done at once. Chunks of own rows of a level, and the parts of others' rows that need
/// nothing more.
struct Step {
  std::uint32_t end = 0;  ///< of its chunks; they begin where the step before ends
  bool meet = false;      ///< some PE needs, after this step, what another sends in this or before
};

/// One PE's.
struct Schedule {
  std::vector<Chunk> chunks;  ///< in an order in which each needs only earlier ones of any PE
  std::vector<Task> tasks;    ///< and one at the end, for where terms end
  std::vector<std::uint32_t> source;
  std::vector<double> value;        ///< of each term
  std::vector<double> diagonal;     ///< by place of the result
  std::vector<std::uint32_t> rows;  ///< of the system, by their number in right-hand sides and results
  std::vector<Step> steps;
  std::uint32_t most_chunks = 0;  ///< of a step

  // The same on all PEs.
  std::uint32_t most_rows = 0, most_slots = 0;  ///< the largest of any PE
  std::int64_t messages = 0;                    ///< of all: a packet for each row and PE that it is cut at
  std::int64_t cut_rows = 0;                    ///< rows that need another PE
};

/// Throws Error(invalid_input) where a PE's terms are 2^32 or more, or its slots more than 2^31.
Schedule schedule_of(const Triangular& system, const Levels& levels, const Shares& shares, int pe);

}  // namespace imbrex::apps::sparse
