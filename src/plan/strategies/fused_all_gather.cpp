// AllGather + GEMM, fused: copies bring the peers' shards piece by piece, each piece raises a signal, and every tile of
// one GEMM waits for just the pieces that it reads. The local shard is read in place and comes first; the peers'
// shards follow in the order in which they arrive (Chang et al., "FLUX", 2024, section 3.2 and 4.1). Small shards are
// stored to the peers by the GEMM's own workers before their first tiles: a copy engine takes longer to start.
//
// Where there are several B, the outputs stand side by side, and their tiles are one list. A gathered A that is an
// output is where pulled shards land, and tiles read them there. What peers bring lands in a workspace, since only
// there they need not ask whether this rank has entered; workers that find no tile any more take it from there to the
// output, and this rank's own rows from its A.
#include <algorithm>

#include "base/ceil_div.hpp"
#include "base/narrow.hpp"
#include "plan/problem.hpp"
#include "plan/strategies/split_k.hpp"
#include "plan/strategies/strategies.hpp"
#include "plan/strategies/tile_order.hpp"

namespace imbrex::plan {
namespace {

class FusedAllGather final : public StreamedStrategy {
 public:
  FusedAllGather(const Problem& problem, const Knobs& knobs, int only)
      : StreamedStrategy(problem, Strategy::fused, knobs, only),
        shard_rows_(b_.shapes().a.rows),
        stored_(knobs.transport == Transport::store) {
    const std::int64_t depth = b_.shapes().depth;
    const std::int64_t slices = std::min<std::int64_t>(knobs.k_slices, depth);
    piece_rows_ = knobs.comm_rows > 0 ? knobs.comm_rows : default_rows();
    count(slices);
    for (std::int64_t s = 0; s < slices; ++s) slices_.push_back(part_of(depth, slices, s));
    pieces_ = cut(shard_rows_, piece_rows_);
    handed_ = cut(shard_rows_, handed_rows());
    if (lands_in_output())
      gathered_ = buffer_gathered(problem);
    else
      gathered_ = b_.workspace(problem.gathered_a ? "arrived" : "gathered", Layout::row_major, problem.type, problem.m,
                               depth, 2);
    if (problem.scales != Scales::none)
      gathered_scales_ =
          b_.workspace("gathered_scales", Layout::row_major, Type::fp32, b_.shapes().a_scale.rows * b_.ranks(), 1, 2);
    // Pulled pieces wait for their owners to enter.
    if (knobs.transport != Transport::pull || b_.ranks() == 1) b_.set_loads_free();
    compute_ = b_.queue(Engine::compute);
    copy_ = stored_ ? compute_ : b_.queue(Engine::copy);
    make_signals();
    split_.make_slots(count_blocks());
  }

  void add_tasks() override {
    if (scaled()) store_scales();
    if (b_.knobs().span_shards) copy_own_shards();
    switch (b_.knobs().transport) {
      case Transport::store: store(); break;
      case Transport::push: push(); break;
      case Transport::pull: pull(); break;
    }
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      if (!b_.keeps(rank)) continue;  // tiles post nothing to others
      if (b_.knobs().span_shards)
        spanning_tiles(rank);
      else
        shard_tiles(rank);
    }
    if (!b_.problem().gathered_a || lands_in_output()) return;
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      hand_out_own(rank);
      hand_out_arrived(rank);
    }
  }

  // Shards are equally high, and each rank begins with its own. Tiles that span them all wait, and come in one order
  // but where those that are complete first go first.
  bool ranks_are_alike() const override {
    return b_.knobs().order != (b_.knobs().span_shards ? TileOrder::owner_major : TileOrder::naive);
  }

 private:
  // A block of an output: of the product of that number.
  struct OutputBlock {
    Range rows, cols;
    int product = 0;
  };

  // The columns of all outputs side by side, where each begins with a tile of its own.
  Range all_cols() const {
    std::int64_t cols = 0;
    for (int product = 0; product < count_products(b_.problem()); ++product) cols += tiled_cols(product);
    return {0, cols};
  }
  std::int64_t tiled_cols(int product) const {
    const std::int64_t tile_n = b_.knobs().tile_n;
    return base::ceil_div(cols_of(b_.problem(), product), tile_n) * tile_n;
  }

