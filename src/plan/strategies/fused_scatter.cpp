// GEMM + ReduceScatter, AllReduce and All-to-All, fused: the tiles of one GEMM send their results to the ranks that own
// them as they finish, other ranks' rows first (Chang et al., "FLUX", 2024, section 3.1; Punniyamurthy et al.,
// "Optimizing Distributed ML Communication with Fused Computation-Collective Operations", SC 2024).
#include "plan/strategies/strategies.hpp"

#include <algorithm>
#include <numeric>

#include "base/narrow.hpp"
#include "plan/problem.hpp"
#include "plan/strategies/scatter_counts.hpp"
#include "plan/strategies/split_k.hpp"
#include "plan/strategies/tile_order.hpp"

namespace imbrex::plan {
namespace {

class FusedScatter final : public StreamedStrategy {
 public:
  FusedScatter(const Problem& problem, const Knobs& knobs, int only)
      : StreamedStrategy(problem, Strategy::fused, knobs, only) {
    one_shot_ = problem.op == Operator::gemm_all_reduce && knobs.one_shot;
    exchange_ = exchanges(problem);
    reduce_ = !exchange_ && problem.ranks > 1;
    in_tile_ = reduce_ && knobs.reducer == Reducer::tile;
    copies_ = knobs.transport != Transport::store && problem.ranks > 1;
    spanning_ = knobs.span_shards && !one_shot_;
    make_areas();
    const ScatterWays ways{one_shot_, exchange_, reduce_, in_tile_, copies_, spanning_};
    set_counts(count_scattered(b_, ways, areas_, static_cast<std::int64_t>(split_.parts())));
    // A strategy lists these, kept or not.
    if (spanning_ || copies_ || split_.splits()) b_.expect_kept({plan::count_tiles(b_, ways, areas_), 0, 0});
    make_pieces();
    compute_ = b_.queue(Engine::compute);
    copy_ = copies_ ? b_.queue(Engine::copy) : compute_;
    // A handful of SMs keeps up with the links; they are free for tiles again in plans without this queue.
    reduction_ = reduce_ && knobs.reducer == Reducer::reserved ? b_.queue(Engine::compute, 4) : compute_;
    make_buffers_and_signals();
    split_.make_slots(static_cast<std::int64_t>(count_tiles()));
  }

  void add_tasks() override {
    std::fill(arrivals_.begin(), arrivals_.end(), 0);
    if (exchange_ && b_.ranks() > 1 && b_.knobs().transport != Transport::pull) announce_entry();
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      if (!ordered(rank)) {
        post_only(rank);
        continue;
      }
      b_.reserve(rank, compute_, count_tiles() * split_.parts() + 1);
      add_tiles(rank);
      if (reduce_ && !in_tile_) add_reductions(rank);
    }
    if (copies_) add_copies();
    for (int rank = 0; rank < b_.ranks(); ++rank)
      if (const auto count = arrivals_[index(rank)]; count > 0)
        b_.add(rank, compute_, signal_task({{arrived_[index(rank)], count}}, {}));
  }

  // Each rank goes through the areas from its own on, in one direction.
  bool ranks_are_alike() const override {
    return !spanning_ && !copies_ && b_.knobs().order != TileOrder::naive && are_of_one_size(areas_);
  }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  int ranks() const { return b_.ranks(); }
  std::uint32_t ranks_word() const { return base::narrow<std::uint32_t>(ranks(), "ranks"); }

  // -------------------------------------------------------------------------------------------- who owns what

  void make_areas() {
    const auto& product = b_.shapes().product;
    const Range rows{0, product.rows}, cols{0, product.cols};
    if (one_shot_) {
      areas_ = {{0, rows, cols}};
      return;
    }
    const bool by_columns = owns_columns(b_.problem(), b_.knobs());
    for (int owner = 0; owner < ranks(); ++owner)
      areas_.push_back({owner, by_columns ? rows : part_of(product.rows, ranks(), owner),
                        by_columns ? part_of(product.cols, ranks(), owner) : cols});
    // A rank that owns nothing cannot tell from its own tasks which buffers peers write: such plans come whole.
    if (std::any_of(areas_.begin(), areas_.end(), [](const Area& a) { return a.rows.size == 0 || a.cols.size == 0; }))
      b_.keep_all();
  }

