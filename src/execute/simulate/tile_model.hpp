// What tiles cost: rates by shape and heat, and which operand panels are on chip.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::simulate {

/// Costs of one queue's tiles, which are computed in blocks of one shape.
class TileModel {
 public:
  /// `flops` is what the rank computes in one epoch, whole blocks counted; it decides how hot the device runs.
  /// Throws Error(invalid_input) if the machine has no rate for the plan's element type.
  TileModel(const Machine& machine, const Plan& plan, const Extent& block, double flops);

  double prologue() const { return prologue_; }
  double epilogue() const { return epilogue_; }

  /// Seconds of products for `depth` columns of A. A tile at an edge takes a whole block's time, as on a GPU.
  double compute_seconds(std::int64_t rows, std::int64_t cols, std::int64_t depth) const;

  static double flops(const Extent& block, const Tile& tile);

 private:
  std::int64_t tile_m_, tile_n_;
  double rate_, prologue_, epilogue_;
};

/// Operand panels in one device's L2. A panel that a running tile streams is shared with every tile that joins; one
/// that no tile uses any more stays until newer ones fill the L2.
class PanelCache {
 public:
  explicit PanelCache(double bytes) : capacity_(bytes) {}

  /// True if the panel's bytes need not come from memory. Pair with release.
  bool acquire(const Region& region, double bytes);
  void release(const Region& region);

 private:
  struct Hash {
    std::size_t operator()(const Region& region) const;
  };
  struct Panel {
    int users = 0;
    double bytes = 0;
    std::list<Region>::iterator place;  ///< in idle_, where users == 0
  };

  double capacity_, used_ = 0;
  std::unordered_map<Region, Panel, Hash> panels_;
  std::list<Region> idle_;  ///< least recently used first
};

}  // namespace imbrex::simulate