  // Which output a block of these is of.
  OutputBlock output_block(const TileBlock& block) const {
    std::int64_t col = block.cols.begin;
    int product = 0;
    for (std::int64_t wide; col >= (wide = tiled_cols(product)); ++product) col -= wide;
    return {block.rows, {col, std::min(block.cols.size, cols_of(b_.problem(), product) - col)}, product};
  }

  // Whether what arrives lands directly in the caller's gathered A.
  bool lands_in_output() const { return b_.problem().gathered_a && b_.knobs().transport == Transport::pull; }

  // A copy engine takes a shard whole; workers share out each slice of it, one slice after the other.
  std::int64_t default_rows() const {
    if (!stored_) return shard_rows_;
    const std::int64_t pieces = std::max(1, usual_sms / std::max(1, b_.ranks() - 1));
    return base::ceil_div(shard_rows_, pieces);
  }

  // What is handed out at once: as what arrives, but in pieces for workers to share where copy engines bring it.
  std::int64_t handed_rows() const {
    if (stored_ || lands_in_output()) return piece_rows_;
    constexpr std::int64_t least = 8;
    const std::int64_t share = base::ceil_div(shard_rows_, std::max<std::int64_t>(1, usual_sms / b_.ranks()));
    return std::min(piece_rows_, std::max(share, least));
  }

  void count(std::int64_t slices) {
    using base::counted_product, base::counted_sum;
    const Knobs& knobs = b_.knobs();
    const std::int64_t ranks = b_.ranks(), pieces = base::ceil_div(shard_rows_, piece_rows_),
                       parts = static_cast<std::int64_t>(split_.parts());
    const std::int64_t rows = base::ceil_div(knobs.span_shards ? b_.problem().m : shard_rows_, knobs.tile_m);
    const std::int64_t cols = all_cols().size / knobs.tile_n, blocks = count_blocks();
    const std::int64_t travelling = counted_product(pieces, slices), copies = counted_product(ranks, travelling);
    const std::int64_t awaited = stored_ ? 1 : pieces;  // of a shard
    const std::int64_t of_rows =
        knobs.span_shards ? most_overlaps(rows, ranks * awaited) : ranks * most_overlaps(rows, awaited);
    const std::int64_t waits = counted_product(of_rows, cols, most_overlaps(parts, slices));
    // Pieces of the gathered A, each of which waits for the slices of what holds it.
    const bool hands_out = b_.problem().gathered_a;
    const std::int64_t of_shard = hands_out ? base::ceil_div(shard_rows_, handed_rows()) : 0,
                       handed = counted_product(ranks, of_shard);
    const std::int64_t handed_waits =
        hands_out ? counted_product(ranks, most_overlaps(of_shard, pieces), counted_sum(slices, 2)) : 0;
    set_counts({counted_sum(copies, ranks, 2, counted_product(blocks, parts), handed),
                counted_sum(counted_product(5, copies), counted_product(4, blocks, parts), waits, scaled() ? waits : 0,
                            handed_waits),
                counted_sum(counted_product(ranks, stored_ ? slices : travelling), 2 * ranks + 1,
                            split_.splits() ? blocks : 0)});
    // A strategy lists these, kept or not.
    b_.expect_kept({std::max(travelling, knobs.span_shards || split_.splits() ? blocks : 0), 0, 0});
  }

