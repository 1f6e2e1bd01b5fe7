#include "execute/cuda/translate.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "base/check.hpp"
#include "execute/cuda/pairs.hpp"
#include "plan/builder.hpp"

namespace imbrex::cuda {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

[[noreturn]] void refuse_number(std::size_t value, const char* what, std::size_t most) {
  throw Error(ErrorCode::invalid_input,
              fmt::format("the plan has {} {}: the CUDA executor takes at most {}", value, what, most));
}

template <typename To>
To narrow(std::size_t value, const char* what) {
  if (value > std::numeric_limits<To>::max()) [[unlikely]]
    refuse_number(value, what, std::numeric_limits<To>::max());
  return static_cast<To>(value);
}

std::uint32_t word(std::int64_t value) { return static_cast<std::uint32_t>(value); }

// NOTE: entries are filled where they lie. What has just been written field by field cannot be copied in wider pieces
// before it has left the processor's store buffer, which cost a fifth of the time.
class Translation {
 public:
  Translation(const Plan& plan, const HeapLayout& layout, int rank, const HeapHandle& heap, std::size_t offset,
              const TileShape& shape)
      : plan_(plan), layout_(layout), rank_(rank), heap_(heap), offset_(offset), shape_(shape) {
    survey();
  }

  RankTable run() {
    for (int q = 0; q < std::ssize(plan_.ranks[index(rank_)].queues); ++q) {
      const Queue& queue = plan_.ranks[index(rank_)].queues[index(q)];
      switch (queue.engine) {
        case Engine::compute: compute_queue(q, queue); break;
        case Engine::copy: copy_queue(q, queue); break;
        case Engine::library:
          IMBREX_EXPECTS(queue.tasks.empty(), "{}: library collectives do not run beside tiles of the fused kernel",
                         task_name(plan_, rank_, q, 0));
      }
    }
    return std::move(table_);
  }

 private:
  // Signals that only tasks raise before which nothing of their queue waits: what waits for them cannot wait for
  // another tile. And how long the tables become: those that grow are copied again and again.
  void survey() {
    const RankPlan& own = plan_.ranks[index(rank_)];
    free_.assign(index(own.signals), true);
    posts_.assign(free_.size(), 0);
    Sizes sizes;
    for (const RankPlan& rank : plan_.ranks)
      for (const Queue& queue : rank.queues) {
        const bool in_tables = &rank == &own && queue.engine == Engine::compute;
        bool clear = true;
        for (const Task& task : queue.tasks) {
          clear = clear && task.waits.empty();
          for (const Post& post : task.posts)
            if (post.rank == rank_) {
              ++posts_[index(post.signal)];
              if (!clear) free_[index(post.signal)] = false;
            }
          if (in_tables) sizes.add(task);
        }
      }
    // Every task with a partner of its own would be twice as many.
    table_.tasks.reserve(sizes.tasks * index(shape_.cluster));
    table_.waits.reserve(shape_.sharing == Sharing::k ? 2 * sizes.waits : sizes.waits);
    table_.regions.reserve(sizes.regions);
    table_.posts.reserve(sizes.posts);
  }

  struct Sizes {
    std::size_t tasks = 0, waits = 0, regions = 0, posts = 0;

    void add(const Task& task) {
      ++tasks;
      waits += task.waits.size();
      posts += task.posts.size();
      if (const auto* tile = std::get_if<Tile>(&task.work))
        regions += tile->adds.size() + tile->stores.size();
      else if (const auto* reduction = std::get_if<Reduction>(&task.work))
        regions += reduction->from.size() + reduction->to.size();
      else
        regions += 2;
    }
  };

  std::uint64_t heap_address(int rank, std::size_t at) const {
    return reinterpret_cast<std::uint64_t>(heap_.at(rank, offset_ + at));
  }

  bool is_scale(const Region& r, int buffer) const {
    return plan_.problem.scales != Scales::none && r.buffer == buffer;
  }
  bool is_a_scale(const Region& r) const { return is_scale(r, buffer_a_scale(plan_.problem)); }