  // A plan for one rank keeps the posts of the other ranks' tiles, which need no order among themselves; where copies
  // follow tiles, and where tiles span shards, they are found by going through all tiles.
  bool ordered(int rank) const { return b_.keeps(rank) || copies_ || spanning_; }

  void make_pieces() {
    if (spanning_) spanning_tiles_ = spanning_tiles(b_.shapes().product, areas_, b_.knobs());
    pieces_.resize(areas_.size());
    piece_count_.resize(areas_.size());
    for (const OwnedBlock& piece : spanning_tiles_.pieces) ++piece_count_[index(piece.owner)];
    for (std::size_t owner = 0; owner < areas_.size() && !spanning_; ++owner)
      piece_count_[owner] = count_blocks(areas_[owner], b_.knobs());
    most_pieces_ = *std::max_element(piece_count_.begin(), piece_count_.end());
    if (!copies_) return;
    for (std::size_t owner = 0; owner < areas_.size(); ++owner) pieces_[owner].resize(index(piece_count_[owner]));
    for_each_tile(0, [&](const TileBlock&, std::span<const OwnedBlock> pieces) {
      for (const OwnedBlock& piece : pieces) pieces_[index(piece.owner)][index(piece.index)] = piece.block;
    });
  }

  std::size_t count_tiles() const {
    return spanning_ ? spanning_tiles_.size()
                     : index(std::accumulate(piece_count_.begin(), piece_count_.end(), std::int64_t{0}));
  }

  // Calls f(block, pieces) for the rank's tiles in its order.
  template <typename F>
  void for_each_tile(int rank, F&& f) const {
    if (!spanning_) {
      for_each_scattered(areas_, ranks(), rank, b_.knobs(),
                         [&](const OwnedBlock& piece) { f(piece.block, std::span<const OwnedBlock>(&piece, 1)); });
      return;
    }
    // Each rank starts elsewhere, so that not all of them store to the same owners at the same time.
    const std::size_t count = spanning_tiles_.size();
    const auto first = b_.knobs().order == TileOrder::naive
                           ? 0
                           : index(part_of(static_cast<std::int64_t>(count), ranks(), rank).begin);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t tile = (first + i) % count;
      f(spanning_tiles_.block(tile), spanning_tiles_.pieces_of(tile));
    }
  }

  // ------------------------------------------------------------------------------------------ buffers, signals

