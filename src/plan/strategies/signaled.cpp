// Strategy `signaled`: one product in tiles, cut into groups that follow each other; a library's collective for each
// group, which waits until all of the group's tiles have posted (Hong et al., "FlashOverlap: A Lightweight Design for
// Efficiently Overlapping Communication and Computation", EuroSys 2026). all_gather_gemm goes the other way round:
// groups of rows are gathered, and tiles wait for them.
//
// A group is a number of rows of tiles of every rank's part, so that it lies together in row-major memory, and a
// reduce-scatter gives whole rows to their owner. Where one rank's part is the whole product (gemm_all_reduce), a group
// may also be any number of tiles in the order of the product (Knobs::packed): then each tile's rows lie after the
// last one's in a workspace as wide as a tile, and what comes back is put in rows.
#include <algorithm>
#include <optional>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/problem.hpp"
#include "plan/strategies/library_collectives.hpp"
#include "plan/strategies/split_k.hpp"
#include "plan/strategies/strategies.hpp"
#include "plan/strategies/tile_order.hpp"
#include "plan/wave_groups.hpp"

namespace imbrex::plan {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

class Signaled {
 public:
  Signaled(const Problem& problem, const Knobs& knobs) : b_(problem, Strategy::signaled, knobs), split_(b_) {}

  Plan take() {
    if (ranks() == 1)
      multiply_alone();
    else if (b_.problem().op == Operator::all_gather_gemm)
      gather();
    else if (b_.knobs().packed)
      reduce_packed();
    else
      exchange_rows();
    return b_.take();
  }

 private:
  // A stretch of every rank's part.
  struct Group {
    Range rows;
    std::int64_t packed = 0;  // first row where the groups, each with all parts' rows, lie one after another
  };

  int ranks() const { return b_.ranks(); }

  void make_queues() {
    tiles_ = b_.queue(Engine::compute);
    library_ = b_.queue(Engine::library);
    b_.keep_free(library_, b_.knobs().kept_free);
  }

  std::vector<Group> groups_of_rows(std::int64_t part_rows, int parts) const {
    const std::int64_t tile = b_.knobs().tile_m;
    std::vector<Group> groups;
    std::int64_t begin = 0;
    for (const std::int64_t size : groups_of_units(b_.knobs(), base::ceil_div(part_rows, tile), "rows of tiles")) {
      const std::int64_t end = std::min(part_rows, begin + size * tile);
      groups.push_back({{begin, end - begin}, begin * parts});
      begin = end;
    }
    return groups;
  }

  static std::vector<std::int64_t> rows_of(const std::vector<Group>& groups) {
    std::vector<std::int64_t> rows;
    for (const Group& group : groups) rows.push_back(group.rows.size);
    return rows;
  }

  // Tiles that `rows` of a product have, one of them in `parts` along K.
  std::int64_t count_tiles(std::int64_t rows) const {
    return base::ceil_div(rows, b_.knobs().tile_m) * base::ceil_div(b_.shapes().product.cols, b_.knobs().tile_n);
  }

  // Before anything of that many is made. Each tile posts once, and what follows it moves it once more.
  void expect_room(std::int64_t tiles, std::int64_t groups) const {
    using base::counted_product, base::counted_sum;
    const auto parts = static_cast<std::int64_t>(split_.parts());
    const std::int64_t collectives = counted_product(groups, most_stages(b_.knobs().nodes));
    const std::int64_t tasks = counted_sum(counted_product(tiles, parts + 1), counted_sum(collectives, 1));
    b_.expect_kept(
        Counts{tasks, counted_product(4 + parts, tasks), counted_sum(2 * groups, split_.splits() ? tiles : 0)}.times(
            ranks()));
  }

