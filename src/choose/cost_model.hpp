// What the analytical cost models of plans share.
#pragma once

#include <cstdint>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::choose {

/// How a product is cut: tiles of that shape, each into so many parts along K.
struct Cut {
  std::int64_t tiles = 0, tile_m = 0, tile_n = 0, parts = 1;
};

/// Waves of so many SMs.
double waves_of(const Cut& cut, double sms);

/// flop/s of a cool SM for the type, or, where the machine has none of it, for the first that it has.
double sm_flops(const Machine& machine, Type type);

/// Seconds in which a cool SM multiplies so many rows and columns over `depth` of K, at the rate of that tile, or loads
/// what it multiplies, whichever takes longer.
double tile_seconds(const Problem& problem, const RankShapes& shapes, const Machine& machine, const TileRate& tile,
                    double rows, double cols, double depth);

/// Seconds of a rank's product on so many of the machine's SMs: whole waves of tiles, or what its operands take to
/// load.
double product_seconds(const Problem& problem, const RankShapes& shapes, const Cut& cut, const Machine& machine,
                       double sms);

/// The curve of the library's collective.
Curve Machine::*curve_of(Operator op);

}  // namespace imbrex::choose