  void make_buffers_and_signals() {
    const Knobs& knobs = b_.knobs();
    const auto& product = b_.shapes().product;
    const Type type = exchange_ ? output_type(b_.problem().type) : knobs.partial;
    std::int64_t area_rows = 0, area_cols = 0;
    for (const Area& area : areas_) {
      area_rows = std::max(area_rows, area.rows.size);
      area_cols = std::max(area_cols, area.cols.size);
      blocks_.emplace_back();
      contributions_.emplace_back();
      if (!copies_ || area.cols.size == 0) continue;
      for (const Range& rows : cut(area.rows.size, rows_of_a_copy(area, knobs)))
        blocks_.back().push_back({{area.rows.begin + rows.begin, rows.size}, area.cols});
      contributions_.back().resize(blocks_.back().size());
      for (const TileBlock& piece : pieces_[index(area.owner)])
        for_each_block({piece, area.owner, 0}, [&](int block) { ++contributions_.back()[index(block)]; });
    }
    area_rows_ = area_rows;
    arrivals_.resize(index(ranks()));
    arrived_.resize(index(ranks()));
    signal_base_.resize(index(ranks()));
    local_base_.resize(index(ranks()));
    entered_.resize(index(ranks()));
    if (ranks() == 1) return;
    if (copies_) partial_ = b_.workspace("partial", Layout::row_major, type, product.rows, product.cols, 2);
    if (reduce_ && copies_)
      received_ = b_.workspace("received", Layout::row_major, type, area_rows * ranks(), area_cols, 2);
    else if (in_tile_)
      received_ =
          b_.workspace("slots", Layout::fragment, type, most_pieces_ * (ranks() - 1), knobs.tile_m * knobs.tile_n, 2);
    else if (reduce_)
      received_ =
          b_.workspace("received", Layout::row_major, type, most_pieces_ * ranks() * knobs.tile_m, knobs.tile_n, 2);
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto own = one_shot_ ? 0 : rank;
      if (reduce_ && !copies_) signal_base_[index(rank)] = b_.signals(rank, piece_count_[index(own)]);
      if (copies_) signal_base_[index(rank)] = b_.signals(rank, std::int64_t{ranks()} * block_count(rank));
      if (copies_) local_base_[index(rank)] = b_.signals(rank, local_count(rank));
      if (exchange_ && knobs.transport != Transport::pull) entered_[index(rank)] = b_.signals(rank, ranks());
      arrived_[index(rank)] = b_.signals(rank);
    }
  }

  int block_count(int owner) const { return base::narrow<int>(blocks_[index(owner)].size(), "copies"); }
  // Copies wait where they run: for the sender's tiles on the sender (push), or on the receiver (pull).
  std::int64_t local_count(int rank) const {
    return b_.knobs().transport == Transport::pull ? std::int64_t{ranks()} * block_count(rank) : block_offset(ranks());
  }
  int block_offset(int owner) const {
    int count = 0;
    for (int o = 0; o < owner; ++o) count += block_count(o);
    return count;
  }
  // Raised by a sender's tiles when their part of a block lies in `partial`.
  Post block_ready(int source, int owner, int block) const {
    if (b_.knobs().transport == Transport::pull)
      return {owner, local_base_[index(owner)] + source * block_count(owner) + block};
    return {source, local_base_[index(source)] + block_offset(owner) + block};
  }
  // Raised when a block of `source` lies in the owner's memory.
  int block_arrived(int owner, int source, int block) const {
    return signal_base_[index(owner)] + source * block_count(owner) + block;
  }
  template <typename F>
  void for_each_block(const OwnedBlock& piece, F&& f) const {
    const Area& area = areas_[index(piece.owner)];
    const Range& rows = piece.block.rows;
    const std::int64_t height = rows_of_a_copy(area, b_.knobs()), first = rows.begin - area.rows.begin;
    for (std::int64_t i = first / height; i <= (first + rows.size - 1) / height; ++i) f(base::narrow<int>(i, "copies"));
  }

  // --------------------------------------------------------------------------------------------------- regions

  Region region(int rank, int buffer, const TileBlock& block, std::int64_t row0, std::int64_t col0) const {
    return b_.region(rank, buffer, block.rows.begin - row0, block.rows.size, block.cols.begin - col0, block.cols.size);
  }
  Region partial(int rank, const TileBlock& block) const { return region(rank, partial_, block, 0, 0); }

  Region received_block(int owner, int source, const TileBlock& block) const {
    const Area& area = areas_[index(owner)];
    return region(owner, received_, block, area.rows.begin - source * area_rows_, area.cols.begin);
  }
  Region received_tile(int rank, int source, const OwnedBlock& piece) const {
    const std::int64_t row = (source * most_pieces_ + piece.index) * b_.knobs().tile_m;
    return b_.region(rank, received_, row, piece.block.rows.size, 0, piece.block.cols.size);
  }
  Region slot(int source, const OwnedBlock& piece) const {
    const std::int64_t place = source < piece.owner ? source : source - 1;
    return b_.region(piece.owner, received_, place * most_pieces_ + piece.index, 1, 0,
                     piece.block.rows.size * piece.block.cols.size);
  }
  // Where `rank` contributes to an exchange, or a sum belongs.
  Region final_region(int rank, int source, const OwnedBlock& piece) const {
    const std::int64_t shard = b_.shapes().out.rows;
    const std::int64_t rows = shard / ranks();
    std::int64_t begin = 0;
    if (exchange_) begin = piece.owner * rows - source * rows;
    if (b_.problem().op == Operator::gemm_reduce_scatter) begin = piece.owner * shard;
    return region(rank, buffer_out, piece.block, begin, 0);
  }
  // Calls store(to) for all ranks that a sum of `rank` goes to, and then adds what it posts.
  template <typename F>
  void send_sum(int rank, std::vector<Post>& posts, F&& store) {
    const bool to_all = b_.problem().op == Operator::gemm_all_reduce && !one_shot_;
    store(rank);
    for (int step = 1; to_all && step < ranks(); ++step) {
      const int peer = (rank + step) % ranks();
      store(peer);
      // A rank may not leave before the others' sums have reached it.
      posts.emplace_back(peer, arrived_[index(peer)]);
      ++arrivals_[index(peer)];
    }
  }

  // ----------------------------------------------------------------------------------------------------- tasks

  // Tiles and pushes store into the peers' outputs, which they may do once their owners have entered the epoch.
  void announce_entry() {
    for (int rank = 0; rank < ranks(); ++rank) {
      std::vector<Post> posts;
      for (int step = 1; step < ranks(); ++step) {
        const int peer = (rank + step) % ranks();
        posts.push_back({peer, entered_[index(peer)] + rank});
      }
      b_.add(rank, compute_, signal_task({}, posts));
    }
  }

  void add_tiles(int rank) {
    if (!split_.splits()) {
      std::size_t place = 0;
      for_each_tile(rank, [&](const TileBlock& block, std::span<const OwnedBlock> pieces) {
        add_tile(rank, block, pieces, place++, 0);
      });
      return;
    }
    RankTiles mine;
    for_each_tile(rank, [&](const TileBlock& block, std::span<const OwnedBlock> pieces) {
      mine.spanning.push_back({block, mine.pieces.size(), pieces.size()});
      mine.pieces.insert(mine.pieces.end(), pieces.begin(), pieces.end());
    });
    split_.for_each_part(0, mine.size(), [&](std::size_t tile, std::size_t part) {
      if (split_.is_last(part) || b_.keeps(rank)) add_tile(rank, mine.block(tile), mine.pieces_of(tile), tile, part);
    });
  }

  // A part of the tile that is number `place` of the rank's.
  void add_tile(int rank, const TileBlock& block, std::span<const OwnedBlock> pieces, std::size_t place,
                std::size_t part) {
    if (!b_.keeps(rank)) {
      std::vector<Wait> waits;
      std::vector<Post> posts;
      split_.add_waits(rank, place, waits);
      send(rank, block, pieces, nullptr, waits, posts);
      b_.skip(rank, compute_, waits, std::move(posts));
      return;
    }
    const Region a = b_.rows_of(rank, buffer_a, block.rows.begin, block.rows.size);
    Task& task = split_.add_tile(rank, compute_, a, block.cols, place, part);
    auto& tile = std::get<Tile>(task.work);
    if (b_.problem().scales != Scales::none) tile.a_scale = b_.scales_of(rank, block.rows);
    if (!split_.is_last(part)) return;
    send(rank, block, pieces, &tile, task.waits, task.posts);
    // With reductions the bias is theirs to add.
    const bool complete = ranks() == 1 || exchange_ || !tile.adds.empty();
    split_.add_parts(rank, place, tile);
    if (complete) b_.add_bias(rank, block.cols, tile.adds);
  }

  // What add_tile and add_reductions keep of another rank's: its posts to the one whose plan this is.
  void post_only(int peer) {
    const int to = b_.only();
    const std::int64_t count = piece_count_[index(one_shot_ ? 0 : to)];
    // Its pieces for that rank, those first that stand before any tile that waits.
    std::vector<Wait> first_waits;
    split_.add_waits(peer, 0, first_waits);
    const std::int64_t lead = exchange_ ? 0
                              : in_tile_
                                  ? scatter_lead(areas_[index(to)], areas_[index(peer)], ranks(), peer, b_.knobs())
                                  : count;
    std::vector<Post> early, late;
    early.reserve(index(lead));
    for (int i = 0; i < count; ++i)
      (i < lead ? early : late).push_back({to, exchange_ ? arrived_[index(to)] : signal_base_[index(to)] + i});
    b_.skip(peer, compute_, first_waits, std::move(early));
    if (exchange_) arrivals_[index(to)] += base::narrow<std::uint32_t>(count, "pieces");
    if (reduce_ && !one_shot_ && b_.problem().op == Operator::gemm_all_reduce) {
      late.insert(late.end(), index(piece_count_[index(peer)]), {to, arrived_[index(to)]});
      arrivals_[index(to)] += base::narrow<std::uint32_t>(piece_count_[index(peer)], "pieces");
    }
    const int first_wait = exchange_ ? entered_[index(peer)] : signal_base_[index(peer)];
    b_.skip(peer, reduction_, {{first_wait}}, std::move(late));
  }

  // Where a tile's pieces go, what it waits for and posts; `tile` is null where the plan does not keep it.
  void send(int rank, const TileBlock& block, std::span<const OwnedBlock> pieces, Tile* tile, std::vector<Wait>& waits,
            std::vector<Post>& posts) {
    const auto store = [&](const OwnedBlock& piece, auto&& region) {
      if (tile == nullptr) return;
      Store& made = tile->stores.emplace_back();
      made.to = region();
      made.row = piece.block.rows.begin - block.rows.begin;
      made.col = piece.block.cols.begin - block.cols.begin;
    };
    const auto post = [&](int to, int signal) {
      if (tile != nullptr || b_.keeps(to)) posts.emplace_back(to, signal);
    };
    for (const OwnedBlock& piece : pieces) {
      const bool own = piece.owner == rank;
      if (ranks() == 1) {
        store(piece, [&] { return final_region(rank, rank, piece); });
      } else if (one_shot_) {
        for (int step = 1; step <= ranks(); ++step) {  // own copy last
          const int peer = (rank + step) % ranks();
          store(piece, [&] { return received_tile(peer, rank, piece); });
          post(peer, signal_base_[index(peer)] + piece.index);
        }
      } else if (own && in_tile_) {
        if (tile != nullptr) add_peers(*tile, piece);
        wait_for_peers(waits, piece);
        send_sum(rank, posts, [&](int to) { store(piece, [&] { return final_region(to, rank, piece); }); });
      } else if (own && exchange_) {
        store(piece, [&] { return final_region(rank, rank, piece); });
      } else if (copies_) {
        store(piece, [&] { return partial(rank, piece.block); });
        for_each_block(piece, [&](int part) {
          posts.push_back(own ? Post{rank, block_arrived(rank, rank, part)} : block_ready(rank, piece.owner, part));
        });
      } else if (exchange_) {
        store(piece, [&] { return final_region(piece.owner, rank, piece); });
        waits.emplace_back(entered_[index(rank)] + piece.owner, 1u, WaitPoint::epilogue);
        post(piece.owner, arrived_[index(piece.owner)]);
        ++arrivals_[index(piece.owner)];
      } else {
        store(piece, [&] { return in_tile_ ? slot(rank, piece) : received_tile(piece.owner, rank, piece); });
        post(piece.owner, signal_base_[index(piece.owner)] + piece.index);
      }
    }
  }

  void add_peers(Tile& tile, const OwnedBlock& piece) const {
    tile.own = piece.owner;
    tile.adds.reserve(index(ranks() - 1));
    for (int source = 0; source < ranks(); ++source)
      if (source != piece.owner)
        tile.adds.emplace_back() = copies_ ? received_block(piece.owner, source, piece.block) : slot(source, piece);
  }

  void wait_for_peers(std::vector<Wait>& waits, const OwnedBlock& piece) const {
    const int owner = piece.owner;
    if (!copies_) {
      waits.emplace_back(signal_base_[index(owner)] + piece.index, ranks_word() - 1, WaitPoint::epilogue);
      return;
    }
    for (int source = 0; source < ranks(); ++source)
      if (source != owner)
        for_each_block(piece, [&](int block) {
          waits.push_back({block_arrived(owner, source, block), 1, WaitPoint::epilogue});
        });
  }

  void add_reductions(int rank) {
    const int owner = one_shot_ ? 0 : rank;
    // In the order in which this rank computes its own part, which is the order in which the peers send it.
    for_each_tile(rank, [&](const TileBlock&, std::span<const OwnedBlock> pieces) {
      for (const OwnedBlock& piece : pieces) {
        if (piece.owner != owner) continue;
        Reduction reduction;
        std::vector<Wait> waits;
        for (int source = 0; source < ranks(); ++source) {
          if (!copies_)
            reduction.from.push_back(received_tile(rank, source, piece));
          else if (source == rank)
            reduction.from.push_back(partial(rank, piece.block));
          else
            reduction.from.push_back(received_block(rank, source, piece.block));
          if (copies_)
            for_each_block(piece, [&](int block) {
              waits.push_back({block_arrived(rank, source, block), source == rank ? contributions(rank, block) : 1u});
            });
        }
        if (!copies_) waits.push_back({signal_base_[index(rank)] + piece.index, ranks_word()});
        b_.add_bias(rank, piece.block.cols, reduction.from);
        std::vector<Post> posts;
        send_sum(rank, posts, [&](int to) { reduction.to.push_back(final_region(to, rank, piece)); });
        b_.add(rank, reduction_, {std::move(reduction), std::move(waits), std::move(posts)});
      }
    });
  }

  // Tiles of one rank that write into a block.
  std::uint32_t contributions(int owner, int block) const { return contributions_[index(owner)][index(block)]; }

  struct Copy {
    int source = 0, owner = 0, block = 0;
    std::size_t ready = 0;  // place of the last contributing tile in the sender's order
  };

  void add_copies() {
    const bool pull = b_.knobs().transport == Transport::pull;
    std::vector<std::vector<Copy>> copies(index(ranks()));
    for (int source = 0; source < ranks(); ++source) {
      std::vector<std::vector<std::size_t>> ready(areas_.size());
      for (std::size_t o = 0; o < areas_.size(); ++o) ready[o].resize(blocks_[o].size());
      std::size_t place = 0;
      for_each_tile(source, [&](const TileBlock&, std::span<const OwnedBlock> pieces) {
        for (const OwnedBlock& piece : pieces)
          for_each_block(piece, [&](int block) { ready[index(piece.owner)][index(block)] = place; });
        ++place;
      });
      for (int owner = 0; owner < ranks(); ++owner)
        for (int block = 0; owner != source && block < block_count(owner); ++block)
          copies[index(pull ? owner : source)].push_back({source, owner, block, ready[index(owner)][index(block)]});
    }
    // In the order in which the blocks become ready: a copy queue runs one at a time, and must not stand after a
    // block whose tiles come later than those that wait for this queue.
    for (int rank = 0; rank < ranks(); ++rank) {
      auto& mine = copies[index(rank)];
      std::stable_sort(mine.begin(), mine.end(), [](const Copy& x, const Copy& y) { return x.ready < y.ready; });
      for (const Copy& copy : mine) add_copy(rank, copy);
    }
  }

  void add_copy(int rank, const Copy& copy) {
    const TileBlock& block = blocks_[index(copy.owner)][index(copy.block)];
    std::vector<Wait> waits{
        {block_ready(copy.source, copy.owner, copy.block).signal, contributions(copy.owner, copy.block)}};
    std::vector<Post> posts;
    Region to;
    if (!exchange_) {
      to = received_block(copy.owner, copy.source, block);
      posts.push_back({copy.owner, block_arrived(copy.owner, copy.source, copy.block)});
    } else {
      to = final_region(copy.owner, copy.source, {block, copy.owner, 0});
      if (copy.owner != rank) {
        waits.push_back({entered_[index(rank)] + copy.owner});
        posts.push_back({copy.owner, arrived_[index(copy.owner)]});
        ++arrivals_[index(copy.owner)];
      }
    }
    b_.add(rank, copy_, {Transfer{partial(copy.source, block), to}, std::move(waits), std::move(posts)});
  }

  SplitK split_{b_};
  bool one_shot_ = false, exchange_ = false, reduce_ = false, in_tile_ = false, copies_ = false, spanning_ = false;
  std::vector<Area> areas_;                                // by owner; one area for one-shot
  RankTiles spanning_tiles_;                               // the first rank's, where tiles span areas
  std::vector<std::vector<TileBlock>> pieces_;             // by owner and index; with copies
  std::vector<std::int64_t> piece_count_;                  // by owner
  std::vector<std::vector<TileBlock>> blocks_;             // by owner: rows that one copy carries; with copies
  std::vector<std::vector<std::uint32_t>> contributions_;  // by owner and block
  std::int64_t most_pieces_ = 0, area_rows_ = 0;
  int compute_ = 0, copy_ = 0, reduction_ = 0, partial_ = 0, received_ = 0;
  std::vector<int> signal_base_, local_base_, entered_, arrived_;  // by rank
  std::vector<std::uint32_t> arrivals_;                            // by rank: posts to arrived_
};

}  // namespace

std::unique_ptr<StreamedStrategy> fused_scatter(const Problem& problem, const Knobs& knobs, int only) {
  return std::make_unique<FusedScatter>(problem, knobs, only);
}

}  // namespace imbrex::plan
