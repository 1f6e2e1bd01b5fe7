// One rank's tables for several kernels, each made when it is first asked for.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "execute/cuda/tables/translate.hpp"

namespace imbrex::cuda {

class RankTables {
 public:
  /// As translate's; all of them outlive the tables. What `memory` lends comes back with take.
  RankTables(plan::TaskStream& tasks, const TableSurvey& survey, const execute::HeapLayout& layout, int rank,
             const HeapHandle& heap, std::size_t offset, TableMemory& memory);

  /// For a kernel that the plan's tiles and slots fit; kernels whose tables are the same share one. Throws as
  /// translate.
  const RankTable& of(const TileShape& shape) { return find(shape); }

  /// Takes the table of that shape, to keep. All others are gone then.
  RankTable take(const TileShape& shape);

 private:
  using Key = std::array<std::uint32_t, 4>;

  Key key_of(const TileShape& shape) const;
  RankTable& find(const TileShape& shape);

  plan::TaskStream& tasks_;
  const TableSurvey& survey_;
  const execute::HeapLayout& layout_;
  int rank_;
  HeapHandle heap_;
  std::size_t offset_;
  TableMemory& memory_;
  bool slots_;  // the plan has some
  std::map<Key, RankTable> tables_;
};

}  // namespace imbrex::cuda