  // What a transfer may read of the caller's.
  bool is_source(const Region& r) const {
    return r.rank == rank_ && r.buffer != buffer_b && !is_bias(plan_.problem, r) &&
           !is_scale(r, buffer_b_scale(plan_.problem));
  }

  void put(RegionEntry& entry, const Region& r) const {
    const Buffer& b = plan_.buffers[index(r.buffer)];
    const std::size_t size = size_of(b.type);
    const auto first = static_cast<std::size_t>(r.row * b.cols + r.col) * size;
    if (layout_.in_heap(r.buffer) && r.buffer == buffer_out) {
      // All ranks' outputs lie at one offset of the heap, which only a run knows: the distance to this rank's is
      // enough.
      entry.address = heap_address(r.rank, 0) - heap_address(rank_, 0) + first;
      entry.base = Base::out;
    } else if (layout_.in_heap(r.buffer)) {
      entry.address = heap_address(r.rank, layout_.offset(r.buffer, 0)) + first;
      entry.copy_stride = layout_.offset(r.buffer, 1) - layout_.offset(r.buffer, 0);
    } else {
      entry.address = first;
      entry.base = r.buffer == buffer_out      ? Base::out
                   : is_bias(plan_.problem, r) ? Base::bias
                   : is_a_scale(r)             ? Base::a_scale
                                               : Base::a;
    }
    entry.pitch = is_bias(plan_.problem, r) ? 0 : static_cast<std::size_t>(b.cols) * size;
    entry.rows = word(r.rows);
    entry.cols = word(r.cols);
    entry.type = b.type;
  }

  RegionEntry region(const Region& r) const {
    RegionEntry entry{};
    put(entry, r);
    return entry;
  }

  // A region that a tile of `tile` rows and columns adds or stores to.
  void put(RegionEntry& entry, const Region& r, Extent tile) const {
    put(entry, r);
    const Buffer& b = plan_.buffers[index(r.buffer)];
    if (b.layout != Layout::fragment) return;
    entry.rows = word(tile.rows);
    entry.cols = word(tile.cols);
    entry.pitch = static_cast<std::size_t>(tile.cols) * size_of(b.type);
    // A slot of a shorter tile is as long as a full one's, so that its registers fit too.
    IMBREX_EXPECTS(!shape_.registers || b.cols >= shape_.m * shape_.n,
                   "slots of {} elements do not hold the registers of the kernel's {} x {} tile", b.cols, shape_.m,
                   shape_.n);
    if (shape_.registers) entry.order = SlotOrder::registers;
  }
  void put(RegionEntry& entry, const Store& store, Extent tile) const {
    put(entry, store.to, tile);
    entry.row = word(store.row);
    entry.col = word(store.col);
  }

  // All its rows, and a tile's parts of them, begin and end at whole 16 bytes, if the caller's output does.
  static bool has_wide_rows(const RegionEntry& r) {
    return r.order == SlotOrder::rows && r.type != Type::fp32 && r.col % 8 == 0 && r.cols % 8 == 0 &&
           (r.address | r.copy_stride | r.pitch) % 16 == 0;
  }

  std::uint64_t counter(const Post& post) const { return heap_address(post.rank, layout_.counter(post.signal, 0)); }

  void add_waits(TaskEntry& entry, const Task& task) {
    entry.waits = narrow<std::uint32_t>(table_.waits.size(), "waits");
    // In the order of the task, but for the points that they stand at and, of loads, their columns.
    const auto add = [&](WaitPoint point) {
      const std::size_t begin = table_.waits.size();
      for (const Wait& wait : task.waits)
        if (wait.point == point)
          table_.waits.push_back({word(wait.signal), posts_[index(wait.signal)], wait.count, word(wait.k_begin)});
      return table_.waits.size() - begin;
    };
    entry.load_waits = narrow<std::uint16_t>(add(WaitPoint::load), "waits of one task");
    if (entry.load_waits > 1)
      std::stable_sort(table_.waits.begin() + entry.waits, table_.waits.end(),
                       [](const WaitEntry& x, const WaitEntry& y) { return x.k_begin < y.k_begin; });
    entry.epilogue_waits = narrow<std::uint16_t>(add(WaitPoint::epilogue), "waits of one task");
  }