  // A tile of all of K, in parts: `place` counts a rank's tiles. `finish` fills in the last part's task.
  template <typename A, typename Finish>
  void add_tiles(int rank, const std::vector<TileBlock>& blocks, std::size_t place, A&& a, Finish&& finish) {
    split_.for_each_part(0, blocks.size(), [&](std::size_t i, std::size_t part) {
      Task& task = split_.add_tile(rank, tiles_, a(blocks[i]), blocks[i].cols, place + i, part);
      auto& tile = std::get<Tile>(task.work);
      if (b_.problem().scales != Scales::none) tile.a_scale = b_.scales_of(rank, blocks[i].rows);
      if (split_.is_last(part)) split_.add_parts(rank, place + i, tile);
      finish(task, tile, blocks[i], split_.is_last(part));
    });
  }

  // One rank exchanges nothing.
  void multiply_alone() {
    const Extent product = b_.shapes().product;
    expect_room(count_tiles(product.rows), 0);
    tiles_ = b_.queue(Engine::compute);
    split_.make_slots(count_tiles(product.rows));
    add_tiles(
        0, blocks_of({0, product.rows}, {0, product.cols}, b_.knobs()), 0,
        [&](const TileBlock& block) { return a_rows(0, block); },
        [&](Task&, Tile& tile, const TileBlock& block, bool last) {
          if (!last) return;
          tile.stores.push_back({in_output(0, block)});
          b_.add_bias(0, block.cols, tile.adds);
        });
  }

  // A block of an all-reduce's product in the output.
  Region in_output(int rank, const TileBlock& block) const {
    const Problem& problem = b_.problem();
    const auto& [rows, cols] = block;
    if (!is_packed(problem)) return b_.region(rank, buffer_out, rows.begin, rows.size, cols.begin, cols.size);
    return b_.region(rank, buffer_out, packed_row(problem, rows.begin, cols.begin), rows.size, 0, cols.size);
  }

  // ------------------------------------------------------------------------------------- a product, then exchanges

  // What a library leaves may need another type, the bias, another order, or gaps between its rows.
  struct Behind {
    bool convert = false, reorder = false;
    Type partial = Type::bf16;

    bool any() const { return convert || reorder; }
  };

  Behind behind(CollectiveKind kind, std::size_t groups) const {
    const bool sums = kind != CollectiveKind::all_to_all;
    const Type result = output_type(b_.problem().type);
    const Type partial = sums ? b_.knobs().partial : result;
    return {partial != result || (b_.problem().bias && sums), (!sums && groups > 1) || b_.has_gaps(buffer_out),
            partial};
  }

  // Moves a block that a collective has left at `from` to the output, with the bias of its columns where sums get it.
  void put(int rank, const Region& from, const Region& to, const Range& cols, bool convert, int arrived) {
    Task task{Transfer{from, to}, {{arrived}}, {}};
    if (convert) {
      Reduction reduction{{from}, {to}};
      b_.add_bias(rank, cols, reduction.from);
      task.work = std::move(reduction);
    }
    b_.add(rank, tiles_, std::move(task));
  }

