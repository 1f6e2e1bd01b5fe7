// Strategies that communicate by a library's collectives: `sequential`, what every user has today, and `decomposed`,
// the GEMM cut into chunks of rows so that one chunk's collective runs beside the next chunk's product. Sequential is
// decomposed with one chunk, and both are the product alone where there is one rank.
#include <algorithm>
#include <optional>

#include "base/ceil_div.hpp"
#include "base/narrow.hpp"
#include "plan/problem.hpp"
#include "plan/strategies/library_collectives.hpp"
#include "plan/strategies/strategies.hpp"

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

// What a rank has of everything where its product is cut into `chunks`, each of so many parts of rows, with `stages`
// collectives a chunk.
Counts counts_of(const Builder& b, std::int64_t chunks, std::int64_t parts, std::int64_t stages) {
  using base::counted_product, base::counted_sum;
  const std::int64_t ranks = b.ranks(), tasks = counted_sum(counted_product(chunks, parts + stages + ranks), 2);
  return {tasks, counted_product(ranks + 6, tasks), counted_product(2, chunks)};
}

// Chunks of `part_rows`, none of them empty.
std::int64_t count_chunks(std::int64_t part_rows, int chunks) { return std::min<std::int64_t>(chunks, part_rows); }

std::vector<Chunk> chunks_of(std::int64_t part_rows, std::int64_t chunks, int parts) {
  std::vector<Chunk> result;
  for (std::int64_t c = 0; c < chunks; ++c) {
    const Range rows = part_of(part_rows, chunks, c);
    result.push_back({rows, rows.begin * parts});
  }
  return result;
}

// All columns of a rank's product of that number and those rows, without scales and bias.
Product product_of(const Builder& b, int rank, const Region& a, const Region& to, int number = 0) {
  Product product{a, b.rows_of(rank, buffer_b_of(b.problem(), number), 0, b.shapes().depth), to};
  product.algorithm = {b.knobs().library_tile, b.knobs().library_parts};
  return product;
}

void add_bias(const Builder& b, int rank, Product& product, int number = 0) {
  if (b.problem().bias) product.bias = b.rows_of(rank, buffer_bias_of(b.problem(), number), 0, 1);
}

void set_batch(Product& product, int batch, std::int64_t a_step, std::int64_t to_step) {
  if (batch == 1) return;
  product.batch = batch;
  product.a_step = a_step;
  product.to_step = to_step;
}

// What the collectives of several chunks have gathered, to the gathered A in the caller's memory, and before that this
// rank's own rows.
class HandOut {
 public:
  HandOut(Builder& b, int copies, int gathered) : b_(b), copies_(copies), gathered_(gathered) {}

  void add_own(int rank) const {
    const std::int64_t rows = b_.shapes().a.rows;
    add(rank, b_.rows_of(rank, buffer_a, 0, rows), rank * rows, {});
  }
  void add_chunk(int rank, const Chunk& chunk, int signal) const {
    const std::int64_t h = chunk.rows.size;
    for (int source = 0; source < b_.ranks(); ++source)
      if (source != rank)
        add(rank, b_.rows_of(rank, gathered_, chunk.packed + source * h, h),
            source * b_.shapes().a.rows + chunk.rows.begin, {{signal}});
  }

 private:
  void add(int rank, const Region& from, std::int64_t row, std::vector<Wait> waits) const {
    b_.add(rank, copies_,
           {Transfer{from, b_.rows_of(rank, buffer_gathered(b_.problem()), row, from.rows)}, std::move(waits), {}});
  }

  Builder& b_;
  int copies_, gathered_;
};

