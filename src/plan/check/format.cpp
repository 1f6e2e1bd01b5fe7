// Rules of the format: indices, shapes, types, bounds. Everything after it may rely on them.
#include "plan/check/format.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/ceil_div.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"
#include "imbrex/error.hpp"
#include "plan/builder.hpp"
#include "plan/check/blocks.hpp"
#include "plan/check/groups.hpp"
#include "plan/check/pairs.hpp"
#include "plan/json/names.hpp"
#include "plan/limits.hpp"
#include "plan/problem.hpp"
#include "problem/embedding.hpp"

namespace imbrex::plan {
namespace {

constexpr std::int64_t heap_alignment = 256;

}  // namespace

class FormatCheck::Rules {
 public:
  explicit Rules(const Plan& frame) : plan_(frame) {
    try {
      validate(plan_.problem);
    } catch (const Error& error) {
      refuse(Fault::malformed, "problem: {}", error.what());
    }
    expect(plan_.signal_copies == 1 || plan_.signal_copies == 2, "signal_copies is {}: it must be 1 or 2",
           plan_.signal_copies);
    check_buffers();
    expect(std::ssize(plan_.ranks) == plan_.problem.ranks, "the plan has {} rank entries for {} ranks",
           plan_.ranks.size(), plan_.problem.ranks);
    for (int rank = 0; rank < plan_.problem.ranks; ++rank) check_rank(rank);
    for (const RankPlan& rank : plan_.ranks) pairs_.emplace_back(rank.queues.size());
  }

  void add(const TaskPlace& place, const Task& task) {
    place_ = &place;
    task_ = &task;
    check_task(plan_.ranks[static_cast<std::size_t>(place.rank)].queues[static_cast<std::size_t>(place.queue)], task);
    task_ = nullptr;
  }

  void finish() {
    place_ = &nowhere_;
    if (const std::string missing = groups_.missing(); !missing.empty()) refuse(Fault::malformed, "{}", missing);
  }

 private:
  template <typename... Args>
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(Fault fault, fmt::format_string<Args...> text, Args&&... args) {
    const auto& [rank, queue, index] = *place_;
    const std::string where = task_ == nullptr ? "" : task_name(rank, queue, index, *task_) + ": ";
    throw Refused{{fault, rank, queue, task_ == nullptr ? -1 : static_cast<std::int64_t>(index),
                   where + fmt::format(text, std::forward<Args>(args)...)}};
  }
  template <typename... Args>
  void expect(bool holds, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds) refuse(Fault::malformed, text, std::forward<Args>(args)...);
  }

  const Buffer& buffer(const Region& region) const { return plan_.buffers[static_cast<std::size_t>(region.buffer)]; }

