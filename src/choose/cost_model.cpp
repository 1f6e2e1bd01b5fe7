#include "choose/cost_model.hpp"

#include <algorithm>
#include <cmath>

#include "machine/rates.hpp"
#include "plan/problem.hpp"

namespace imbrex::choose {
namespace {

// Share of the memory's bandwidth that a worker draws, as a multiple of its share of the workers.
constexpr double memory_share = 2;

double workers_of(const Cut& cut) { return static_cast<double>(cut.tiles) * static_cast<double>(cut.parts); }

}  // namespace

double waves_of(const Cut& cut, double sms) { return std::ceil(workers_of(cut) / sms); }

double sm_flops(const Machine& machine, Type type) {
  const auto rate = machine.sm_rate.find(type);
  return rate != machine.sm_rate.end() ? rate->second : machine.sm_rate.begin()->second;
}

double tile_seconds(const Problem& problem, const RankShapes& shapes, const Machine& machine, const TileRate& tile,
                    double rows, double cols, double depth) {
  const double multiply = 2 * rows * cols * depth / (sm_flops(machine, problem.type) * tile.efficiency),
               load = depth * static_cast<double>(size_of(problem.type)) *
                      (rows / machine::load_rate(machine, plan::pitch_of_a(problem, shapes)) +
                       cols / machine::load_rate(machine, plan::pitch_of_b(problem, shapes)));
  return std::max(multiply, load);
}

double product_seconds(const Problem& problem, const RankShapes& shapes, const Cut& cut, const Machine& machine,
                       double sms) {
  const TileRate& tile =
      machine::nearest_tile(machine, static_cast<double>(cut.tile_m), static_cast<double>(cut.tile_n));
  const auto size = static_cast<double>(size_of(problem.type));
  const double depth = static_cast<double>(shapes.depth) / static_cast<double>(cut.parts),
               work = tile_seconds(problem, shapes, machine, tile, static_cast<double>(cut.tile_m),
                                   static_cast<double>(cut.tile_n), depth);
  const double begins = waves_of(cut, sms) * tile.prologue;
  const double cool = waves_of(cut, sms) * work + begins;
  const double operands = (static_cast<double>(shapes.product.rows) * static_cast<double>(shapes.depth) +
                           static_cast<double>(shapes.depth) * static_cast<double>(shapes.product.cols)) *
                          size;
  const double busy = std::min(workers_of(cut), sms) / machine.sms.value;
  return std::max(cool / machine::mean_heat(machine, tile, cool),
                  operands / (machine.memory_bandwidth.value * std::min(1.0, memory_share * busy)) + begins);
}

Curve Machine::*curve_of(Operator op) {
  switch (op) {
    case Operator::all_gather_gemm: return &Machine::all_gather;
    case Operator::gemm_reduce_scatter: return &Machine::reduce_scatter;
    case Operator::gemm_all_reduce: return &Machine::all_reduce;
    default: return &Machine::all_to_all;
  }
}

}  // namespace imbrex::choose