  void start(TaskEntry& entry, int queue, std::size_t task) {
    entry.queue = static_cast<std::uint16_t>(queue);  // of 64 at most
    entry.task = narrow<std::uint32_t>(task, "tasks in a queue");
    const Task& t = plan_.ranks[index(rank_)].queues[index(queue)].tasks[task];
    add_waits(entry, t);
    entry.posts = narrow<std::uint32_t>(table_.posts.size(), "posts");
    entry.post_count = narrow<std::uint16_t>(t.posts.size(), "posts of one task");
    for (const Post& post : t.posts) table_.posts.push_back({counter(post)});
    if (!t.posts.empty()) entry.post = table_.posts[entry.posts];
    entry.regions = narrow<std::uint32_t>(table_.regions.size(), "regions");
  }

  void compute_queue(int q, const Queue& queue) {
    IMBREX_EXPECTS(table_.queues.size() < max_compute_queues, "the plan has more than {} compute queues",
                   max_compute_queues);
    if (queue.workers == 0 && !queue.tasks.empty()) {
      IMBREX_EXPECTS(
          unreserved_ < 0,
          "{}: queues {} and {} reserve no workers: the CUDA executor's would take all of one's tasks before "
          "the other's",
          task_name(plan_, rank_, q, 0), unreserved_, q);
      unreserved_ = q;
    }
    const auto cluster = index(shape_.cluster);
    const auto first = narrow<std::uint32_t>(table_.tasks.size() / cluster, "tasks");
    Pairs pairs(table_, free_, shape_);
    for (std::size_t t = 0; t < queue.tasks.size(); ++t) {
      const Task& task = queue.tasks[t];
      TaskEntry& entry = cluster == 1 ? table_.tasks.emplace_back() : pairs.next();
      start(entry, q, t);
      if (const auto* tile = std::get_if<Tile>(&task.work))
        add_tile(entry, *tile, q, t);
      else if (const auto* reduction = std::get_if<Reduction>(&task.work))
        add_reduction(entry, *reduction);
      else
        add_transfer(entry, std::get<Transfer>(task.work), q, t);
      if (cluster > 1) pairs.add();
    }
    pairs.finish();
    const auto count = static_cast<std::uint32_t>(table_.tasks.size() / cluster) - first;
    table_.queues.push_back({first, count, 0, word(queue.workers)});
  }