Plan gather_then_gemm(Builder& b, int most_chunks) {
  const auto& shapes = b.shapes();
  const Problem& problem = b.problem();
  const int ranks = b.ranks(), count = count_products(problem);
  const std::int64_t chunks = count_chunks(shapes.a.rows, most_chunks);
  b.expect_kept(
      counts_of(b, chunks, ranks * (count + (problem.gathered_a ? 1 : 0)), most_stages(b.knobs().nodes)).times(ranks));
  // One chunk lies as the gathered A does. The library orders a rank's epochs by itself: no rank's part of the next
  // gather arrives before this rank joins it.
  const bool in_place = problem.gathered_a && chunks == 1;
  const int gathered = in_place ? buffer_gathered(problem)
                                : b.workspace(problem.gathered_a ? "arrived" : "gathered", Layout::row_major,
                                              problem.type, shapes.a.rows * ranks, shapes.a.cols, 1);
  const Scales scales = problem.scales;
  const int gathered_scales = scales == Scales::none ? -1
                                                     : b.workspace("gathered_scales", Layout::row_major, Type::fp32,
                                                                   shapes.a_scale.rows * ranks, 1, 1);
  const int products = b.queue(Engine::library), library = b.queue(Engine::library);
  std::optional<HandOut> hand_out;
  if (problem.gathered_a && !in_place) hand_out.emplace(b, b.queue(Engine::copy), gathered);
  const auto parts = chunks_of(shapes.a.rows, chunks, ranks);
  // All scales are gathered once, before anything else.
  std::optional<LibraryCollectives> of_scales;
  if (scales != Scales::none)
    of_scales.emplace(b, library, CollectiveKind::all_gather, gathered_scales,
                      std::vector<std::int64_t>{shapes.a_scale.rows}, "crossed_scales");
  LibraryCollectives collectives(b, library, CollectiveKind::all_gather, gathered, rows_of(parts), "crossed",
                                 of_scales ? 1 : 0);
  const int shard = shard_to_gather(b);
  for (int rank = 0; rank < ranks; ++rank) {
    const int ready = b.signals(rank, std::ssize(parts));
    if (hand_out) hand_out->add_own(rank);
    // The library's queue is in order: the first chunk's signal tells of the scales, too.
    if (of_scales)
      of_scales->add(rank, 0, b.scales_of(rank, {0, shapes.a.rows}),
                     b.scale_rows(rank, gathered_scales, {0, shapes.a_scale.rows * ranks}), {}, {});
    for (std::size_t c = 0; c < parts.size(); ++c) {
      const Chunk& chunk = parts[c];
      const int signal = ready + base::narrow<int>(c, "chunks");
      const std::int64_t h = chunk.rows.size;
      bring_shard(b, rank, library, shard, chunk.rows);
      collectives.add(rank, c, b.rows_of(rank, shard, chunk.rows.begin, h),
                      b.rows_of(rank, gathered, chunk.packed, h * ranks), {}, {{rank, signal}});
      const auto multiply = [&](int number, std::int64_t packed, std::int64_t out_row, std::int64_t rows, int source) {
        Product product = product_of(b, rank, b.rows_of(rank, gathered, packed, rows),
                                     b.rows_of(rank, buffer_out_of(problem, number), out_row, rows), number);
        if (scales == Scales::tensor) product.a_scale = b.scale_rows(rank, gathered_scales, {source, 1});
        if (scales == Scales::row) product.a_scale = b.scale_rows(rank, gathered_scales, {out_row, rows});
        add_bias(b, rank, product, number);
        return product;
      };
      for (int number = 0; number < count; ++number) {
        // One chunk lies in the workspace as in the output. Sources' rows of several are a batch, if no scales differ.
        if (parts.size() == 1 && scales != Scales::tensor) {
          b.add(rank, products, {multiply(number, 0, 0, problem.m, 0), {{signal}}, {}});
        } else if (scales == Scales::none) {
          Product product = multiply(number, chunk.packed, chunk.rows.begin, h, 0);
          set_batch(product, ranks, h, shapes.a.rows);
          b.add(rank, products, {std::move(product), {{signal}}, {}});
        } else {
          for (int source = 0; source < ranks; ++source)
            b.add(rank, products,
                  {multiply(number, chunk.packed + source * h, source * shapes.a.rows + chunk.rows.begin, h, source),
                   {{signal}},
                   {}});
        }
      }
      if (hand_out) hand_out->add_chunk(rank, chunk, signal);
    }
  }
  return b.take();
}