  void check_buffers() {
    const std::vector<Buffer> operands = operand_buffers(plan_.problem);
    const std::size_t callers = operands.size();
    if (plan_.buffers.size() < callers) {
      std::vector<std::string> names;
      for (const Buffer& b : operands) names.push_back(b.name);
      refuse(Fault::malformed, "the first buffers must be {}; there are {}", fmt::join(names, ", "),
             plan_.buffers.size());
    }
    std::int64_t total = 0, workspaces = 0;
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const Buffer& b = plan_.buffers[i];
      if (b.name.size() > most_name || !base::is_printable(b.name))
        refuse(Fault::malformed, "buffer {} is called '{}': a name is one line of at most {} bytes", i,
               base::printable(b.name), most_name);
      expect(b.rows >= 0 && b.cols >= 0, "buffer {} is {} x {}", b.name, b.rows, b.cols);
      expect(b.rows <= most_extent && b.cols <= most_extent,
             "buffer {} is {} x {}: rows and columns are at most {}, which 32-bit integers hold", b.name, b.rows,
             b.cols, most_extent);
      expect(b.rows == 0 || b.cols <= most_bytes / 4 / b.rows, "buffer {} of {} x {} is larger than 2^46 bytes", b.name,
             b.rows, b.cols);
      expect(b.copies == 1 || b.copies == 2, "buffer {} has {} copies: it must have 1 or 2", b.name, b.copies);
      // Each has a place of its own in the heap, whose bytes must not count past what a word holds.
      const std::int64_t bytes = b.rows * b.cols * static_cast<std::int64_t>(size_of(b.type));
      const std::int64_t placed = (bytes + heap_alignment - 1) / heap_alignment * heap_alignment * b.copies;
      total += placed;
      expect(total <= most_bytes, "the buffers up to {} need more than 2^46 bytes", b.name);
      if (i < callers) continue;
      expect(b.role == BufferRole::workspace, "buffer {} is number {}: only the first {} are the caller's", b.name, i,
             callers);
      workspaces += placed;
      expect(workspaces <= most_workspace_bytes, "the workspaces up to {} need more than 2^39 bytes", b.name);
      expect(b.layout != Layout::column_major, "buffer {} is column_major: only the caller's B may be", b.name);
    }
    for (std::size_t i = 0; i < callers; ++i) {
      const Buffer &b = plan_.buffers[i], &own = operands[i];
      expect(b.role == own.role && b.layout == own.layout && b.copies == 1 && b.type == own.type &&
                 b.rows == own.rows && b.cols == own.cols,
             "buffer {} ({}) must be the caller's {} x {} {}, {}, with one copy", i, b.name, own.rows, own.cols,
             name_of(own.type), name_of(own.layout));
    }
  }

  void check_rank(int rank) {
    const RankPlan& rank_plan = plan_.ranks[static_cast<std::size_t>(rank)];
    TaskPlace place{rank, -1, 0};
    place_ = &place;
    signals_ += rank_plan.signals;
    expect(rank_plan.signals >= 0 && signals_ <= most_signals,
           "rank {} has {} signals: all ranks together may have 2^22", rank, rank_plan.signals);
    expect(rank_plan.queues.size() <= most_queues, "rank {} has {} queues: at most {}", rank, rank_plan.queues.size(),
           most_queues);
    for (const Queue& queue : rank_plan.queues) {
      ++place.queue;
      expect(queue.workers >= 0 && queue.workers <= most_workers, "rank {} queue {} reserves {} workers", rank,
             place.queue, queue.workers);
      expect(queue.tile.rows >= 0 && queue.tile.cols >= 0 && queue.tile.rows <= most_extent &&
                 queue.tile.cols <= most_extent,
             "rank {} queue {} computes blocks of {} x {}: a side is from 0 to {}", rank, place.queue, queue.tile.rows,
             queue.tile.cols, most_extent);
      expect(queue.cluster == ClusterMode::any || queue.engine == Engine::compute,
             "rank {} queue {} is a {} queue: cluster {} is for compute queues", rank, place.queue,
             name_of(queue.engine), name_of(queue.cluster));
      expect(queue.kept_free >= 0 && queue.kept_free <= most_workers, "rank {} queue {} keeps {} SMs free", rank,
             place.queue, queue.kept_free);
      expect(queue.kept_free == 0 || queue.engine == Engine::library,
             "rank {} queue {} is a {} queue: only library queues keep SMs free", rank, place.queue,
             name_of(queue.engine));
    }
    place_ = &nowhere_;
  }

  void check_task(const Queue& queue, const Task& task) {
    const bool tile = std::holds_alternative<Tile>(task.work);
    const bool transfer = std::holds_alternative<Transfer>(task.work);
    const bool by_library = std::holds_alternative<Collective>(task.work) || std::holds_alternative<Product>(task.work);
    switch (queue.engine) {
      case Engine::compute:
        expect(!by_library, "products and collectives run on library queues; this one is a compute queue");
        break;
      case Engine::copy: expect(transfer, "only transfers run on a copy queue"); break;
      case Engine::library: expect(!tile, "tiles run on compute queues; this one is a library queue"); break;
    }
    if (const auto* t = std::get_if<Tile>(&task.work))
      expect(t->a.rows <= queue.tile.rows && t->b.cols <= queue.tile.cols,
             "a tile of {} x {} on a queue whose blocks are {} x {}", t->a.rows, t->b.cols, queue.tile.rows,
             queue.tile.cols);
    if (tile && queue.cluster == ClusterMode::share_k) check_whole_depth(std::get<Tile>(task.work));
    std::visit([&](const auto& work) { check_work(work); }, task.work);
    if (const auto* product = std::get_if<Product>(&task.work)) check_blocks(queue, *product);
    if (queue.engine == Engine::library && !by_library) check_stays(task);
    waits_and_posts_ += std::ssize(task.waits) + std::ssize(task.posts);
    expect(waits_and_posts_ <= most_waits_and_posts, "the plan has more than {} waits and posts", most_waits_and_posts);
    for (const Wait& wait : task.waits) {
      expect(wait.signal >= 0 && wait.signal < plan_.ranks[static_cast<std::size_t>(place_->rank)].signals,
             "waits for signal {} of {}", wait.signal, plan_.ranks[static_cast<std::size_t>(place_->rank)].signals);
      expect(wait.count >= 1 && wait.count < 1u << 30, "waits for {} posts: it must be 1 to 2^30 - 1", wait.count);
      expect(wait.point == WaitPoint::load || tile, "only a tile waits at its epilogue");
      expect(wait.k_begin == 0 || (tile && wait.point == WaitPoint::load && wait.k_begin > 0 &&
                                   wait.k_begin < std::get<Tile>(task.work).a.cols),
             "a wait from column {} on is not inside the tile's depth", wait.k_begin);
    }
    for (const Post& post : task.posts) {
      expect(post.rank >= 0 && post.rank < plan_.problem.ranks, "posts to rank {} of {}", post.rank,
             plan_.problem.ranks);
      expect(post.signal >= 0 && post.signal < plan_.ranks[static_cast<std::size_t>(post.rank)].signals,
             "posts to signal {} of {} on rank {}", post.signal,
             plan_.ranks[static_cast<std::size_t>(post.rank)].signals, post.rank);
    }
    PairRules& pairs = pairs_[static_cast<std::size_t>(place_->rank)][static_cast<std::size_t>(place_->queue)];
    if (const std::string broken = pairs.add(plan_, queue, task); !broken.empty())
      refuse(Fault::malformed, "{}", broken);
  }

  void check_region(const Region& r, const char* what, bool may_be_empty = false) {
    expect(r.rank >= 0 && r.rank < plan_.problem.ranks, "{} is on rank {} of {}", what, r.rank, plan_.problem.ranks);
    expect(r.buffer >= 0 && r.buffer < std::ssize(plan_.buffers), "{} is in buffer {} of {}", what, r.buffer,
           plan_.buffers.size());
    const Buffer& b = buffer(r);
    expect(may_be_empty || !r.empty(), "{} is empty", what);
    if (r.row < 0 || r.col < 0 || r.rows < 0 || r.cols < 0 || r.row > b.rows || r.col > b.cols ||
        r.rows > b.rows - r.row || r.cols > b.cols - r.col)
      refuse(Fault::bounds, "{}, rows {}+{} cols {}+{}, leaves buffer {} of {} x {}", what, r.row, r.rows, r.col,
             r.cols, b.name, b.rows, b.cols);
  }

  void check_written(const Region& r, const char* what) {
    check_region(r, what);
    expect(buffer(r).role != BufferRole::input, "{} is in the caller's input {}", what, buffer(r).name);
  }

  void check_sum(const Region& r, const char* what) {
    check_written(r, what);
    expect(buffer(r).type != Type::e4m3, "{} is in {}: products and sums are not rounded to e4m3", what,
           buffer(r).name);
  }

  void check_slot(const Region& r, const char* what, std::int64_t elements) {
    expect(r.rows == 1 && r.col == 0 && r.cols == elements, "{} must be one whole slot of {} elements", what, elements);
  }

  // Whether the region is the bias, one row of it after everything else that is added.
  bool check_bias(const Region& r, const char* what, std::int64_t cols, bool last) {
    if (!is_bias(plan_.problem, r)) return false;
    expect(last && r.rank == place_->rank && r.rows == 1 && r.cols == cols,
           "{} of the bias is {} x {} on rank {}: the bias comes last, from the own rank, one row of {} columns", what,
           r.rows, r.cols, r.rank, cols);
    return true;
  }

  void check_scale(const Region& a, const Region& b, const Region& r) {
    const Scales scales = plan_.problem.scales;
    if (scales == Scales::none) {
      expect(r.empty(), "scales of A in a problem with scales none");
      return;
    }
    check_region(r, "the scales of A");
    const std::int64_t rows = scales == Scales::tensor ? 1 : a.rows;
    expect(r.rows == rows && r.cols == 1, "the scales of A are {} x {}: with scales {}, they must be {} x 1", r.rows,
           r.cols, name_of(scales), rows);
    const Buffer& of = buffer(r);
    expect(of.type == Type::fp32 && of.layout == Layout::row_major, "scales must be row_major fp32, not {} {}",
           name_of(of.layout), name_of(of.type));
    expect(of.cols == 1, "the scales of A are in {}, which has {} columns: they must lie one after another, in one",
           of.name, of.cols);
    expect(b.buffer == buffer_b, "operand B is in buffer {}: the scales of B are those of the caller's columns",
           buffer(b).name);
  }

  void check_operands(const Region& a, const Region& b) {
    check_region(a, "operand A");
    check_region(b, "operand B");
    expect(b.rank == place_->rank, "operand B is on rank {}", b.rank);
    expect(a.cols == b.rows, "operand A is {} x {} but operand B is {} x {}", a.rows, a.cols, b.rows, b.cols);
    // Names are looked up for a refusal only: there are very many tiles.
    if (buffer(a).type != plan_.problem.type || buffer(b).type != plan_.problem.type ||
        buffer(a).layout != Layout::row_major || buffer(b).layout != layout_of_b(plan_.problem))
      refuse(Fault::malformed, "operands must be {}, A row_major and B {}", name_of(plan_.problem.type),
             name_of(layout_of_b(plan_.problem)));
  }

  void check_work(const Tile& tile) {
    check_operands(tile.a, tile.b);
    check_scale(tile.a, tile.b, tile.a_scale);
    const std::int64_t rows = tile.a.rows, cols = tile.b.cols;
    expect(rows * cols <= most_extent, "the tile is {} x {}: it may have {} elements", rows, cols, most_extent);
    expect(tile.own >= 0 && tile.own <= std::ssize(tile.adds), "own position {} of {} slots", tile.own,
           tile.adds.size());
    for (const Region& add : tile.adds) {
      check_region(add, "a slot to add");
      if (check_bias(add, "a slot to add", cols, &add == &tile.adds.back())) continue;
      if (buffer(add).layout == Layout::fragment)
        check_slot(add, "a slot to add", rows * cols);
      else
        expect(add.rows == rows && add.cols == cols, "a slot to add is {} x {}, the tile {} x {}", add.rows, add.cols,
               rows, cols);
    }
    for (const Store& store : tile.stores) {
      check_sum(store.to, "a store");
      if (buffer(store.to).layout == Layout::fragment) {
        check_slot(store.to, "a store", rows * cols);
        expect(store.row == 0 && store.col == 0, "a fragment slot takes the whole tile");
      } else {
        expect(
            store.row >= 0 && store.col >= 0 && store.row <= rows - store.to.rows && store.col <= cols - store.to.cols,
            "a store of {}+{} x {}+{} leaves the tile of {} x {}", store.row, store.to.rows, store.col, store.to.cols,
            rows, cols);
      }
    }
  }

  // Workers that share a tile cut all of K into halves.
  void check_whole_depth(const Tile& tile) {
    expect(tile.a.col == 0 && tile.a.cols == buffer(tile.a).cols,
           "columns {}+{} of A on a queue with cluster share_k: its tiles have all {} columns", tile.a.col, tile.a.cols,
           buffer(tile.a).cols);
  }

  // Beside libraries' calls, sums and copies are calls of the same stream, on their own rank.
  void check_stays(const Task& task) {
    const auto own = [&](const Region& r, const char* what) {
      expect(r.empty() || r.rank == place_->rank, "{} is on rank {}: tasks of library queues stay on their rank", what,
             r.rank);
    };
    if (const auto* transfer = std::get_if<Transfer>(&task.work)) {
      own(transfer->from, "the source");
      own(transfer->to, "the destination");
    } else if (const auto* block = std::get_if<Block>(&task.work)) {
      for (const Region& r : block->reads) own(r, "what is read");
      for (const Store& s : block->stores) own(s.to, "a store");
    } else {
      for (const Region& r : std::get<Reduction>(task.work).from) own(r, "a source");
      for (const Region& r : std::get<Reduction>(task.work).to) own(r, "a destination");
    }
  }

  void check_work(const Product& p) {
    expect(p.batch >= 1 && p.batch <= most_batch, "a batch of {}: it must be from 1 to 2^16", p.batch);
    check_operands(p.a, p.b);
    expect(p.a.rank == place_->rank, "operand A is on rank {}: a product's regions are its own rank's", p.a.rank);
    check_sum(p.to, "the result");
    expect(p.to.rank == place_->rank, "the result is on rank {}: a product's regions are its own rank's", p.to.rank);
    expect(buffer(p.to).layout == Layout::row_major, "the result must be row_major, not {}",
           name_of(buffer(p.to).layout));
    expect(p.to.rows == p.a.rows && p.to.cols == p.b.cols, "the result is {} x {}, the product {} x {}", p.to.rows,
           p.to.cols, p.a.rows, p.b.cols);
    if (p.batch == 1) {
      expect(p.a_step == 0 && p.to_step == 0, "steps of {} and {} rows in a batch of one: they must be 0", p.a_step,
             p.to_step);
    } else {
      expect(plan_.problem.scales == Scales::none, "a batch of {} in a problem with scales: it must be 1", p.batch);
      expect(p.a_step >= 1, "A steps by {} rows in a batch: it must be 1 or more", p.a_step);
      expect(p.to_step >= p.to.rows, "results of {} rows step by {} rows: they would overlap", p.to.rows, p.to_step);
      check_last(p.a, p.a_step, p.batch, "operand A of the batch");
      check_last(p.to, p.to_step, p.batch, "the result of the batch");
    }
    if (!p.bias.empty()) {
      expect(is_bias(plan_.problem, p.bias), "the bias is in buffer {}: it must be the caller's", p.bias.buffer);
      check_region(p.bias, "the bias");
      check_bias(p.bias, "the bias", p.b.cols, true);
    }
    check_scale(p.a, p.b, p.a_scale);
    expect(p.algorithm.tile >= 0 && p.algorithm.parts >= 1 && p.algorithm.parts <= 1 << 16,
           "algorithm [{}, {}]: the tile's number is 0 or more, its split-K 1 to 2^16", p.algorithm.tile,
           p.algorithm.parts);
  }

  void check_blocks(const Queue& queue, const Product& p) {
    const auto& [rows, cols] = queue.tile;
    expect(rows > 0 && cols > 0, "a product on a queue whose blocks are {} x {}", rows, cols);
    const std::int64_t high = std::min(rows, p.a.rows), wide = std::min(cols, p.b.cols);
    expect(high * wide <= most_extent, "blocks of {} x {}: one may have {} elements", high, wide, most_extent);
    const std::int64_t blocks =
        base::counted_product(base::ceil_div(p.a.rows, rows), base::ceil_div(p.b.cols, cols), p.batch);
    expect(blocks <= most_product_blocks, "products of {} blocks of {} x {}: there may be {}", blocks, rows, cols,
           most_product_blocks);
    expect(static_cast<std::int64_t>(place_->index) < most_product_tasks,
           "a queue with products has more than {} tasks", most_product_tasks);
  }

  // The last one of a batch, whose first one is in bounds.
  void check_last(const Region& r, std::int64_t step, int batch, const char* what) {
    const Buffer& b = buffer(r);
    if (step > (b.rows - r.row - r.rows) / (batch - 1))
      refuse(Fault::bounds, "{}, rows {}+{} and {} more, {} rows apart, leaves buffer {} of {} rows", what, r.row,
             r.rows, batch - 1, step, b.name, b.rows);
  }

  void check_work(const Block& block) {
    if (shards_.empty()) shards_ = problem::shards_of_ranks(plan_.problem);
    for (const Region& r : block.reads) check_region(r, "what is read");
    for (const Store& store : block.stores) check_sum(store.to, "a store");
    if (const std::string broken = broken_rule({plan_, block, place_->rank, &shards_}); !broken.empty())
      refuse(Fault::malformed, "{}", broken);
  }

  void check_work(const Transfer& t) {
    expect(t.from.empty() == t.to.empty(), "one side of the transfer is empty");
    if (t.from.empty()) return;
    check_region(t.from, "the source");
    check_written(t.to, "the destination");
    expect(t.from.rows == t.to.rows && t.from.cols == t.to.cols, "{} x {} is copied to {} x {}", t.from.rows,
           t.from.cols, t.to.rows, t.to.cols);
    expect(buffer(t.from).type == buffer(t.to).type && buffer(t.from).layout == buffer(t.to).layout,
           "source and destination must have one element type and layout");
    expect(buffer(t.from).layout != Layout::fragment, "slots are stored and added whole, and not copied");
    expect(t.from.rank == place_->rank || t.to.rank == place_->rank,
           "a transfer between ranks {} and {} runs on neither", t.from.rank, t.to.rank);
  }

  void check_work(const Reduction& reduction) {
    expect(!reduction.from.empty() && !reduction.to.empty(), "a reduction needs sources and destinations");
    const Region& shape = reduction.from.front();
    const auto same = [&](const Region& r, const char* what) {
      expect(buffer(r).layout == Layout::row_major, "{} must be row-major", what);
      expect(r.rows == shape.rows && r.cols == shape.cols, "{} is {} x {}, the first source {} x {}", what, r.rows,
             r.cols, shape.rows, shape.cols);
    };
    for (const Region& from : reduction.from) {
      check_region(from, "a source");
      const bool behind = &from == &reduction.from.back() && &from != &shape;
      if (!check_bias(from, "a source", shape.cols, behind)) same(from, "a source");
    }
    for (const Region& to : reduction.to) check_sum(to, "a destination"), same(to, "a destination");
  }

  void check_work(const Collective& c) {
    check_region(c.from, "the source");
    if (c.kind == CollectiveKind::reduce_scatter || c.kind == CollectiveKind::all_reduce)
      check_sum(c.to, "the destination");
    else
      check_written(c.to, "the destination");
    expect(c.from.rank == place_->rank && c.to.rank == place_->rank, "a collective's regions are on its own rank");
    const Buffer &from = buffer(c.from), &to = buffer(c.to);
    expect(from.layout == Layout::row_major && to.layout == Layout::row_major && from.type == to.type,
           "source and destination must be row-major and have one element type");
    expect(c.from.cols == from.cols && c.to.cols == to.cols && from.cols == to.cols,
           "a collective works on whole rows, so that its operands are contiguous");
    for (const Region* r : {&c.from, &c.to})
      expect(pitch_of(plan_.problem, buffer(*r), r->buffer) == 0,
             "a collective works on rows without gaps, and the rows of operand {} are {} elements apart, each of {}",
             buffer(*r).name, pitch_of(plan_.problem, buffer(*r), r->buffer), buffer(*r).cols);
    for (std::size_t i = 0; i < c.ranks.size(); ++i)
      expect(c.ranks[i] >= 0 && c.ranks[i] < plan_.problem.ranks && (i == 0 || c.ranks[i - 1] < c.ranks[i]),
             "a collective of ranks {}: they must ascend from 0 to {}", fmt::join(c.ranks, ", "),
             plan_.problem.ranks - 1);
    const std::vector<int> joined = ranks_of(c, plan_);
    expect(std::find(joined.begin(), joined.end(), place_->rank) != joined.end(),
           "a collective of ranks {} has a part on rank {}", fmt::join(joined, ", "), place_->rank);
    check_peers(c, joined);
    const std::int64_t ranks = std::ssize(joined);
    const std::int64_t in = c.kind == CollectiveKind::all_gather ? c.from.rows * ranks : c.from.rows;
    const std::int64_t out = c.kind == CollectiveKind::reduce_scatter ? c.to.rows * ranks : c.to.rows;
    expect(in == out, "{} of {} rows gives {} rows on {} ranks", name_of(c.kind), c.from.rows, c.to.rows, ranks);
    expect(c.kind != CollectiveKind::all_to_all || c.from.rows % ranks == 0, "{} rows do not divide by {} ranks",
           c.from.rows, ranks);
    const bool apart =
        c.from.buffer != c.to.buffer || c.from.row + c.from.rows <= c.to.row || c.to.row + c.to.rows <= c.from.row;
    expect(apart, "source and destination overlap");
    if (c.codec) check_codec(c, from.type);
    if (const std::string broken = groups_.add(c, joined, from.type, place_->rank); !broken.empty())
      refuse(Fault::malformed, "{}", broken);
  }

  void check_peers(const Collective& c, const std::vector<int>& joined) {
    for (const auto& [peer, what] : {std::pair{c.send_to, "sends to"}, {c.receive_from, "receives from"}}) {
      if (c.kind != CollectiveKind::send_receive) {
        expect(peer == -1, "a collective of kind {} {} rank {}: only a send_receive does so", name_of(c.kind), what,
               peer);
        continue;
      }
      expect(std::find(joined.begin(), joined.end(), peer) != joined.end() && peer != place_->rank,
             "a send_receive {} rank {}: it must be one of ranks {}, and not its own", what, peer,
             fmt::join(joined, ", "));
    }
  }

  void check_codec(const Collective& c, Type type) {
    const bool reduces = c.kind == CollectiveKind::reduce_scatter || c.kind == CollectiveKind::all_reduce;
    expect(reduces, "codec {} for {}: only all_reduce and reduce_scatter go through one", name_of(*c.codec),
           name_of(c.kind));
    expect(c.backend == Backend::imbrex && c.ranks.empty(),
           "codec {}: only collectives of backend imbrex, over all ranks, go through one", name_of(*c.codec));
    expect(c.kind != CollectiveKind::reduce_scatter || c.codec->reduce_scatter == c.codec->all_gather,
           "codec {} for a reduce_scatter: it has one phase, so it takes one codec", name_of(*c.codec));
    expect(type != Type::e4m3, "codec {} for e4m3: it takes bf16, fp16 and fp32", name_of(*c.codec));
    try {
      validate(c.codec->reduce_scatter);
      validate(c.codec->all_gather);
    } catch (const Error& error) {
      refuse(Fault::malformed, "codec: {}", error.what());
    }
  }

  const Plan& plan_;
  const TaskPlace nowhere_{-1, -1, 0};
  const TaskPlace* place_ = &nowhere_;
  const Task* task_ = nullptr;  // that is being checked
  std::int64_t signals_ = 0, waits_and_posts_ = 0;
  std::vector<problem::OwnShards> shards_;  // of each rank, once there is a block
  CollectiveGroups groups_;
  std::vector<std::vector<PairRules>> pairs_;  // by rank and queue
};

FormatCheck::FormatCheck(const Plan& frame) : rules_(std::make_unique<Rules>(frame)) {}
FormatCheck::~FormatCheck() = default;
void FormatCheck::add(const TaskPlace& place, const Task& task) { rules_->add(place, task); }
void FormatCheck::finish() { rules_->finish(); }

}  // namespace imbrex::plan

namespace imbrex {

std::optional<Finding> check_format(const Plan& plan) {
  try {
    plan::FormatCheck check(plan);
    plan::for_each_task(plan, [&](const plan::TaskPlace& place, const Task& task) { check.add(place, task); });
    check.finish();
  } catch (const plan::Refused& refused) {
    return refused.finding;
  }
  return std::nullopt;
}

}  // namespace imbrex