  void exchange_rows() {
    const Extent product = b_.shapes().product;
    const CollectiveKind kind = collective_behind(b_.problem().op);
    const int owners = kind == CollectiveKind::all_reduce ? 1 : ranks();
    const std::int64_t part_rows = product.rows / owners;
    const std::int64_t tiles = base::counted_product(owners, count_tiles(part_rows));
    expect_room(tiles, 16);
    const std::vector<Group> groups = groups_of_rows(part_rows, owners);
    expect_room(tiles, std::ssize(groups));
    make_queues();
    const Behind follow = behind(kind, groups.size());
    const int partial = b_.workspace("partial", Layout::row_major, follow.partial, product.rows, product.cols, 1);
    const int received = follow.any() ? b_.workspace("received", Layout::row_major, follow.partial,
                                                     b_.shapes().out.rows, product.cols, 1)
                                      : buffer_out;
    split_.make_slots(tiles);
    LibraryCollectives collectives(b_, library_, kind, partial, rows_of(groups), "node_sums");
    for (int rank = 0; rank < ranks(); ++rank) {
      const int done = b_.signals(rank, std::ssize(groups));
      const int arrived = follow.any() ? b_.signals(rank, std::ssize(groups)) : 0;
      std::size_t place = 0;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        const Group& group = groups[g];
        const int signal = done + base::narrow<int>(g, "groups");
        const std::int64_t h = group.rows.size;
        std::uint32_t count = 0;
        for (int owner = 0; owner < owners; ++owner) {
          const std::int64_t first = owner * part_rows + group.rows.begin;
          const std::vector<TileBlock> blocks = blocks_of({first, h}, {0, product.cols}, b_.knobs());
          add_tiles(
              rank, blocks, place, [&](const TileBlock& block) { return a_rows(rank, block); },
              [&](Task& task, Tile& tile, const TileBlock& block, bool last) {
                if (!last) return;
                tile.stores.push_back({b_.region(rank, partial, group.packed + owner * h + block.rows.begin - first,
                                                 block.rows.size, block.cols.begin, block.cols.size)});
                if (kind == CollectiveKind::all_to_all) b_.add_bias(rank, block.cols, tile.adds);
                task.posts.push_back({rank, signal});
                ++count;
              });
          place += blocks.size();
        }
        const Region from = b_.rows_of(rank, partial, group.packed, h * owners);
        const Region to = kind == CollectiveKind::all_to_all ? b_.rows_of(rank, received, group.packed, h * ranks())
                                                             : b_.rows_of(rank, received, group.rows.begin, h);
        std::vector<Post> posts;
        if (follow.any()) posts.push_back({rank, arrived + base::narrow<int>(g, "groups")});
        collectives.add(rank, g, from, to, {{signal, count}}, std::move(posts));
      }
      for (std::size_t g = 0; follow.any() && g < groups.size(); ++g)
        put_rows(rank, groups[g], received, kind, part_rows, follow.convert, arrived + base::narrow<int>(g, "groups"));
    }
  }

  void put_rows(int rank, const Group& group, int received, CollectiveKind kind, std::int64_t part_rows, bool convert,
                int arrived) {
    const bool by_source = kind == CollectiveKind::all_to_all;
    const Range cols{0, b_.shapes().product.cols};
    for (int source = 0; source < (by_source ? ranks() : 1); ++source)
      for (const TileBlock& block : blocks_of(group.rows, cols, b_.knobs())) {
        const std::int64_t row = by_source
                                     ? group.packed + source * group.rows.size + block.rows.begin - group.rows.begin
                                     : block.rows.begin;
        put(rank, b_.region(rank, received, row, block.rows.size, block.cols.begin, block.cols.size),
            b_.region(rank, buffer_out, source * part_rows + block.rows.begin, block.rows.size, block.cols.begin,
                      block.cols.size),
            block.cols, convert, arrived);
      }
  }

  Region a_rows(int rank, const TileBlock& block) const {
    return b_.rows_of(rank, buffer_a, block.rows.begin, block.rows.size);
  }

  // --------------------------------------------------------------------------------------- an all-reduce of tiles

