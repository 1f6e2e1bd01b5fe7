// What a machine's constants come to, for the simulator and for analytical cost models alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "imbrex/machine.hpp"

namespace imbrex::machine {

/// The known tile shape that is nearest in area and aspect, both as ratios.
const TileRate& nearest_tile(const Machine& machine, double tile_m, double tile_n);

/// Bytes that one SM loads in a second, of rows that lie so many bytes from one another in memory.
double load_rate(const Machine& machine, std::int64_t pitch);

/// The rate of tiles of this shape once work has gone on for `busy` seconds, as a ratio to the cool one: the mean of
/// ratio + (1 - ratio) exp(-t / onset) over them. Plans run in loops, so every epoch sees the mean, not the cool start.
double mean_heat(const Machine& machine, const TileRate& tile, double busy);

/// Steps of a library's collective of so many ranks: R - 1 in a ring; of an all-reduce the less of two rings and of a
/// tree up and down.
double steps_of(Curve Machine::*library, double ranks);

/// Seconds of a collective of so many ranks that puts `wire_bytes` on each one's wire: the library's, or, `own`,
/// Imbrex' own where the machine has curves of theirs.
double collective_seconds(const Machine& machine, Curve Machine::*library, bool own, double ranks, double wire_bytes);

/// Seconds of an all-reduce through a codec that puts `code_bytes` on each rank's wire in place of `wire_bytes`;
/// `reduces_only`: of a reduce-scatter, the first of its two phases, which is taken for half of an all-reduce of twice
/// the bytes.
double quantized_seconds(const Machine& machine, bool reduces_only, double wire_bytes, double code_bytes);

/// Seconds that the device takes for each of many rows of so many bytes, here and there in memory, where its SMs load
/// as much as they can. A machine without a curve streams them.
double random_row_seconds(const Machine& machine, double row_bytes);

/// Whether rank `x` loads from and stores to the memory of rank `y`, as Machine::peer_access says.
bool reaches(const Machine& machine, int x, int y);

/// Whether all of so many ranks do.
bool all_reach(const Machine& machine, std::ptrdiff_t ranks);

}  // namespace imbrex::machine
