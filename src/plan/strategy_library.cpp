// Strategies that communicate by a library's collectives: `sequential`, what every user has today, and `decomposed`,
// the GEMM cut into chunks of rows so that one chunk's collective runs beside the next chunk's product. Sequential is
// decomposed with one chunk, and both are the product alone where there is one rank.
#include <algorithm>
#include <optional>

#include "plan/library_collectives.hpp"
#include "plan/strategies.hpp"
#include "plan/tile_order.hpp"

namespace imbrex::plan {
namespace {

// A workspace that holds chunk after chunk, each with the ranks' parts one after another, is what makes every
// collective's operands contiguous.
struct Chunk {
  Range rows;               // of one rank's part
  std::int64_t packed = 0;  // first row of the chunk in the packed workspace
};

std::vector<std::int64_t> rows_of(const std::vector<Chunk>& chunks) {
  std::vector<std::int64_t> rows;
  for (const Chunk& chunk : chunks) rows.push_back(chunk.rows.size);
  return rows;
}

std::vector<Chunk> chunks_of(std::int64_t part_rows, int chunks, int parts) {
  std::vector<Chunk> result;
  chunks = static_cast<int>(std::min<std::int64_t>(chunks, part_rows));  // none is empty
  for (int c = 0; c < chunks; ++c) {
    const Range rows = part_of(part_rows, chunks, c);
    result.push_back({rows, rows.begin * parts});
  }
  return result;
}

Plan gather_then_gemm(Builder& b, int chunks) {
  const auto& shapes = b.shapes();
  const int ranks = b.ranks();
  // The library orders a rank's epochs by itself: no rank's part of the next gather arrives before this rank joins it.
  const int gathered =
      b.workspace("gathered", Layout::row_major, b.problem().type, shapes.a.rows * ranks, shapes.a.cols, 1);
  const Scales scales = b.problem().scales;
  const int gathered_scales = scales == Scales::none ? -1
                                                     : b.workspace("gathered_scales", Layout::row_major, Type::fp32,
                                                                   shapes.a_scale.rows * ranks, 1, 1);
  const int compute = b.queue(Engine::compute), library = b.queue(Engine::library);
  const auto parts = chunks_of(shapes.a.rows, chunks, ranks);
  // All scales are gathered once, before anything else.
  std::optional<LibraryCollectives> of_scales;
  if (scales != Scales::none)
    of_scales.emplace(b, library, CollectiveKind::all_gather, gathered_scales,
                      std::vector<std::int64_t>{shapes.a_scale.rows}, "crossed_scales");
  LibraryCollectives collectives(b, library, CollectiveKind::all_gather, gathered, rows_of(parts), "crossed",
                                 of_scales ? 1 : 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const int ready = b.signals(rank, static_cast<int>(parts.size()));
    // The library's queue is in order: the first chunk's signal tells of the scales, too.
    if (of_scales)
      of_scales->add(rank, 0, b.scales_of(rank, {0, shapes.a.rows}),
                     b.scale_rows(rank, gathered_scales, {0, shapes.a_scale.rows * ranks}), {}, {});
    for (std::size_t c = 0; c < parts.size(); ++c) {
      const Chunk& chunk = parts[c];
      const int group = static_cast<int>(c);
      collectives.add(rank, c, b.rows_of(rank, buffer_a, chunk.rows.begin, chunk.rows.size),
                      b.rows_of(rank, gathered, chunk.packed, chunk.rows.size * ranks), {}, {{rank, ready + group}});
      // One chunk lies in the workspace as in the output, so its tiles need not end where the sources' rows do.
      const bool whole = parts.size() == 1 && scales != Scales::tensor;
      for (int source = 0; source < (whole ? 1 : ranks); ++source)
        for (const Block& t : blocks_of({0, whole ? b.problem().m : chunk.rows.size}, {0, shapes.b.cols}, b.knobs())) {
          const std::int64_t packed = chunk.packed + source * chunk.rows.size + t.rows.begin;
          const std::int64_t out_row = source * shapes.a.rows + chunk.rows.begin + t.rows.begin;
          Tile tile{b.rows_of(rank, gathered, packed, t.rows.size),
                    b.region(rank, buffer_b, 0, shapes.depth, t.cols.begin, t.cols.size),
                    {},
                    0,
                    {{b.region(rank, buffer_out, out_row, t.rows.size, t.cols.begin, t.cols.size)}}};
          if (scales == Scales::tensor) tile.a_scale = b.scale_rows(rank, gathered_scales, {source, 1});
          if (scales == Scales::row) tile.a_scale = b.scale_rows(rank, gathered_scales, {out_row, t.rows.size});
          b.add_bias(rank, t.cols, tile.adds);
          b.add(rank, compute, {std::move(tile), {{ready + group}}, {}});
        }
    }
  }
  return b.take();
}

CollectiveKind collective_of(Operator op) {
  return op == Operator::gemm_reduce_scatter ? CollectiveKind::reduce_scatter
         : op == Operator::gemm_all_reduce   ? CollectiveKind::all_reduce
                                             : CollectiveKind::all_to_all;
}

Plan gemm_then_collective(Builder& b, int chunks) {
  const auto& shapes = b.shapes();
  const int ranks = b.ranks();
  const CollectiveKind kind = collective_of(b.problem().op);
  // An all-reduce cuts the whole product into chunks, the others every destination's rows.
  const int destinations = kind == CollectiveKind::all_reduce ? 1 : ranks;
  const std::int64_t part_rows = shapes.product.rows / destinations, cols = shapes.product.cols;
  const auto parts = chunks_of(part_rows, chunks, destinations);
  const Type partial_type = kind == CollectiveKind::all_to_all ? output_type(b.problem().type) : b.knobs().partial;
  const int partial = b.workspace("partial", Layout::row_major, partial_type, shapes.product.rows, cols, 1);
  const int compute = b.queue(Engine::compute), library = b.queue(Engine::library);
  // What an all-to-all of one chunk leaves contiguous belongs to different row blocks of the output, and a library
  // adds in its operands' type, and no bias: these need a workspace behind the collective, then a copy or a reduction.
  const bool unpack = kind == CollectiveKind::all_to_all && parts.size() > 1;
  const bool convert =
      partial_type != output_type(b.problem().type) || (b.problem().bias && kind != CollectiveKind::all_to_all);
  const int received = unpack || convert
                           ? b.workspace("received", Layout::row_major, partial_type, shapes.out.rows, cols, 1)
                           : buffer_out;
  const int copy = unpack ? b.queue(Engine::copy) : compute;
  LibraryCollectives collectives(b, library, kind, partial, rows_of(parts), "node_sums");
  for (int rank = 0; rank < ranks; ++rank)
    for (std::size_t c = 0; c < parts.size(); ++c) {
      const Chunk& chunk = parts[c];
      const int done = b.signals(rank);
      std::uint32_t tiles = 0;
      // One chunk lies in the workspace as in the product, so its tiles need not end where the destinations' rows do.
      const bool whole = parts.size() == 1;
      for (int destination = 0; destination < (whole ? 1 : destinations); ++destination)
        for (const Block& t : blocks_of({0, whole ? shapes.product.rows : chunk.rows.size}, {0, cols}, b.knobs())) {
          const std::int64_t row = destination * part_rows + chunk.rows.begin + t.rows.begin;
          const std::int64_t packed = chunk.packed + destination * chunk.rows.size + t.rows.begin;
          Tile tile{b.rows_of(rank, buffer_a, row, t.rows.size),
                    b.region(rank, buffer_b, 0, shapes.depth, t.cols.begin, t.cols.size),
                    {},
                    0,
                    {{b.region(rank, partial, packed, t.rows.size, t.cols.begin, t.cols.size)}},
                    b.scales_of(rank, {row, t.rows.size})};
          if (kind == CollectiveKind::all_to_all) b.add_bias(rank, t.cols, tile.adds);
          b.add(rank, compute, {std::move(tile), {}, {{rank, done}}});
          ++tiles;
        }
      const std::int64_t h = chunk.rows.size;
      const Region from = b.rows_of(rank, partial, chunk.packed, h * destinations);
      const Region to = kind == CollectiveKind::all_to_all ? b.rows_of(rank, received, chunk.packed, h * ranks)
                                                           : b.rows_of(rank, received, chunk.rows.begin, h);
      const bool follow = unpack || convert;
      const int arrived = follow ? b.signals(rank) : 0;
      collectives.add(rank, c, from, to, {{done, tiles}},
                      follow ? std::vector<Post>{{rank, arrived}} : std::vector<Post>{});
      if (!follow) continue;
      if (convert) {
        const Region out = {rank, buffer_out, to.row, 0, to.rows, cols};
        Reduction reduction{{to}, {out}};
        b.add_bias(rank, {0, cols}, reduction.from);
        b.add(rank, compute, {std::move(reduction), {{arrived}}, {}});
        continue;
      }
      for (int source = 0; source < ranks; ++source)
        b.add(rank, copy,
              {Transfer{b.rows_of(rank, received, chunk.packed + source * h, h),
                        b.rows_of(rank, buffer_out, source * part_rows + chunk.rows.begin, h)},
               {{arrived}},
               {}});
    }
  return b.take();
}

// One rank has nobody to exchange with: its product is the result.
Plan product_plan(Builder& b) {
  const auto& shapes = b.shapes();
  const int compute = b.queue(Engine::compute);
  for (const Block& t : blocks_of({0, shapes.product.rows}, {0, shapes.product.cols}, b.knobs())) {
    Tile tile{b.rows_of(0, buffer_a, t.rows.begin, t.rows.size),
              b.region(0, buffer_b, 0, shapes.depth, t.cols.begin, t.cols.size),
              {},
              0,
              {{b.region(0, buffer_out, t.rows.begin, t.rows.size, t.cols.begin, t.cols.size)}},
              b.scales_of(0, t.rows)};
    b.add_bias(0, t.cols, tile.adds);
    b.add(0, compute, {std::move(tile), {}, {}});
  }
  return b.take();
}

Plan library_plan(const Problem& problem, Strategy strategy, const Knobs& knobs, int chunks) {
  Builder b(problem, strategy, knobs);
  if (problem.ranks == 1) return product_plan(b);
  return problem.op == Operator::all_gather_gemm ? gather_then_gemm(b, chunks) : gemm_then_collective(b, chunks);
}

}  // namespace

Plan sequential_plan(const Problem& problem, const Knobs& knobs) {
  return library_plan(problem, Strategy::sequential, knobs, 1);
}

Plan decomposed_plan(const Problem& problem, const Knobs& knobs) {
  return library_plan(problem, Strategy::decomposed, knobs, knobs.chunks);
}

}  // namespace imbrex::plan