  void reduce_packed() {
    const Extent product = b_.shapes().product;
    const std::int64_t count = count_tiles(product.rows);
    expect_room(count, 16);
    const std::vector<TileBlock> blocks = blocks_of({0, product.rows}, {0, product.cols}, b_.knobs());
    const std::vector<std::int64_t> sizes = groups_of_units(b_.knobs(), count, "tiles");
    expect_room(count, std::ssize(sizes));
    make_queues();
    const Behind follow = behind(CollectiveKind::all_reduce, sizes.size());
    // Where each tile's rows begin, and each group's, and where the last ones end.
    std::vector<std::int64_t> tile_rows{0}, group_rows;
    for (const TileBlock& block : blocks) tile_rows.push_back(tile_rows.back() + block.rows.size);
    std::size_t tile = 0;
    for (const std::int64_t size : sizes) {
      group_rows.push_back(tile_rows[tile + index(size)] - tile_rows[tile]);
      tile += index(size);
    }
    const std::int64_t wide = std::min(b_.knobs().tile_n, product.cols);
    const auto workspace = [&](const char* name) {
      return b_.workspace(name, Layout::row_major, follow.partial, tile_rows.back(), wide, 1);
    };
    // The output lies as the groups do: then they are left there, where nothing else is to be done.
    const bool moves = follow.convert || !is_packed(b_.problem());
    const int partial = workspace("partial"), sums = moves ? workspace("summed") : buffer_out;
    split_.make_slots(count);
    LibraryCollectives collectives(b_, library_, CollectiveKind::all_reduce, partial, group_rows, "node_sums");
    const auto slot = [&](int rank, int buffer, std::size_t i) {
      return b_.region(rank, buffer, tile_rows[i], blocks[i].rows.size, 0, blocks[i].cols.size);
    };
    for (int rank = 0; rank < ranks(); ++rank) {
      const int done = b_.signals(rank, std::ssize(sizes)), arrived = moves ? b_.signals(rank, std::ssize(sizes)) : 0;
      std::size_t first = 0;
      for (std::size_t g = 0; g < sizes.size(); ++g) {
        const int number = base::narrow<int>(g, "groups");
        const std::vector<TileBlock> own(blocks.begin() + static_cast<std::ptrdiff_t>(first),
                                         blocks.begin() + static_cast<std::ptrdiff_t>(first + index(sizes[g])));
        std::size_t place = first;
        add_tiles(
            rank, own, first, [&](const TileBlock& block) { return a_rows(rank, block); },
            [&](Task& task, Tile& made, const TileBlock&, bool last) {
              if (!last) return;
              made.stores.push_back({slot(rank, partial, place++)});
              task.posts.push_back({rank, done + number});
            });
        collectives.add(rank, g, b_.rows_of(rank, partial, tile_rows[first], group_rows[g]),
                        b_.rows_of(rank, sums, tile_rows[first], group_rows[g]),
                        {{done + number, base::narrow<std::uint32_t>(sizes[g], "tiles of a group")}},
                        moves ? std::vector<Post>{{rank, arrived + number}} : std::vector<Post>{});
        first += index(sizes[g]);
      }
      first = 0;
      for (std::size_t g = 0; moves && g < sizes.size(); ++g)
        for (const std::size_t end = first + index(sizes[g]); first < end; ++first) {
          put(rank, slot(rank, sums, first), in_output(rank, blocks[first]), blocks[first].cols, follow.convert,
              arrived + base::narrow<int>(g, "groups"));
        }
    }
  }

  // ------------------------------------------------------------------------------------------ gathers, then a product