  void add_tile(TaskEntry& entry, const Tile& tile, int q, std::size_t t) {
    const auto where = [&] { return task_name(plan_, rank_, q, t); };
    entry.kind = TaskKind::tile;
    ++table_.tiles;
    const Extent extent{tile.a.rows, tile.b.cols};
    IMBREX_EXPECTS(extent.rows <= shape_.m && extent.cols <= shape_.n,
                   "{}: a tile of {} x {} does not fit the kernel's {} x {}", where(), extent.rows, extent.cols,
                   shape_.m, shape_.n);
    const Buffer& a = plan_.buffers[index(tile.a.buffer)];
    const std::int64_t k_end = tile.a.col + tile.a.cols;
    IMBREX_EXPECTS(shape_.sharing == Sharing::b || k_end == a.cols,
                   "{}: columns {}+{} of A: blocks share stretches up to K's end only", where(), tile.a.col,
                   tile.a.cols);
    IMBREX_EXPECTS(tile.a.rank == rank_ && tile.b.buffer == buffer_b && tile.b.row == tile.a.col &&
                       a.cols == plan_.buffers[buffer_b].rows,
                   "{}: the CUDA executor multiplies columns {}+{} of this rank's A with the same rows of B", where(),
                   tile.a.col, tile.a.cols);
    IMBREX_EXPECTS(tile.a.col % k_unit == 0 && (k_end % k_unit == 0 || k_end == a.cols),
                   "{}: columns {}+{} of A: the CUDA executor cuts K at multiples of {}", where(), tile.a.col,
                   tile.a.cols, k_unit);
    if (tile.a.buffer != buffer_a) {
      IMBREX_EXPECTS(table_.gathered < 0 || table_.gathered == tile.a.buffer,
                     "{}: tiles read A from more than two buffers", where());
      table_.gathered = tile.a.buffer;
      entry.a_source = 1;
    }
    if (plan_.problem.scales != Scales::none) add_scales(entry, tile, q, t);
    entry.a_row = word(tile.a.row);
    entry.b_col = word(tile.b.col);
    entry.rows = word(extent.rows);
    entry.cols = word(extent.cols);
    entry.k_begin = word(tile.a.col);
    entry.k_end = word(k_end);
    entry.bias = !tile.adds.empty() && is_bias(plan_.problem, tile.adds.back()) ? 1 : 0;
    const std::span slots(tile.adds.data(), tile.adds.size() - entry.bias);
    IMBREX_EXPECTS(entry.bias == 0 || tile.adds.back().col == tile.b.col,
                   "{}: the bias from column {} on is added to columns from {} on", where(), tile.adds.back().col,
                   tile.b.col);
    entry.own = narrow<std::uint16_t>(std::min(index(tile.own), slots.size()), "slots of one tile");
    entry.adds = narrow<std::uint16_t>(slots.size(), "slots of one tile");
    entry.stores = narrow<std::uint16_t>(tile.stores.size(), "stores of one tile");
    const auto wide = [&](const Region& slot) { return plan_.buffers[index(slot.buffer)].type == Type::fp32; };
    if (shape_.registers && entry.adds > 0 && std::none_of(slots.begin(), slots.end(), wide))
      entry.slot_stages = slot_stages_of(shape_, entry.adds);
    for (const Region& add : slots) {
      put(table_.regions.emplace_back(), add, extent);
      IMBREX_EXPECTS(!shape_.registers || table_.regions.back().order == SlotOrder::registers,
                     "{}: this kernel adds slots in its register order only", where());
    }
    entry.wide_stores = 1;
    for (const Store& store : tile.stores) {
      RegionEntry& to = table_.regions.emplace_back();
      put(to, store, extent);
      if (!has_wide_rows(to)) entry.wide_stores = 0;
    }
    if (!tile.stores.empty()) put(entry.store, tile.stores.front(), extent);
  }

  void add_scales(TaskEntry& entry, const Tile& tile, int q, std::size_t t) {
    const Region& scale = tile.a_scale;
    const bool gathered = !is_a_scale(scale);
    IMBREX_EXPECTS(scale.rank == rank_ && gathered == (entry.a_source != 0) &&
                       (!gathered || table_.gathered_scales < 0 || table_.gathered_scales == scale.buffer),
                   "{}: the CUDA executor takes scales from the caller's for its A, from one buffer of gathered ones "
                   "for gathered rows",
                   task_name(plan_, rank_, q, t));
    IMBREX_EXPECTS(plan_.problem.scales == Scales::tensor || scale.row == tile.a.row,
                   "{}: rows of A from {} on with scales from {} on: the CUDA executor takes them from the same row on",
                   task_name(plan_, rank_, q, t), tile.a.row, scale.row);
    if (gathered) table_.gathered_scales = scale.buffer;
    if (plan_.problem.scales == Scales::tensor)
      entry.a_scale = narrow<std::uint16_t>(index(static_cast<int>(scale.row)), "scales");
  }

  void add_reduction(TaskEntry& entry, const Reduction& reduction) {
    entry.kind = TaskKind::reduction;
    entry.rows = word(reduction.from.front().rows);
    entry.cols = word(reduction.from.front().cols);
    entry.adds = narrow<std::uint16_t>(reduction.from.size(), "sources of one reduction");
    entry.stores = narrow<std::uint16_t>(reduction.to.size(), "destinations of one reduction");
    for (const Region& from : reduction.from) put(table_.regions.emplace_back(), from);
    for (const Region& to : reduction.to) put(table_.regions.emplace_back(), to);
  }

