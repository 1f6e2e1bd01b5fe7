// Strategies that communicate by a library's collectives: `sequential`, what every user has today, and `decomposed`,
// the GEMM cut so that one part's communication overlaps another part's product: what is gathered, into the ranks'
// blocks, which go round a ring; what is scattered or summed, into chunks of the result's rows. Sequential scatters are
// decomposed ones of one chunk. All are the product alone where there is one rank.
#include <algorithm>
#include <optional>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
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

// This rank's own rows to the gathered A in the caller's memory.
void copy_own(Builder& b, int rank, int copies) {
  const std::int64_t rows = b.shapes().a.rows;
  b.add(rank, copies,
        {Transfer{b.rows_of(rank, buffer_a, 0, rows), b.rows_of(rank, buffer_gathered(b.problem()), rank * rows, rows)},
         {},
         {}});
}

// The scales of all ranks' rows of A, gathered once, before anything else.
class GatheredScales {
 public:
  GatheredScales(Builder& b, int library) : b_(b) {
    if (!present()) return;
    const std::int64_t rows = b.shapes().a_scale.rows;
    buffer_ = b.workspace("gathered_scales", Layout::row_major, Type::fp32, rows * b.ranks(), 1, 1);
    collectives_.emplace(b, library, CollectiveKind::all_gather, buffer_, std::vector{rows}, "crossed_scales");
  }

  bool present() const { return b_.problem().scales != Scales::none; }
  /// The first number that none of its collectives has.
  int next_group() const { return collectives_ ? collectives_->next_group(1) : 0; }

  void add(int rank) {
    if (!collectives_) return;
    const Range all{0, b_.shapes().a_scale.rows * b_.ranks()};
    collectives_->add(rank, 0, b_.scales_of(rank, {0, b_.shapes().a.rows}), b_.scale_rows(rank, buffer_, all), {}, {});
  }

  /// The scales of `rows` of all of A, which are one rank's where ranks have one scale each.
  Region of(int rank, const Range& rows) const {
    if (!present()) return {};
    return b_.scale_rows(rank, buffer_,
                         b_.problem().scales == Scales::row ? rows : Range{rows.begin / b_.shapes().a.rows, 1});
  }

 private:
  Builder& b_;
  int buffer_ = -1;
  std::optional<LibraryCollectives> collectives_;
};

Plan gather_then_gemm(Builder& b) {
  const auto& shapes = b.shapes();
  const Problem& problem = b.problem();
  const int ranks = b.ranks(), count = count_products(problem);
  b.expect_kept(counts_of(b, 1, std::int64_t{ranks} * count, most_stages(b.knobs().nodes)).times(ranks));
  // The library orders a rank's epochs by itself: no rank's part of the next gather arrives before this rank joins it.
  const int gathered = problem.gathered_a ? buffer_gathered(problem)
                                          : b.workspace("gathered", Layout::row_major, problem.type,
                                                        shapes.a.rows * ranks, shapes.a.cols, 1);
  const int products = b.queue(Engine::library), library = b.queue(Engine::library);
  // The library's queue is in order: the gather's signal tells of the scales, too.
  GatheredScales scales(b, library);
  LibraryCollectives collectives(b, library, CollectiveKind::all_gather, gathered, {shapes.a.rows}, "crossed",
                                 scales.present() ? 1 : 0);
  const int shard = shard_to_gather(b);
  for (int rank = 0; rank < ranks; ++rank) {
    const int ready = b.signals(rank);
    scales.add(rank);
    bring_shard(b, rank, library, shard, {0, shapes.a.rows});
    collectives.add(rank, 0, b.rows_of(rank, shard, 0, shapes.a.rows), b.rows_of(rank, gathered, 0, problem.m), {},
                    {{rank, ready}});
    // One product of all rows, or with a scale a rank, one of each rank's.
    const std::int64_t parts = problem.scales == Scales::tensor ? ranks : 1;
    for (int number = 0; number < count; ++number)
      for (std::int64_t part = 0; part < parts; ++part) {
        const Range rows = part_of(problem.m, parts, part);
        Product product = product_of(b, rank, b.rows_of(rank, gathered, rows.begin, rows.size),
                                     b.rows_of(rank, buffer_out_of(problem, number), rows.begin, rows.size), number);
        product.a_scale = scales.of(rank, rows);
        add_bias(b, rank, product, number);
        b.add(rank, products, {std::move(product), {{ready}}, {}});
      }
  }
  return b.take();
}

