#include "machine/rates.hpp"

#include <algorithm>
#include <cmath>

namespace imbrex::machine {

const TileRate& nearest_tile(const Machine& machine, double tile_m, double tile_n) {
  // NOTE: nearly always the very tile is there. Logarithms were most of what choosing a plan took.
  for (const TileRate& tile : machine.tiles)
    if (static_cast<double>(tile.tile_m) == tile_m && static_cast<double>(tile.tile_n) == tile_n) return tile;
  const auto distance = [&](const TileRate& tile) {
    return std::abs(std::log(static_cast<double>(tile.tile_m) / tile_m)) +
           std::abs(std::log(static_cast<double>(tile.tile_n) / tile_n));
  };
  return *std::min_element(machine.tiles.begin(), machine.tiles.end(),
                           [&](const TileRate& x, const TileRate& y) { return distance(x) < distance(y); });
}

double load_rate(const Machine& machine, std::int64_t pitch) {
  constexpr std::int64_t sector = 32;
  const bool known = machine.sm_unaligned_bandwidth > 0;
  return known && pitch % sector != 0 ? machine.sm_unaligned_bandwidth : machine.sm_memory_bandwidth;
}

double mean_heat(const Machine& machine, const TileRate& tile, double busy) {
  if (busy <= 0) return 1;
  const double x = busy / std::max(machine.sustained_onset.value, 1e-12),
               ratio = tile.sustained > 0 ? tile.sustained : machine.sustained_ratio;
  return ratio + (1 - ratio) * -std::expm1(-x) / x;
}

double steps_of(Curve Machine::*library, double ranks) {
  if (library != &Machine::all_reduce) return ranks - 1;
  return std::min(2 * (ranks - 1), 2 * std::ceil(std::log2(std::max(ranks, 1.0))));
}

namespace {

// The curve's seconds with the steps of so many ranks; never less than the bytes take at the curve's last rate.
double library_seconds(const Machine& machine, Curve Machine::*library, double ranks, double wire_bytes) {
  const double seconds = seconds_of(machine.*library, wire_bytes);
  if (machine.collective_step <= 0 || machine.collective_ranks <= 0) return seconds;
  const double more = steps_of(library, ranks) - steps_of(library, machine.collective_ranks);
  const CurvePoint& last = (machine.*library).points.back();
  const double least = std::min(seconds, wire_bytes * (last.seconds / last.bytes));
  return std::max(seconds + more * machine.collective_step, least);
}

}  // namespace

double collective_seconds(const Machine& machine, Curve Machine::*library, bool own, double ranks, double wire_bytes) {
  const Curve &one = machine.own_one_step, &two = machine.own_two_steps;
  const bool reduces = library == &Machine::all_reduce;
  if (!own || one.points.empty() || (reduces && two.points.empty()))
    return library_seconds(machine, library, ranks, wire_bytes);
  if (!reduces) return seconds_of(one, wire_bytes);
  // One-shot: each rank sends the whole vector to R - 1 peers; two-shot: 2 (R - 1) / R of it.
  return std::min(seconds_of(one, wire_bytes * ranks / 2), seconds_of(two, wire_bytes));
}

double quantized_seconds(const Machine& machine, bool reduces_only, double wire_bytes, double code_bytes) {
  const Curve& curve = !machine.own_coded.points.empty()       ? machine.own_coded
                       : !machine.own_two_steps.points.empty() ? machine.own_two_steps
                                                               : machine.all_reduce;
  const double coding = machine.coding_bandwidth > 0 ? wire_bytes / machine.coding_bandwidth : 0;
  return coding + (reduces_only ? seconds_of(curve, 2 * code_bytes) / 2 : seconds_of(curve, code_bytes));
}

double random_row_seconds(const Machine& machine, double row_bytes) {
  const auto& rows = machine.random_rows.points;
  if (rows.empty()) return row_bytes / machine.memory_bandwidth;
  if (machine.short_rows.points.empty() || row_bytes >= rows.front().bytes)
    return seconds_of(machine.random_rows, row_bytes);
  Curve both = machine.short_rows;
  both.points.push_back(rows.front());
  return seconds_of(both, row_bytes);
}

bool reaches(const Machine& machine, int x, int y) {
  const auto devices = static_cast<int>(machine.peer_access);
  return x == y || devices <= 0 || x / devices == y / devices;
}

bool all_reach(const Machine& machine, std::ptrdiff_t ranks) {
  return ranks <= 1 || machine.peer_access <= 0 || static_cast<double>(ranks) <= machine.peer_access;
}

}  // namespace imbrex::machine
