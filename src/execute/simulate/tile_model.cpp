#include "execute/simulate/tile_model.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "machine/rates.hpp"

namespace imbrex::simulate {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

TileModel::TileModel(const Machine& machine, const Plan& plan, const Extent& block, double flops)
    : tile_m_(std::max<std::int64_t>(1, block.rows)), tile_n_(std::max<std::int64_t>(1, block.cols)) {
  const auto found = machine.sm_rate.find(plan.problem.type);
  IMBREX_EXPECTS(found != machine.sm_rate.end(), "machine '{}' has no compute rate for type {}", machine.name,
                 name_of(plan.problem.type));
  const TileRate& tile = machine::nearest_tile(machine, static_cast<double>(tile_m_), static_cast<double>(tile_n_));
  const double cool = found->second * tile.efficiency;
  rate_ = cool * machine::mean_heat(machine, tile, flops / (cool * machine.sms));
  prologue_ = tile.prologue;
  epilogue_ = tile.epilogue;
}

double TileModel::compute_seconds(std::int64_t rows, std::int64_t cols, std::int64_t depth) const {
  return 2.0 * static_cast<double>(round_up(rows, tile_m_)) * static_cast<double>(round_up(cols, tile_n_)) *
         static_cast<double>(depth) / rate_;
}

double TileModel::flops(const Extent& block, const Tile& tile) {
  return 2.0 * static_cast<double>(round_up(tile.a.rows, std::max<std::int64_t>(1, block.rows))) *
         static_cast<double>(round_up(tile.b.cols, std::max<std::int64_t>(1, block.cols))) *
         static_cast<double>(tile.a.cols);
}

std::size_t PanelCache::Hash::operator()(const Region& region) const {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  for (std::int64_t value :
       {std::int64_t{region.rank}, std::int64_t{region.buffer}, region.row, region.col, region.rows, region.cols}) {
    hash ^= static_cast<std::uint64_t>(value);
    hash *= 0xbf58476d1ce4e5b9u;
    hash ^= hash >> 29;
  }
  return static_cast<std::size_t>(hash);
}

bool PanelCache::acquire(const Region& region, double bytes) {
  auto [found, missing] = panels_.try_emplace(region);
  Panel& panel = found->second;
  if (!missing && panel.users == 0) {
    idle_.erase(panel.place);
    used_ -= panel.bytes;
  }
  panel.bytes = bytes;
  ++panel.users;
  return !missing;
}

void PanelCache::release(const Region& region) {
  const auto found = panels_.find(region);
  if (found == panels_.end() || --found->second.users > 0) return;
  found->second.place = idle_.insert(idle_.end(), region);
  used_ += found->second.bytes;
  while (used_ > capacity_ && !idle_.empty()) {
    const auto oldest = panels_.find(idle_.front());
    used_ -= oldest->second.bytes;
    panels_.erase(oldest);
    idle_.pop_front();
  }
}

}  // namespace imbrex::simulate