Plan gemm_then_collective(Builder& b, int most_chunks) {
  const auto& shapes = b.shapes();
  const int ranks = b.ranks();
  const CollectiveKind kind = collective_behind(b.problem().op);
  // An all-reduce cuts the whole product into chunks, the others every destination's rows.
  const int destinations = kind == CollectiveKind::all_reduce ? 1 : ranks;
  const std::int64_t part_rows = shapes.product.rows / destinations, cols = shapes.product.cols;
  const std::int64_t chunks = count_chunks(part_rows, most_chunks);
  b.expect_kept(counts_of(b, chunks, destinations, most_stages(b.knobs().nodes)).times(ranks));
  const auto parts = chunks_of(part_rows, chunks, destinations);
  const Type partial_type = kind == CollectiveKind::all_to_all ? output_type(b.problem().type) : b.knobs().partial;
  const int partial = b.workspace("partial", Layout::row_major, partial_type, shapes.product.rows, cols, 1);
  const int products = b.queue(Engine::library), library = b.queue(Engine::library);
  // What an all-to-all of one chunk leaves contiguous belongs to different row blocks of the output, a library writes
  // rows without gaps, and it adds in its operands' type, and no bias: these need a workspace behind the collective,
  // then copies or a reduction, on a queue of their own, so that no product waits for them.
  const bool unpack = (kind == CollectiveKind::all_to_all && parts.size() > 1) || b.has_gaps(buffer_out);
  const bool convert =
      partial_type != output_type(b.problem().type) || (b.problem().bias && kind != CollectiveKind::all_to_all);
  const bool follow = unpack || convert;
  const int received =
      follow ? b.workspace("received", Layout::row_major, partial_type, shapes.out.rows, cols, 1) : buffer_out;
  const int behind = follow ? b.queue(convert ? Engine::library : Engine::copy) : library;
  LibraryCollectives collectives(b, library, kind, partial, rows_of(parts), "node_sums");
  for (int rank = 0; rank < ranks; ++rank)
    for (std::size_t c = 0; c < parts.size(); ++c) {
      const Chunk& chunk = parts[c];
      const std::int64_t h = chunk.rows.size;
      const int done = b.signals(rank);
      const auto multiply = [&](std::int64_t row, std::int64_t packed, std::int64_t rows) {
        Product product =
            product_of(b, rank, b.rows_of(rank, buffer_a, row, rows), b.rows_of(rank, partial, packed, rows));
        product.a_scale = b.scales_of(rank, {row, rows});
        if (kind == CollectiveKind::all_to_all) add_bias(b, rank, product);
        return product;
      };
      // One chunk lies in the workspace as in the product. Destinations' rows of several are a batch, or with scales a
      // product each, the last of which tells that all are done.
      if (parts.size() == 1) {
        b.add(rank, products, {multiply(0, 0, shapes.product.rows), {}, {{rank, done}}});
      } else if (b.problem().scales == Scales::none) {
        Product product = multiply(chunk.rows.begin, chunk.packed, h);
        set_batch(product, destinations, part_rows, h);
        b.add(rank, products, {std::move(product), {}, {{rank, done}}});
      } else {
        for (int d = 0; d < destinations; ++d)
          b.add(rank, products,
                {multiply(d * part_rows + chunk.rows.begin, chunk.packed + d * h, h),
                 {},
                 d + 1 < destinations ? std::vector<Post>{} : std::vector<Post>{{rank, done}}});
      }
      const Region from = b.rows_of(rank, partial, chunk.packed, h * destinations);
      const Region to = kind == CollectiveKind::all_to_all ? b.rows_of(rank, received, chunk.packed, h * ranks)
                                                           : b.rows_of(rank, received, chunk.rows.begin, h);
      const int arrived = follow ? b.signals(rank) : 0;
      collectives.add(rank, c, from, to, {{done}}, follow ? std::vector<Post>{{rank, arrived}} : std::vector<Post>{});
      if (!follow) continue;
      if (convert) {
        const Region out = {rank, buffer_out, to.row, 0, to.rows, cols};
        Reduction reduction{{to}, {out}};
        b.add_bias(rank, {0, cols}, reduction.from);
        b.add(rank, behind, {std::move(reduction), {{arrived}}, {}});
        continue;
      }
      if (kind != CollectiveKind::all_to_all) {
        b.add(rank, behind, {Transfer{to, b.rows_of(rank, buffer_out, to.row, to.rows)}, {{arrived}}, {}});
        continue;
      }
      for (int source = 0; source < ranks; ++source)
        b.add(rank, behind,
              {Transfer{b.rows_of(rank, received, chunk.packed + source * h, h),
                        b.rows_of(rank, buffer_out, source * part_rows + chunk.rows.begin, h)},
               {{arrived}},
               {}});
    }
  return b.take();
}

// One rank has nobody to exchange with: its products are the result, and its A is all of A.
Plan product_plan(Builder& b) {
  const std::int64_t rows = b.shapes().product.rows;
  const Problem& problem = b.problem();
  const int products = b.queue(Engine::library), count = count_products(problem);
  b.expect_kept(counts_of(b, 1, count, 0));
  for (int number = 0; number < count; ++number) {
    Product product = product_of(b, 0, b.rows_of(0, buffer_a, 0, rows),
                                 b.rows_of(0, buffer_out_of(problem, number), 0, rows), number);
    product.a_scale = b.scales_of(0, {0, rows});
    add_bias(b, 0, product, number);
    b.add(0, products, {std::move(product), {}, {}});
  }
  if (problem.gathered_a) HandOut(b, b.queue(Engine::copy), -1).add_own(0);
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
