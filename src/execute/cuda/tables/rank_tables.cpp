#include "execute/cuda/tables/rank_tables.hpp"

#include <algorithm>
#include <utility>

namespace imbrex::cuda {

RankTables::RankTables(plan::TaskStream& tasks, const TableSurvey& survey, const execute::HeapLayout& layout, int rank,
                       const HeapHandle& heap, std::size_t offset, TableMemory& memory)
    : tasks_(tasks),
      survey_(survey),
      layout_(layout),
      rank_(rank),
      heap_(heap),
      offset_(offset),
      memory_(memory),
      slots_(std::any_of(tasks.frame().buffers.begin(), tasks.frame().buffers.end(),
                         [](const Buffer& b) { return b.layout == Layout::fragment; })) {}

// Once the tiles and slots are known to fit, a table depends on no more of a variant's shape than the cluster and how
// slots come through the stages.
RankTables::Key RankTables::key_of(const TileShape& shape) const {
  if (!shape.registers) return {};
  const auto stages = [&](std::uint32_t adds) { return slots_ ? slot_stages_of(shape, adds) : 0; };
  // Shared K is cut at a multiple of the kernel's slices; B is not cut.
  const std::int64_t slice = shape.sharing == Sharing::k ? shape.slice : 0;
  return {static_cast<std::uint32_t>(shape.cluster), static_cast<std::uint32_t>(slice), stages(1), stages(3)};
}

RankTable& RankTables::find(const TileShape& shape) {
  const Key key = key_of(shape);
  const auto found = tables_.find(key);
  if (found != tables_.end()) return found->second;
  RankTable table = translate(tasks_, survey_, layout_, rank_, heap_, offset_, shape, memory_.take());
  return tables_.emplace(key, std::move(table)).first->second;
}

RankTable RankTables::take(const TileShape& shape) {
  RankTable taken = std::move(find(shape));
  tables_.erase(key_of(shape));
  for (auto& [key, other] : tables_) memory_.give_back(std::move(other));
  tables_.clear();
  return taken;
}

}  // namespace imbrex::cuda
