#include "choose/quick_times.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/ceil_div.hpp"
#include "choose/cost_model.hpp"
#include "choose/signaled_times.hpp"
#include "choose/strategies.hpp"
#include "machine/rates.hpp"
#include "plan/problem.hpp"

namespace imbrex::choose {
namespace {

// A batch of products, one for each of the owners, of so many rows. A library has tiles of many shapes, and takes those
// that suit.
double library_seconds(const Problem& problem, std::int64_t owners, std::int64_t rows, const Machine& machine,
                       double sms) {
  RankShapes shapes = shapes_of(problem);
  shapes.product.rows = owners * rows;
  double least = std::numeric_limits<double>::max();
  for (const TileRate& t : machine.tiles) {
    const std::int64_t tiles = owners * base::ceil_div(rows, t.tile_m) * base::ceil_div(shapes.product.cols, t.tile_n);
    for (const std::int64_t parts : {1, 2, 4})
      least = std::min(least, product_seconds(problem, shapes, {tiles, t.tile_m, t.tile_n, parts}, machine, sms));
  }
  return least;
}

// Where rows have gaps, what a library gathers is copied before, and what it leaves behind.
double seconds_of_gaps(const Problem& problem, const Machine& machine) {
  if (problem.ranks == 1) return 0;
  const std::string_view copied = problem.op == Operator::all_gather_gemm ? "a" : "out";
  for (const OperandInfo& info : operands_of(problem))
    if (info.name == copied && info.pitch > info.length())
      return machine.copy_fixed + 2 * static_cast<double>(info.lines()) * static_cast<double>(info.length()) *
                                      static_cast<double>(size_of(info.type)) / machine.memory_bandwidth.value;
  return 0;
}

// Pieces that copies bring a shard in, by its rows.
std::int64_t pieces_of_shard(const Problem& problem, const Knobs& knobs) {
  const std::int64_t shard = base::ceil_div(problem.m, problem.ranks);
  return knobs.comm_rows > 0 ? base::ceil_div(shard, knobs.comm_rows) : 1;
}

// The time of first arrivals, or last reductions, which nothing hides.
double latency(const Problem& problem, const Knobs& knobs, const Machine& machine) {
  const double epilogue =
      machine::nearest_tile(machine, static_cast<double>(knobs.tile_m), static_cast<double>(knobs.tile_n)).epilogue;
  double ends = machine.launch_gap + knobs.split_k * epilogue;
  if (knobs.split_k > 1) ends += machine.fence + machine.flag_latency_local + machine.poll;
  if (problem.ranks == 1) return ends;
  if (problem.op == Operator::all_gather_gemm && knobs.transport == Transport::push) {
    const std::int64_t copies = (problem.ranks - 1) * pieces_of_shard(problem, knobs) * knobs.k_slices;
    return ends + static_cast<double>(copies) * (machine.copy_fixed + machine.copy_flag);
  }
  // Parts go to their owners, and their sums to all.
  const int hops = problem.op == Operator::gemm_all_reduce && !knobs.one_shot ? 2 : 1;
  return ends + hops * (machine.fence + machine.flag_latency + machine.link_latency + machine.poll);
}

}  // namespace

std::int64_t fused_tiles(const Problem& problem, const Knobs& knobs) {
  const Extent whole = shapes_of(problem).product;
  const std::int64_t areas = knobs.span_shards || knobs.one_shot ? 1 : problem.ranks;
  const bool by_columns = plan::owns_columns(problem, knobs);
  const std::int64_t above = by_columns ? 1 : areas, beside = by_columns ? areas : 1;
  // Pairs that share B: a tile without a mate of its column has an idle one.
  const bool pairs = knobs.cluster > 1 && knobs.cluster_k == 1, one_by_one = knobs.order != TileOrder::column_major;
  const auto even = [&](std::int64_t n) { return pairs ? n + n % 2 : n; };
  const std::int64_t rows = base::ceil_div(whole.rows, above * knobs.tile_m);
  return (one_by_one ? above * even(rows) : even(above * rows)) * beside *
         base::ceil_div(whole.cols, beside * knobs.tile_n);
}

double fused_seconds(const Problem& problem, const Knobs& knobs, const Machine& machine) {
  const RankShapes shapes = shapes_of(problem);
  const double bytes = plan::wire_bytes(problem);
  const Cut cut{fused_tiles(problem, knobs), knobs.tile_m, knobs.tile_n,
                std::int64_t{knobs.split_k} * std::max(knobs.cluster_k, 1)};
  // In addition to their own time, tiles that add peers' slots wait for them.
  const bool waits = problem.op == Operator::gemm_reduce_scatter || problem.op == Operator::gemm_all_reduce;
  const bool in_every_wave = waits && knobs.order == TileOrder::column_major && knobs.own_shift == 0;
  const double waves = in_every_wave ? waves_of(cut, machine.sms) : 1;
  // Whole vectors to all, instead of parts to their owners and sums back.
  const bool whole = problem.op == Operator::gemm_all_reduce && knobs.one_shot;
  const double wire = (whole ? problem.ranks / 2.0 : 1) * bytes / machine.ingress_bandwidth.value;
  const double product = product_seconds(problem, shapes, cut, machine, machine.sms);
  // The part of the product that comes before the first of it is sent, or after the last of A has come: of what copies
  // bring the last piece's, but no less than a tile's last slice.
  double parts = waves_of(cut, machine.sms);
  if (problem.op == Operator::all_gather_gemm)
    parts =
        knobs.transport == Transport::store
            ? problem.ranks
            : std::min(static_cast<double>(problem.ranks * pieces_of_shard(problem, knobs)), parts * knobs.k_slices);
  const double alone = product / parts;
  return std::max(product, alone + wire) + waves * latency(problem, knobs, machine);
}

namespace {

// Scales of A go ahead of it, by a collective of their own.
double seconds_of_scales(const Problem& problem, const Machine& machine) {
  const bool some = problem.ranks > 1 && problem.op == Operator::all_gather_gemm && problem.scales != Scales::none;
  return some ? seconds_of(machine.all_gather, 1) : 0;
}

double seconds_in_chunks(const Problem& problem, const Knobs& knobs, int chunks, const Machine& machine) {
  const double bytes = plan::wire_bytes(problem);
  const bool own = knobs.transport == Transport::store;
  // A chunk has some of each rank's rows where ranks own some. Both times are those of a chunk; the longer one hides
  // the other, except one chunk.
  const std::int64_t owners = chunks > 1 && problem.op != Operator::gemm_all_reduce ? problem.ranks : 1;
  const double product = library_seconds(
      problem, owners, base::ceil_div(shapes_of(problem).product.rows, chunks * owners), machine, machine.sms);
  double collective = 0;
  if (problem.ranks > 1) {
    if (knobs.codec)
      collective =
          machine::quantized_seconds(machine, problem.op == Operator::gemm_reduce_scatter, bytes / chunks,
                                     bytes / chunks * plan::shortening(*knobs.codec, output_type(problem.type)));
    else
      collective = machine::collective_seconds(machine, curve_of(problem.op), own, problem.ranks, bytes / chunks);
    if (!own) collective += seconds_of_scales(problem, machine) / chunks;
  }
  return chunks * std::max(product, collective) + std::min(product, collective) + seconds_of_gaps(problem, machine);
}

// The own block, and then those that come round, each in so many chunks. A product concurrent with an
// exchange has the SMs that this leaves, or begins anew after it, as where a wave does not fit any more.
double seconds_in_ring(const Problem& problem, int chunks, const Machine& machine) {
  const std::int64_t block = shapes_of(problem).a.rows, rows = base::ceil_div(block, chunks);
  const double exchanges = (problem.ranks - 1.0) * chunks,
               exchange = seconds_of(machine.all_to_all, plan::wire_bytes(problem) / exchanges);
  const auto alone = [&](std::int64_t h) { return library_seconds(problem, 1, h, machine, machine.sms); };
  const auto beside = [&](std::int64_t h, double seconds) {
    const double left = std::max(machine.sms - machine.collective_sms, 1.0);
    return machine.launch_gap + std::min(library_seconds(problem, 1, h, machine, left), alone(h) + seconds);
  };
  const double last = machine.launch_gap + alone(rows);
  // Either no product waits, or the last chunk is multiplied once it has come.
  return std::max(beside(block, chunks * exchange) + (exchanges - 1) * beside(rows, exchange),
                  seconds_of_scales(problem, machine) + exchanges * exchange) +
         last + seconds_of_gaps(problem, machine);
}

}  // namespace

double sequential_seconds(const Problem& problem, const Knobs& knobs, const Machine& machine) {
  return seconds_in_chunks(problem, knobs, 1, machine);
}

double decomposed_seconds(const Problem& problem, const Knobs& knobs, const Machine& machine) {
  const int chunks = std::max(knobs.chunks, 1);
  return problem.op == Operator::all_gather_gemm && problem.ranks > 1
             ? seconds_in_ring(problem, chunks, machine)
             : seconds_in_chunks(problem, knobs, chunks, machine);
}

// One rank's is a product in tiles.
double signaled_seconds(const Problem& problem, const Knobs& knobs, const Machine& machine) {
  return problem.ranks > 1 ? signaled_times(problem, knobs, machine).seconds : fused_seconds(problem, knobs, machine);
}

double quick_seconds(const Problem& problem, const plan::Candidate& candidate, const Machine& machine) {
  return choice_of(candidate.strategy).seconds(problem, candidate.knobs, machine);
}

}  // namespace imbrex::choose