  void make_signals() {
    const bool pulls = b_.knobs().transport == Transport::pull && b_.ranks() > 1;
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      b_.signals(rank, b_.ranks() * signals_of_a_shard());
      if (scaled()) b_.signals(rank, b_.ranks());
      if (!pulls) continue;
      entered_ = b_.signals(rank, b_.ranks());
      read_ = b_.signals(rank);
    }
  }

  // Blocks of a rank's product.
  std::int64_t count_blocks() const {
    const Knobs& knobs = b_.knobs();
    const auto rows = [&](std::int64_t count) { return base::ceil_div(count, knobs.tile_m); };
    const std::int64_t high = knobs.span_shards ? rows(b_.problem().m) : b_.ranks() * rows(shard_rows_);
    return base::counted_product(high, all_cols().size / knobs.tile_n);
  }

  // Pieces that workers store are small and arrive all but together: they share a signal.
  int signals_of_a_shard() const {
    return base::narrow<int>((stored_ ? 1 : pieces_.size()) * slices_.size(), "signals");
  }
  std::uint32_t posts_of_a_signal() const {
    return base::narrow<std::uint32_t>(stored_ ? pieces_.size() : 1, "posts to a signal");
  }

  // Signal on the receiving rank that says: this slice of this piece of `source` has arrived.
  int arrived(int source, std::size_t piece, std::size_t slice) const {
    const std::size_t place = stored_ ? slice : piece * slices_.size() + slice;
    return source * signals_of_a_shard() + base::narrow<int>(place, "signals");
  }

  Transfer transfer(int source, int destination, std::size_t piece, std::size_t slice) const {
    const Range& rows = pieces_[piece];
    const Range& cols = slices_[slice];
    return {b_.region(source, buffer_a, rows.begin, rows.size, cols.begin, cols.size),
            b_.region(destination, gathered_, source * shard_rows_ + rows.begin, rows.size, cols.begin, cols.size)};
  }

  bool scaled() const { return b_.problem().scales != Scales::none; }

  int scales_arrived(int source) const { return b_.ranks() * signals_of_a_shard() + source; }

  // Workers store a shard's scales to the peers before anything else, even if copy engines move the rows: a copy engine
  // would take as long to start for these few bytes as for many.
  void store_scales() {
    const std::int64_t rows = b_.shapes().a_scale.rows;
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      for (int step = b_.knobs().span_shards ? 0 : 1; step < b_.ranks(); ++step) {
        const int peer = (rank + step) % b_.ranks();
        b_.add(rank, compute_,
               {Transfer{b_.scales_of(rank, {0, rows}), b_.scale_rows(peer, gathered_scales_, {rank * rows, rows})},
                {},
                {{peer, scales_arrived(rank)}}});
      }
    }
  }

  template <typename F>
  void for_each_piece(F&& f) const {
    for (std::size_t piece = 0; piece < pieces_.size(); ++piece)
      for (std::size_t slice = 0; slice < slices_.size(); ++slice) f(piece, slice);
  }

  void copy_own_shards() {
    for (int rank = 0; rank < b_.ranks(); ++rank)
      for_each_piece([&](std::size_t piece, std::size_t slice) {
        b_.add(rank, copy_, {transfer(rank, rank, piece, slice), {}, {{rank, arrived(rank, piece, slice)}}});
      });
  }

  void store() {
    for (std::size_t slice = 0; slice < slices_.size(); ++slice)
      for (std::size_t piece = 0; piece < pieces_.size(); ++piece)
        for (int rank = 0; rank < b_.ranks(); ++rank)
          for (int step = 1; step < b_.ranks(); ++step) {
            const int peer = (rank + step) % b_.ranks();
            b_.add(rank, copy_, {transfer(rank, peer, piece, slice), {}, {{peer, arrived(rank, piece, slice)}}});
          }
  }

  void push() {
    for (int rank = 0; rank < b_.ranks(); ++rank)
      for (int step = 1; step < b_.ranks(); ++step) {
        const int peer = (rank + step) % b_.ranks();
        for_each_piece([&](std::size_t piece, std::size_t slice) {
          b_.add(rank, copy_, {transfer(rank, peer, piece, slice), {}, {{peer, arrived(rank, piece, slice)}}});
        });
      }
  }

  // A shard may be read once its owner has entered the epoch, and its owner may not leave while it is read.
  void pull() {
    const int ranks = b_.ranks();
    if (ranks == 1 && lands_in_output()) hand_out_own(0);
    if (ranks == 1) return;
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<Post> announce;
      for (int step = 1; step < ranks; ++step) {
        const int peer = (rank + step) % ranks;
        announce.push_back({peer, entered_ + rank});
      }
      b_.add(rank, copy_, signal_task({}, announce));
      std::uint32_t reads = 0;
      for (int step = 1; step < ranks; ++step) {
        const int peer = (rank + step) % ranks;
        for_each_piece([&](std::size_t piece, std::size_t slice) {
          b_.add(rank, copy_,
                 {transfer(peer, rank, piece, slice),
                  {{entered_ + peer}},
                  {{rank, arrived(peer, piece, slice)}, {peer, read_}}});
          ++reads;
        });
      }
      if (lands_in_output()) hand_out_own(rank);
      b_.add(rank, copy_, signal_task({{read_, reads}}, {}));
    }
  }

  // The rank's own rows to the gathered A in the caller's memory, unless tiles read them there.
  void hand_out_own(int rank) {
    if (!b_.keeps(rank) || (lands_in_output() && b_.knobs().span_shards)) return;
    for (const Range& rows : handed_)
      b_.add(rank, lands_in_output() ? copy_ : compute_,
             {Transfer{b_.rows_of(rank, buffer_a, rows.begin, rows.size),
                       b_.rows_of(rank, buffer_gathered(b_.problem()), rank * shard_rows_ + rows.begin, rows.size)},
              {},
              {}});
  }

  // Hands out the peers' rows, in the order in which they arrive.
  void hand_out_arrived(int rank) {
    if (!b_.keeps(rank)) return;
    const int to = buffer_gathered(b_.problem()), ranks = b_.ranks();
    for (int step = 1; step < ranks; ++step) {
      const int source = (rank - step + ranks) % ranks;
      for (const Range& part : handed_) {
        const std::int64_t row = source * shard_rows_ + part.begin;
        Task task{Transfer{b_.rows_of(rank, gathered_, row, part.size), b_.rows_of(rank, to, row, part.size)}, {}, {}};
        for (std::size_t piece = first_piece(part); piece <= last_piece(part); ++piece)
          for (std::size_t slice = 0; slice < slices_.size(); ++slice)
            task.waits.emplace_back(arrived(source, piece, slice), posts_of_a_signal());
        b_.add(rank, compute_, std::move(task));
      }
    }
  }

  // Position in time at which `source`'s shard is complete on `rank`.
  int arrival(int rank, int source) const {
    if (b_.knobs().order == TileOrder::naive) return source;
    const int ranks = b_.ranks();
    return b_.knobs().transport == Transport::pull ? (source - rank + ranks) % ranks : (rank - source + ranks) % ranks;
  }

  // The pieces, by their signals, that hold rows of a shard.
  std::size_t piece_at(std::int64_t row) const { return stored_ ? 0 : static_cast<std::size_t>(row / piece_rows_); }
  std::size_t first_piece(const Range& rows) const { return piece_at(rows.begin); }
  std::size_t last_piece(const Range& rows) const { return piece_at(rows.end() - 1); }

  // For columns `k` of rows of `source`'s shard.
  void wait_for(std::vector<Wait>& waits, int source, Range rows, const Range& k) const {
    if (scaled()) waits.push_back({scales_arrived(source)});
    // The slices and pieces that overlap `k` and `rows`: of many, few do.
    const std::size_t first_slice = slice_of(k.begin), last_slice = slice_of(k.end() - 1);
    for (std::size_t piece = first_piece(rows); piece <= last_piece(rows); ++piece)
      for (std::size_t slice = first_slice; slice <= last_slice; ++slice)
        waits.emplace_back(arrived(source, piece, slice), posts_of_a_signal(), WaitPoint::load,
                           std::max<std::int64_t>(0, slices_[slice].begin - k.begin));
  }

  // That holds the column: as part_of cuts them.
  std::size_t slice_of(std::int64_t column) const {
    return static_cast<std::size_t>(((column + 1) * std::ssize(slices_) - 1) / b_.shapes().depth);
  }

  // The scales of gathered rows, all of them `source`'s where it has one for all.
  Region gathered_scales(int rank, int source, const Range& rows) const {
    if (!scaled()) return {};
    return b_.scale_rows(rank, gathered_scales_, b_.problem().scales == Scales::tensor ? Range{source, 1} : rows);
  }

  // A part of a block of the output, which is number `place` of the rank's. Returns where its waits go.
  std::vector<Wait>& add_tile(int rank, const Region& a, const Region& a_scale, const OutputBlock& block,
                              std::size_t place, std::size_t part) {
    const Problem& problem = b_.problem();
    Task& task = split_.add_tile(rank, compute_, a, block.cols, place, part, buffer_b_of(problem, block.product));
    auto& tile = std::get<Tile>(task.work);
    if (scaled()) tile.a_scale = a_scale;
    if (!split_.is_last(part)) return task.waits;
    tile.stores.emplace_back().to = b_.region(rank, buffer_out_of(problem, block.product), block.rows.begin,
                                              block.rows.size, block.cols.begin, block.cols.size);
    split_.add_parts(rank, place, tile);
    b_.add_bias(rank, block.cols, tile.adds, block.product);
    return task.waits;
  }

  void shard_tiles(int rank) {
    std::vector<Area> areas;
    std::vector<int> arrivals;
    for (int source = 0; source < b_.ranks(); ++source) {
      areas.push_back({source, {source * shard_rows_, shard_rows_}, all_cols()});
      arrivals.push_back(arrival(rank, source));
    }
    std::int64_t count = 0;
    for (const Area& area : areas) count += plan::count_blocks(area, b_.knobs());
    b_.reserve(rank, compute_, static_cast<std::size_t>(count) * split_.parts());
    const auto add = [&](const OwnedBlock& owned, std::size_t place, std::size_t part) {
      const auto& [block, source, number] = owned;
      const std::int64_t row = block.rows.begin, in_shard = row - source * shard_rows_;
      const Region a = source == rank ? b_.rows_of(rank, buffer_a, in_shard, block.rows.size)
                                      : b_.rows_of(rank, gathered_, row, block.rows.size);
      const Region a_scale = !scaled()        ? Region{}
                             : source == rank ? b_.scales_of(rank, {in_shard, block.rows.size})
                                              : gathered_scales(rank, source, {row, block.rows.size});
      std::vector<Wait>& waits = add_tile(rank, a, a_scale, output_block(block), place, part);
      if (source != rank) wait_for(waits, source, {in_shard, block.rows.size}, split_.stretch(part));
    };
    std::vector<OwnedBlock> order;
    std::size_t place = 0;
    for_each_gathered(areas, arrivals, rank, b_.knobs(), [&](const OwnedBlock& owned) {
      if (split_.splits())
        order.push_back(owned);
      else
        add(owned, place++, 0);
    });
    const bool in_columns = b_.knobs().order == TileOrder::column_major;
    const auto add_placed = [&](std::size_t at, std::size_t part) { add(order[at], at, part); };
    // What is there is not held up by parts of what has yet to arrive.
    for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      while (end < order.size() && (in_columns || order[end].owner == order[begin].owner)) ++end;
      split_.for_each_part(begin, end, add_placed);
    }
  }

  // Tiles over the whole gathered matrix: each waits for every shard that it touches. Those that are complete first go
  // first, or a column's go together, so that its part of B is read once.
  void spanning_tiles(int rank) {
    auto blocks = blocks_of({0, b_.problem().m}, all_cols(), b_.knobs());
    const auto latest = [&](const TileBlock& t) {
      int last = 0;
      for (std::int64_t s = t.rows.begin / shard_rows_; s * shard_rows_ < t.rows.end(); ++s)
        last = std::max(last, arrival(rank, base::narrow<int>(s, "shard")));
      return last;
    };
    if (b_.knobs().order != TileOrder::column_major)
      std::stable_sort(blocks.begin(), blocks.end(),
                       [&](const TileBlock& x, const TileBlock& y) { return latest(x) < latest(y); });
    b_.reserve(rank, compute_, blocks.size() * split_.parts());
    split_.for_each_part(0, blocks.size(), [&](std::size_t place, std::size_t part) {
      const TileBlock& t = blocks[place];
      std::vector<Wait>& waits = add_tile(rank, b_.rows_of(rank, gathered_, t.rows.begin, t.rows.size),
                                          gathered_scales(rank, 0, t.rows), output_block(t), place, part);
      for (std::int64_t s = t.rows.begin / shard_rows_; s * shard_rows_ < t.rows.end(); ++s) {
        const std::int64_t first = s * shard_rows_;
        wait_for(waits, base::narrow<int>(s, "shard"),
                 {std::max<std::int64_t>(t.rows.begin - first, 0),
                  std::min(t.rows.end() - first, shard_rows_) - std::max<std::int64_t>(t.rows.begin - first, 0)},
                 split_.stretch(part));
      }
    });
  }

  SplitK split_{b_};
  std::int64_t shard_rows_, piece_rows_ = 0;
  bool stored_;
  std::vector<Range> pieces_;  // rows of a shard that travel together
  std::vector<Range> handed_;  // rows that are handed out together
  std::vector<Range> slices_;  // columns that travel together
  int gathered_ = 0, gathered_scales_ = -1, compute_ = 0, copy_ = 0;
  int entered_ = 0, read_ = 0;  // signals of pulled shards, the same on every rank
};

}  // namespace

std::unique_ptr<StreamedStrategy> fused_all_gather(const Problem& problem, const Knobs& knobs, int only) {
  return std::make_unique<FusedAllGather>(problem, knobs, only);
}

}  // namespace imbrex::plan