// As TransformerEngine does: every rank's block of A goes round the ring of the ranks. While a rank multiplies its own
// block, that goes to the next rank; while it multiplies the block that came in a step, that one goes on. A block goes
// in chunks, each multiplied once it is there.
Plan gemm_in_ring(Builder& b, int most_chunks) {
  const auto& shapes = b.shapes();
  const Problem& problem = b.problem();
  const int ranks = b.ranks(), count = count_products(problem), steps = ranks - 1;
  const std::int64_t h = shapes.a.rows, chunks = count_chunks(h, most_chunks);
  using base::counted_product, base::counted_sum;
  const std::int64_t exchanges = counted_product(steps, chunks), stages = most_stages(b.knobs().nodes),
                     tasks = counted_sum(counted_product(exchanges, count + 2), count + stages + 1);
  b.expect_kept(Counts{tasks, counted_sum(counted_product(6, tasks), stages * ranks), exchanges}.times(ranks));
  // Blocks come to lie one after another, or where the gathered A has them.
  const int arrived = problem.gathered_a
                          ? buffer_gathered(problem)
                          : b.workspace("arrived", Layout::row_major, problem.type, h * steps, shapes.a.cols, 1);
  // The exchanges' queue is the first, so that the first of them is launched before the product that it overlaps.
  const int library = b.queue(Engine::library), products = b.queue(Engine::library);
  const int copies = problem.gathered_a ? b.queue(Engine::copy) : -1;
  GatheredScales scales(b, library);
  const int shard = shard_to_gather(b), first_group = scales.next_group();
  for (int rank = 0; rank < ranks; ++rank) {
    const int ready = b.signals(rank, exchanges), next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    if (problem.gathered_a) copy_own(b, rank, copies);
    scales.add(rank);
    const auto multiply = [&](const Region& a, std::int64_t out_row, const Region& a_scale, std::vector<Wait> waits) {
      for (int number = 0; number < count; ++number) {
        Product product =
            product_of(b, rank, a, b.rows_of(rank, buffer_out_of(problem, number), out_row, a.rows), number);
        product.a_scale = a_scale;
        add_bias(b, rank, product, number);
        b.add(rank, products, {std::move(product), waits, {}});
      }
    };
    multiply(b.rows_of(rank, buffer_a, 0, h), rank * h, b.scales_of(rank, {0, h}), {});
    for (int step = 1; step <= steps; ++step) {
      const int source = (rank + ranks - step) % ranks;
      // Where the block lies that has come in so many steps.
      const auto rows_in = [&](int after, const Range& rows) {
        if (after == 0) return b.rows_of(rank, shard, rows.begin, rows.size);
        const int place = problem.gathered_a ? (rank + ranks - after) % ranks : after - 1;
        return b.rows_of(rank, arrived, place * h + rows.begin, rows.size);
      };
      for (std::int64_t c = 0; c < chunks; ++c) {
        const Range rows = part_of(h, chunks, c), all{source * h + rows.begin, rows.size};
        const int number = base::narrow<int>((step - 1) * chunks + c, "chunks"), signal = ready + number;
        if (step == 1) bring_shard(b, rank, library, shard, rows);
        Collective exchange{CollectiveKind::send_receive, first_group + number, rows_in(step - 1, rows),
                            rows_in(step, rows)};
        exchange.send_to = next;
        exchange.receive_from = previous;
        b.add(rank, library, {std::move(exchange), {}, {{rank, signal}}});
        multiply(rows_in(step, rows), all.begin, scales.of(rank, all), {{signal}});
      }
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
  // rows without gaps, and it adds in its operands' type, and no bias: these need a workspace after the collective,
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

// One rank exchanges nothing: its products are the result, and its A is all of A.
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
  if (problem.gathered_a) copy_own(b, 0, b.queue(Engine::copy));
  return b.take();
}

}  // namespace

Plan sequential_plan(const Problem& problem, const Knobs& knobs) {
  Builder b(problem, Strategy::sequential, knobs);
  if (problem.ranks == 1) return product_plan(b);
  return problem.op == Operator::all_gather_gemm ? gather_then_gemm(b) : gemm_then_collective(b, 1);
}

Plan decomposed_plan(const Problem& problem, const Knobs& knobs) {
  Builder b(problem, Strategy::decomposed, knobs);
  if (problem.ranks == 1) return product_plan(b);
  return problem.op == Operator::all_gather_gemm ? gemm_in_ring(b, knobs.chunks)
                                                 : gemm_then_collective(b, knobs.chunks);
}

void validate_decomposed(const Problem& problem, const Knobs& knobs) {
  IMBREX_EXPECTS(
      problem.op != Operator::all_gather_gemm || knobs.transport != Transport::store,
      "knob transport = store: decomposed plans of all_gather_gemm send blocks from rank to rank, and Imbrex' "
      "own collectives do not; transport push or pull takes NCCL's");
}

}  // namespace imbrex::plan
