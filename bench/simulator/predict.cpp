#include "simulator/predict.hpp"

#include "program/measure/without_collectives.hpp"

namespace imbrex::bench {
namespace {

double simulate(const Plan& plan, const Machine& machine) {
  return make_simulator(machine)->prepare(plan)->run({}).seconds;
}

// What each rank multiplies, as a problem of one rank.
Problem gemm_of(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  return {Operator::gemm_all_to_all, shapes.product.rows, shapes.product.cols, shapes.depth, 1, problem.type};
}

Knobs knobs_of(const TileRate& tile) {
  Knobs knobs;
  knobs.tile_m = tile.tile_m;
  knobs.tile_n = tile.tile_n;
  return knobs;
}

double gemm_seconds(const Problem& gemm, const TileRate& tile, const Machine& machine) {
  return simulate(program::without_collectives(make_plan(gemm, Strategy::sequential, knobs_of(tile))), machine);
}

// Tiles taller than the matrix waste most of their products; narrow ones never win on large matrices, where
// simulating them would take longest.
bool plausible(const Problem& gemm, const TileRate& tile) {
  if (gemm.m <= 64) return tile.tile_m <= 64;
  return tile.tile_m > 64 || gemm.m * gemm.n <= 1024 * 4096;
}

const TileRate& best_tile(const Problem& gemm, const Machine& machine, double& seconds) {
  const TileRate* best = nullptr;
  for (const TileRate& tile : machine.tiles) {
    if (!plausible(gemm, tile)) continue;
    const double time = gemm_seconds(gemm, tile, machine);
    if (best != nullptr && time >= seconds) continue;
    best = &tile;
    seconds = time;
  }
  return best != nullptr ? *best : machine.tiles.front();
}

}  // namespace

Prediction predict(const Row& row, const Machine& machine) {
  Prediction result;
  const TileRate& tile = best_tile(gemm_of(row.problem), machine, result.gemm);
  result.tile_m = tile.tile_m;
  result.tile_n = tile.tile_n;
  result.seconds = simulate(make_plan(row.problem, Strategy::sequential, knobs_of(tile)), machine);
  return result;
}

}  // namespace imbrex::bench
