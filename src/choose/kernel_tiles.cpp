#include "choose/kernel_tiles.hpp"

#include <algorithm>
#include <cmath>

namespace imbrex::choose {
namespace {

constexpr std::span<const cuda::KernelTile> compiled_tiles = kernel_tiles();

}  // namespace

bool has_kernel_tiles(Type type, bool hopper) {
  return std::any_of(compiled_tiles.begin(), compiled_tiles.end(),
                     [&](const cuda::KernelTile& t) { return t.type == type && t.hopper == hopper; });
}

bool has_kernel_tile(Type type, bool hopper, std::int64_t rows, std::int64_t cols, int cluster) {
  return std::any_of(compiled_tiles.begin(), compiled_tiles.end(), [&](const cuda::KernelTile& t) {
    return t.type == type && t.hopper == hopper && !t.shares_k && t.rows == rows && t.cols == cols &&
           (cluster == 0 || t.cluster == cluster);
  });
}

Knobs with_kernel_tile(Knobs knobs, Type type, bool hopper, const plan::GivenKnobs& given) {
  // How far a tile is from the knobs' tile: exactly 0 for the same one.
  const auto distance = [&](const cuda::KernelTile& t) {
    const auto ratio = [](std::int64_t x, std::int64_t y) {
      return std::abs(std::log2(static_cast<double>(x) / static_cast<double>(y)));
    };
    return 8 * ratio(t.rows, knobs.tile_m) + ratio(t.cols, knobs.tile_n);
  };
  // Looking a name up takes longer than all else.
  const auto fixed = [&](const char* name) { return given && given.has(name); };
  const bool fixed_m = fixed("tile_m"), fixed_n = fixed("tile_n"), fixed_cluster = fixed("cluster");
  const auto kept = [&](const cuda::KernelTile& t) {
    return (!fixed_m || t.rows == knobs.tile_m) && (!fixed_n || t.cols == knobs.tile_n) &&
           (!fixed_cluster || knobs.cluster == 0 || t.cluster == knobs.cluster);
  };
  const auto nearest = [&](auto&& wanted) {
    const cuda::KernelTile* best = nullptr;
    for (const cuda::KernelTile& t : compiled_tiles) {
      if (t.type != type || t.hopper != hopper || !wanted(t) || !kept(t)) continue;
      if (t.rows == knobs.tile_m && t.cols == knobs.tile_n) return &t;
      if (best == nullptr || distance(t) < distance(*best)) best = &t;
    }
    return best;
  };
  if (knobs.cluster_k > 1) {
    const cuda::KernelTile* same = nearest([](const cuda::KernelTile& t) { return t.shares_k; });
    if (same != nullptr && distance(*same) == 0) return knobs;
    if (fixed("cluster_k")) return knobs;
    knobs.cluster_k = 1;
  }
  const cuda::KernelTile* tile = nearest([](const cuda::KernelTile& t) { return !t.shares_k; });
  if (tile == nullptr) return knobs;
  if (!has_kernel_tile(type, hopper, tile->rows, tile->cols, knobs.cluster)) knobs.cluster = tile->cluster;
  knobs.tile_m = tile->rows;
  knobs.tile_n = tile->cols;
  return knobs;
}

}  // namespace imbrex::choose