  void gather() {
    const RankShapes& shapes = b_.shapes();
    const std::int64_t shard = shapes.a.rows, tiles = base::counted_product(ranks(), count_tiles(shard));
    expect_room(tiles, 16);
    const std::vector<Group> groups = groups_of_rows(shard, ranks());
    expect_room(tiles, 2 * std::ssize(groups));
    make_queues();
    const Scales scales = b_.problem().scales;
    const int gathered =
        b_.workspace("gathered", Layout::row_major, b_.problem().type, shard * ranks(), shapes.a.cols, 1);
    const int gathered_scales = scales == Scales::none ? -1
                                                       : b_.workspace("gathered_scales", Layout::row_major, Type::fp32,
                                                                      shapes.a_scale.rows * ranks(), 1, 1);
    split_.make_slots(tiles);
    // Scales of rows lie as the rows do, so those of a group come with it; of one scale a rank, all come first.
    std::vector<std::int64_t> scale_rows;
    if (scales == Scales::tensor) scale_rows = {1};
    if (scales == Scales::row) scale_rows = rows_of(groups);
    std::optional<LibraryCollectives> of_scales;
    if (!scale_rows.empty())
      of_scales.emplace(b_, library_, CollectiveKind::all_gather, gathered_scales, scale_rows, "crossed_scales");
    LibraryCollectives collectives(b_, library_, CollectiveKind::all_gather, gathered, rows_of(groups), "crossed",
                                   base::narrow<int>(scale_rows.size(), "groups"));
    const int from = shard_to_gather(b_);
    const Range cols{0, shapes.product.cols};
    for (int rank = 0; rank < ranks(); ++rank) {
      const int ready = b_.signals(rank, std::ssize(groups));
      std::size_t place = 0;
      // Rows of the output from `out` on; `a` says where a block's rows of A lie.
      const auto add = [&](const std::vector<TileBlock>& blocks, int source, bool own, auto&& a, int signal) {
        add_tiles(rank, blocks, place, a, [&](Task& task, Tile& tile, const TileBlock& block, bool last) {
          if (!own) task.waits.push_back({signal});
          const std::int64_t row = source * shard + block.rows.begin;
          if (scales == Scales::tensor && !own) tile.a_scale = b_.scale_rows(rank, gathered_scales, {source, 1});
          if (scales == Scales::row && !own)
            tile.a_scale = b_.scale_rows(rank, gathered_scales, {a(block).row, block.rows.size});
          if (!last) return;
          tile.stores.push_back({b_.region(rank, buffer_out, row, block.rows.size, block.cols.begin, block.cols.size)});
          b_.add_bias(rank, block.cols, tile.adds);
        });
        place += blocks.size();
      };
      // Own rows do not wait.
      add(
          blocks_of({0, shard}, cols, b_.knobs()), rank, true,
          [&](const TileBlock& block) { return a_rows(rank, block); }, 0);
      for (std::size_t g = 0; g < groups.size(); ++g) {
        const Group& group = groups[g];
        const std::int64_t h = group.rows.size;
        const int signal = ready + base::narrow<int>(g, "groups");
        // The queue is in order: the group's signal tells of its scales, too.
        if (g < scale_rows.size())
          of_scales->add(rank, g, b_.scales_of(rank, group.rows),
                         b_.scale_rows(rank, gathered_scales, {group.packed, scale_rows[g] * ranks()}), {}, {});
        bring_shard(b_, rank, library_, from, group.rows);
        collectives.add(rank, g, b_.rows_of(rank, from, group.rows.begin, h),
                        b_.rows_of(rank, gathered, group.packed, h * ranks()), {}, {{rank, signal}});
        for (int step = 1; step < ranks(); ++step) {
          const int source = (rank + step) % ranks();
          add(
              blocks_of(group.rows, cols, b_.knobs()), source, false,
              [&](const TileBlock& block) {
                return b_.rows_of(rank, gathered, group.packed + source * h + block.rows.begin - group.rows.begin,
                                  block.rows.size);
              },
              signal);
        }
      }
    }
  }

  Builder b_;
  SplitK split_;
  int tiles_ = 0, library_ = 0;
};

}  // namespace

void validate_signaled(const Problem& problem, const Knobs& knobs) {
  IMBREX_EXPECTS(!knobs.packed || problem.op == Operator::gemm_all_reduce,
                 "knob packed: {} gives ranks whole rows; of gemm_all_reduce, groups may be any tiles",
                 name_of(problem.op));
  IMBREX_EXPECTS(!knobs.packed || !knobs.codec || problem.n % knobs.tile_n == 0 || problem.n < knobs.tile_n,
                 "knob packed with codec {}: N = {} is no multiple of tile_n = {}, and groups of codes would have "
                 "columns that are not there",
                 name_of(*knobs.codec), problem.n, knobs.tile_n);
}

Plan signaled_plan(const Problem& problem, const Knobs& knobs) { return Signaled(problem, knobs).take(); }

}  // namespace imbrex::plan