  void add_transfer(TaskEntry& entry, const Transfer& transfer, int q, std::size_t t) {
    entry.kind = TaskKind::signal;
    if (transfer.from.empty()) return;
    entry.kind = TaskKind::transfer;
    IMBREX_EXPECTS(is_source(transfer.from),
                   "{}: the CUDA executor's workers copy out of their own rank's A, its scales, output and workspaces "
                   "only",
                   task_name(plan_, rank_, q, t));
    put(table_.regions.emplace_back(), transfer.from);
    put(table_.regions.emplace_back(), transfer.to);
    join_rows(table_.regions.end()[-2], table_.regions.back());
    entry.adds = entry.stores = 1;
  }

  // Narrow rows that follow each other are moved as one: workers move 16 bytes at once of rows that are multiples of
  // that.
  static void join_rows(RegionEntry& from, RegionEntry& to) {
    const std::uint64_t width = from.cols * size_of(from.type), bytes = width * from.rows;
    if (from.pitch != width || to.pitch != width || width % 16 == 0 || bytes >= std::uint64_t{1} << 31) return;
    for (RegionEntry* r : {&from, &to}) {
      r->pitch = bytes;
      r->cols *= r->rows;
      r->rows = 1;
    }
  }

  // NOTE: a flag is copied, not added, so it needs a counter of its own. Copies that wait for tiles, and flags shared
  // by several posts, need kernels beside the persistent one, whose residency nothing guarantees.
  // Local copies run before the kernel, on its stream, the others beside it.
  void copy_queue(int q, const Queue& queue) {
    bool some_local = false, some_remote = false;
    for (std::size_t t = 0; t < queue.tasks.size(); ++t) {
      const Task& task = queue.tasks[t];
      const auto& transfer = std::get<Transfer>(task.work);
      const auto where = [&] { return task_name(plan_, rank_, q, t); };
      IMBREX_EXPECTS(task.waits.empty() && !transfer.from.empty(),
                     "{}: the CUDA executor does not run copies that wait for tiles or peers yet; use transport store "
                     "(results) or "
                     "push (operands)",
                     where());
      IMBREX_EXPECTS(transfer.from.rank == rank_, "{}: the CUDA executor pushes copies only", where());
      IMBREX_EXPECTS(task.posts.size() <= 1, "{}: a copy posts at most once on the CUDA executor", where());
      IMBREX_EXPECTS(is_source(transfer.from), "{}: the CUDA executor does not copy B, its scales or the bias",
                     where());
      CopyStep step{.from = region(transfer.from),
                    .to = region(transfer.to),
                    .local = transfer.to.rank == rank_,
                    .flag = !task.posts.empty(),
                    .queue = q,
                    .task = t};
      IMBREX_EXPECTS(step.to.base == Base::heap, "{}: the CUDA executor's copy engines write workspaces only", where());
      IMBREX_EXPECTS(step.local ? !some_remote : !some_local || !layout_.in_heap(transfer.from.buffer),
                     "{}: the CUDA executor runs a queue's copies within the rank before it and beside those to peers, "
                     "so they come first in the queue, and peers get what the caller gave",
                     where());
      (step.local ? some_local : some_remote) = true;
      if (step.flag) {
        const Post& post = task.posts.front();
        IMBREX_EXPECTS(single_post(post), "{}: signal {} of rank {} receives other posts beside a copy's", where(),
                       post.signal, post.rank);
        step.counter = counter(post);
      }
      table_.copies.push_back(step);
    }
  }

  bool single_post(const Post& post) const {
    return layout_.base(post.rank, post.signal, static_cast<std::uint64_t>(plan_.signal_copies)) == 1;
  }

  const Plan& plan_;
  const HeapLayout& layout_;
  int rank_;
  HeapHandle heap_;
  std::size_t offset_;
  TileShape shape_;
  int unreserved_ = -1;  // the compute queue that all workers serve which no other reserves
  std::vector<bool> free_;
  std::vector<std::uint32_t> posts_;  // by signal of this rank: in one epoch
  RankTable table_;
};

}  // namespace

RankTable translate(const Plan& plan, const HeapLayout& layout, int rank, const HeapHandle& heap, std::size_t offset,
                    const TileShape& shape) {
  return Translation(plan, layout, rank, heap, offset, shape).run();
}

// NOTE: a pair goes through its stages in step. Were one used twice by a tile's slots, the mate, which has none, would
// come to store what other ranks wait for only once the tile's peers have sent: ranks could wait for each other so.
std::uint32_t slot_stages_of(const TileShape& shape, std::uint32_t slots) {
  const std::uint32_t count = slot_stages(shape.units, shape.planes, slots).count;
  return shape.cluster > 1 && count > shape.stages ? 0 : count;
}

void place_workers(std::vector<QueueSpan>& queues, std::uint32_t total) {
  std::uint32_t reserved = 0;
  for (const QueueSpan& queue : queues)
    if (queue.count > 0) reserved += queue.workers;
  IMBREX_EXPECTS(reserved < total, "the plan reserves {} workers, the GPU has {}", reserved, total);
  std::uint32_t next = total - reserved;
  for (QueueSpan& queue : queues) {
    queue.first_worker = queue.workers == 0 ? 0 : next;
    if (queue.workers == 0)
      queue.workers = total - reserved;
    else if (queue.count > 0)
      next += queue.workers;
  }
}

namespace {

// Columns of B at which a tile may begin. Of B by columns, the kernels take as much for the sake of the results' rows,
// the bias and the scales.
std::int64_t column_step(Type type) { return type == Type::e4m3 ? 8 : static_cast<std::int64_t>(16 / size_of(type)); }

}  // namespace

std::string refusal_of_tma(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  const auto step = static_cast<std::int64_t>(16 / size_of(problem.type));
  const bool by_columns = problem.type == Type::e4m3;
  const std::int64_t col_step = column_step(problem.type);
  if (problem.type == Type::fp32) return "fp32 operands";
  if (shapes.depth % step != 0)
    return fmt::format("rows of A of {} elements, not a multiple of {}", shapes.depth, step);
  if (shapes.b.cols % col_step != 0)
    return fmt::format("{} of {} {}, not a multiple of {}", by_columns ? "results" : "rows of B", shapes.b.cols,
                       by_columns ? "columns" : "elements", col_step);
  return {};
}

std::string refusal_of_tma(const Plan& plan) {
  if (std::string why = refusal_of_tma(plan.problem); !why.empty()) return why;
  const std::int64_t col_step = column_step(plan.problem.type);
  // A load that begins inside 16 bytes of a row is an illegal instruction (seen on an H200).
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks)
        if (const auto* tile = std::get_if<Tile>(&task.work); tile != nullptr && tile->b.col % col_step != 0)
          return fmt::format("a tile from column {} on, not a multiple of {}", tile->b.col, col_step);
  return {};
}

bool fits(const Plan& plan, const TileShape& shape) {
  // Only at the end of K do loads bring zeros, to fill up the second half.
  if (shape.sharing == Sharing::k && plan.knobs.split_k > 1) return false;
  return !shape.registers || std::all_of(plan.buffers.begin(), plan.buffers.end(), [&](const Buffer& b) {
    return (b.type == plan.problem.type || b.type == output_type(plan.problem.type) || b.type == Type::fp32) &&
           (b.layout != Layout::fragment || b.cols >= shape.m * shape.n);
  });
}

Extent largest_tile(const Plan& plan) {
  Extent largest;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks)
        if (const auto* tile = std::get_if<Tile>(&task.work))
          largest = {std::max(largest.rows, tile->a.rows), std::max(largest.cols, tile->b.cols)};
  return largest;
}

}  // namespace imbrex::cuda
