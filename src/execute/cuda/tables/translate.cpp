#include "execute/cuda/tables/translate.hpp"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "execute/cuda/tables/pairs.hpp"
#include "execute/cuda/tables/places.hpp"
#include "plan/builder.hpp"

namespace imbrex::cuda {
namespace {

using base::index, base::narrow;

std::uint32_t word(std::int64_t value) { return narrow<std::uint32_t>(value, "a number of the table"); }

// NOTE: entries are filled where they lie. What has just been written field by field cannot be copied in wider pieces
// before it has left the processor's store buffer, which cost a fifth of the time.
class Translation {
 public:
  Translation(const Plan& frame, const TableSurvey& survey, const execute::HeapLayout& layout, int rank,
              const HeapHandle& heap, std::size_t offset, const TileShape& shape, TableEntries memory)
      : plan_(frame),
        layout_(layout),
        rank_(rank),
        heap_(heap),
        offset_(offset),
        shape_(shape),
        operands_(plan::count_operands(frame.problem)),
        queues_(frame.ranks[index(rank)].queues),
        places_(places_of(frame, layout, rank, heap, offset)),
        copied_(queues_.size()),
        pairs_(table_, shape_) {
    static_cast<TableEntries&>(table_) = std::move(memory);
    table_.tasks.clear();
    table_.waits.clear();
    table_.regions.clear();
    table_.posts.clear();
    // Tables that grow are copied again and again. A table in which every task has an idle mate is twice as long.
    const TableSurvey::Sizes& sizes = survey.sizes();
    if (table_.tasks.capacity() < sizes.tasks) table_.tasks.reserve(sizes.tasks * index(shape.cluster));
    table_.waits.reserve(shape.sharing == Sharing::k ? 2 * sizes.waits : sizes.waits);
    table_.regions.reserve(sizes.regions);
    table_.posts.reserve(sizes.posts);
  }

  void add(const plan::TaskPlace& place, const Task& task) {
    if (place.rank != rank_) return;
    place_ = &place;
    task_ = &task;
    const Queue& queue = queues_[index(place.queue)];
    switch (queue.engine) {
      case Engine::compute: add_compute(queue.workers); break;
      case Engine::copy: add_copy(); break;
      case Engine::library: break;  // concurrent lanes run them (lanes/lane_plan.hpp)
    }
  }

  RankTable finish() {
    advance_to(static_cast<int>(std::ssize(queues_)));
    return std::move(table_);
  }

 private:
  std::string where() const { return task_name(rank_, place_->queue, place_->index, *task_); }

  std::uint64_t heap_address(int rank, std::size_t at) const {
    return reinterpret_cast<std::uint64_t>(heap_.at(rank, offset_ + at));
  }

  bool is_a_scale(const Region& r) const {
    return plan_.problem.scales != Scales::none && r.buffer == plan::buffer_a_scale(plan_.problem);
  }

  // What a transfer may read: this rank's A, its scales, outputs and workspaces.
  bool is_source(const Region& r) const {
    return r.rank == rank_ &&
           (plan_.buffers[index(r.buffer)].role != BufferRole::input || r.buffer == plan::buffer_a || is_a_scale(r));
  }

  void put(RegionEntry& entry, const Region& r) const {
    const BufferPlace& place = places_[index(r.buffer)];
    entry.address = place.address + index(r.rank) * place.rank_stride +
                    static_cast<std::uint64_t>(r.row) * place.row_stride +
                    static_cast<std::uint64_t>(r.col) * place.element;
    entry.copy_stride = place.copy_stride;
    entry.pitch = place.pitch;
    entry.rows = word(r.rows);
    entry.cols = word(r.cols);
    entry.type = plan_.buffers[index(r.buffer)].type;
    entry.base = place.base;
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
    if (task.waits.empty()) return;
    // In the order of the task, except the points that they stand at and, of loads, their columns.
    const auto add = [&](WaitPoint point) {
      const std::size_t begin = table_.waits.size();
      for (const Wait& wait : task.waits)
        if (wait.point == point)
          table_.waits.emplace_back(word(wait.signal), layout_.posts(rank_, wait.signal), wait.count,
                                    word(wait.k_begin));
      return table_.waits.size() - begin;
    };
    entry.load_waits = narrow<std::uint16_t>(add(WaitPoint::load), "waits of one task");
    if (entry.load_waits > 1)
      std::stable_sort(table_.waits.begin() + entry.waits, table_.waits.end(),
                       [](const WaitEntry& x, const WaitEntry& y) { return x.k_begin < y.k_begin; });
    entry.epilogue_waits = narrow<std::uint16_t>(add(WaitPoint::epilogue), "waits of one task");
  }

  void start(TaskEntry& entry) {
    const Task& task = *task_;
    entry.queue = narrow<std::uint16_t>(place_->queue, "queue");
    entry.task = narrow<std::uint32_t>(place_->index, "tasks in a queue");
    add_waits(entry, task);
    entry.posts = narrow<std::uint32_t>(table_.posts.size(), "posts");
    entry.post_count = narrow<std::uint16_t>(task.posts.size(), "posts of one task");
    for (const Post& post : task.posts) table_.posts.push_back({counter(post)});
    if (!task.posts.empty()) entry.post = table_.posts[entry.posts];
    entry.regions = narrow<std::uint32_t>(table_.regions.size(), "regions");
  }

  std::uint32_t entries() const { return narrow<std::uint32_t>(table_.tasks.size() / index(shape_.cluster), "tasks"); }

  // Ends the queues before `queue`, and begins that one.
  void advance_to(int queue) {
    while (queue_ < queue) {
      pairs_.finish();
      if (!table_.queues.empty()) table_.queues.back().count = entries() - table_.queues.back().first;
      if (++queue_ == std::ssize(queues_) || queues_[index(queue_)].engine != Engine::compute) continue;
      pairs_.begin(queues_[index(queue_)]);
      IMBREX_EXPECTS(table_.queues.size() < max_compute_queues, "the plan has more than {} compute queues",
                     max_compute_queues);
      table_.queues.push_back({entries(), 0, 0, word(queues_[index(queue_)].workers)});
    }
  }

  void add_compute(int workers) {
    IMBREX_EXPECTS(place_->queue >= queue_, "{} comes after tasks of queue {}", where(), queue_);
    advance_to(place_->queue);
    if (workers == 0 && unreserved_ != queue_) {
      IMBREX_EXPECTS(
          unreserved_ < 0,
          "{}: queues {} and {} reserve no workers: the CUDA executor's would take all of one's tasks before "
          "the other's",
          where(), unreserved_, queue_);
      unreserved_ = queue_;
    }
    const auto* block = std::get_if<Block>(&task_->work);
    IMBREX_EXPECTS(block == nullptr || shape_.blocks,
                   "{}: the CUDA executor runs no work of kind {} in compute queues beside tiles or library queues",
                   where(), kind_of(*task_));
    const bool paired = shape_.cluster > 1;
    TaskEntry& entry = paired ? pairs_.next(*task_) : table_.tasks.emplace_back();
    start(entry);
    if (const auto* tile = std::get_if<Tile>(&task_->work))
      add_tile(entry, *tile);
    else if (const auto* reduction = std::get_if<Reduction>(&task_->work))
      add_reduction(entry, *reduction);
    else if (block != nullptr)
      add_block(entry, *block);
    else
      add_transfer(entry, std::get<Transfer>(task_->work));
    if (paired) pairs_.add();
  }

  void add_tile(TaskEntry& entry, const Tile& tile) {
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
    const Buffer& b = plan_.buffers[index(tile.b.buffer)];
    const auto [what, product] =
        tile.b.buffer < operands_ ? plan::operand_at(plan_.problem, tile.b.buffer) : plan::OperandPlace{};
    IMBREX_EXPECTS(
        tile.a.rank == rank_ && what == plan::OperandPlace::What::b && tile.b.row == tile.a.col && a.cols == b.rows,
        "{}: the CUDA executor multiplies columns {}+{} of this rank's A with the same rows of B", where(), tile.a.col,
        tile.a.cols);
    entry.output = word(product);
    IMBREX_EXPECTS(tile.a.col % plan::k_unit == 0 && (k_end % plan::k_unit == 0 || k_end == a.cols),
                   "{}: columns {}+{} of A: the CUDA executor cuts K at multiples of {}", where(), tile.a.col,
                   tile.a.cols, plan::k_unit);
    if (tile.a.buffer != plan::buffer_a) {
      IMBREX_EXPECTS(table_.gathered < 0 || table_.gathered == tile.a.buffer,
                     "{}: tiles read A from more than two buffers", where());
      table_.gathered = tile.a.buffer;
      entry.a_source = 1;
    }
    if (plan_.problem.scales != Scales::none) add_scales(entry, tile);
    entry.a_row = word(tile.a.row);
    entry.b_col = word(tile.b.col);
    entry.rows = word(extent.rows);
    entry.cols = word(extent.cols);
    entry.k_begin = word(tile.a.col);
    entry.k_end = word(k_end);
    entry.bias = !tile.adds.empty() && plan::is_bias(plan_.problem, tile.adds.back()) ? 1 : 0;
    const std::span slots(tile.adds.data(), tile.adds.size() - entry.bias);
    IMBREX_EXPECTS(entry.bias == 0 || tile.adds.back().col == tile.b.col,
                   "{}: the bias from column {} on is added to columns from {} on", where(), tile.adds.back().col,
                   tile.b.col);
    if (entry.bias != 0) expect_of_output(entry, tile.adds.back());
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
      if (store.to.rank != rank_) table_.stores_to_peers = true;
      expect_of_output(entry, store.to);
      if (!has_wide_rows(to)) entry.wide_stores = 0;
    }
    if (!tile.stores.empty()) put(entry.store, tile.stores.front(), extent);
  }

  void add_scales(TaskEntry& entry, const Tile& tile) {
    const Region& scale = tile.a_scale;
    const bool gathered = !is_a_scale(scale);
    IMBREX_EXPECTS(scale.rank == rank_ && gathered == (entry.a_source != 0) &&
                       (!gathered || table_.gathered_scales < 0 || table_.gathered_scales == scale.buffer),
                   "{}: the CUDA executor takes scales from the caller's for its A, from one buffer of gathered ones "
                   "for gathered rows",
                   where());
    IMBREX_EXPECTS(plan_.problem.scales == Scales::tensor || scale.row == tile.a.row,
                   "{}: rows of A from {} on with scales from {} on: the CUDA executor takes them from the same row on",
                   where(), tile.a.row, scale.row);
    if (gathered) table_.gathered_scales = scale.buffer;
    if (plan_.problem.scales == Scales::tensor) entry.a_scale = narrow<std::uint16_t>(scale.row, "row of the scales");
  }

  bool lies_in_output(const Region& r) const {
    const Base base = places_[index(r.buffer)].base;
    return base == Base::out || base == Base::bias;
  }
  void expect_of_output(const TaskEntry& entry, const Region& r) const {
    const std::uint32_t own = places_[index(r.buffer)].output;
    IMBREX_EXPECTS(!lies_in_output(r) || own == entry.output,
                   "{}: touches {}, which is of another product than the task's others", where(),
                   plan_.buffers[index(r.buffer)].name);
  }
  // A task other than a tile reads and writes one output, or one and its bias.
  void set_output(TaskEntry& entry, std::initializer_list<std::span<const Region>> all) const {
    for (const std::span<const Region> regions : all)
      for (const Region& r : regions)
        if (lies_in_output(r)) entry.output = places_[index(r.buffer)].output;
    for (const std::span<const Region> regions : all)
      for (const Region& r : regions) expect_of_output(entry, r);
  }

  void add_reduction(TaskEntry& entry, const Reduction& reduction) {
    entry.kind = TaskKind::reduction;
    entry.rows = word(reduction.from.front().rows);
    entry.cols = word(reduction.from.front().cols);
    entry.adds = narrow<std::uint16_t>(reduction.from.size(), "sources of one reduction");
    entry.stores = narrow<std::uint16_t>(reduction.to.size(), "destinations of one reduction");
    set_output(entry, {reduction.from, reduction.to});
    for (const Region& from : reduction.from) put(table_.regions.emplace_back(), from);
    for (const Region& to : reduction.to) put(table_.regions.emplace_back(), to);
  }

  void add_block(TaskEntry& entry, const Block& block) {
    put_numbers(entry, block);
    set_output(entry, {block.reads});
    for (const Store& store : block.stores) set_output(entry, {{&store.to, 1}});
    for (const Store& store : block.stores) expect_of_output(entry, store.to);
    for (const Region& read : block.reads) put(table_.regions.emplace_back(), read);
    for (const Store& store : block.stores) put(table_.regions.emplace_back(), store, {});
  }

  void add_transfer(TaskEntry& entry, const Transfer& transfer) {
    entry.kind = TaskKind::signal;
    if (transfer.from.empty()) return;
    entry.kind = TaskKind::transfer;
    IMBREX_EXPECTS(is_source(transfer.from),
                   "{}: the CUDA executor's workers copy out of their own rank's A, its scales, output and workspaces "
                   "only",
                   where());
    // Kernels count a row's bytes, and parts of 16 bytes, in 32 bits.
    const std::uint64_t width = static_cast<std::uint64_t>(transfer.from.cols) *
                                size_of(plan_.buffers[index(transfer.from.buffer)].type),
                        parts = (width + 15) / 16 * static_cast<std::uint64_t>(transfer.from.rows);
    IMBREX_EXPECTS(width < std::uint64_t{1} << 32 && parts < std::uint64_t{1} << 32,
                   "{}: a transfer of {} rows of {} bytes: rows must be shorter than 4 GiB, and all of them together "
                   "than 64 GiB",
                   where(), transfer.from.rows, width);
    set_output(entry, {{&transfer.from, 1}, {&transfer.to, 1}});
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
  // by several posts, need kernels concurrent with the persistent one, whose residency nothing guarantees.
  // Local copies run before the kernel, on its stream, the others concurrently.
  void add_copy() {
    const Task& task = *task_;
    const auto& transfer = std::get<Transfer>(task.work);
    auto& [some_local, some_remote] = copied_[index(place_->queue)];
    IMBREX_EXPECTS(task.waits.empty() && !transfer.from.empty(),
                   "{}: the CUDA executor does not run copies that wait for tiles or peers yet; use transport store "
                   "(results) or "
                   "push (operands)",
                   where());
    IMBREX_EXPECTS(transfer.from.rank == rank_, "{}: the CUDA executor pushes copies only", where());
    IMBREX_EXPECTS(task.posts.size() <= 1, "{}: a copy posts at most once on the CUDA executor", where());
    IMBREX_EXPECTS(is_source(transfer.from), "{}: the CUDA executor does not copy B, its scales or the bias", where());
    CopyStep step{.from = region(transfer.from),
                  .to = region(transfer.to),
                  .local = transfer.to.rank == rank_,
                  .flag = !task.posts.empty(),
                  .queue = place_->queue,
                  .task = place_->index};
    IMBREX_EXPECTS(step.to.base == Base::heap, "{}: the CUDA executor's copy engines write workspaces only", where());
    IMBREX_EXPECTS(
        step.local ? !some_remote : !some_local || !layout_.in_heap(transfer.from.buffer),
        "{}: the CUDA executor runs a queue's copies within the rank before it and concurrently with those to peers, "
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

  bool single_post(const Post& post) const { return layout_.posts(post.rank, post.signal) == 1; }

  const Plan& plan_;
  const execute::HeapLayout& layout_;
  int rank_;
  HeapHandle heap_;
  std::size_t offset_;
  TileShape shape_;
  int operands_;                            // buffers that are the caller's
  std::span<const Queue> queues_;           // of the rank
  std::vector<BufferPlace> places_;         // by buffer
  const plan::TaskPlace* place_ = nullptr;  // of the task that is being translated
  const Task* task_ = nullptr;              // which that is
  int queue_ = -1;                          // the last one that has begun
  int unreserved_ = -1;                     // the compute queue that all workers serve which no other reserves
  struct Copied {
    bool local = false, remote = false;
  };
  std::vector<Copied> copied_;  // by queue: whether it has copies within the rank, and others
  RankTable table_;
  Pairs pairs_;
};

}  // namespace

TableEntries touched_entries() {
  // Tiles of 128 x 128 of some 16384 rows, on four ranks and in the largest models' layers: 5 MB.
  constexpr std::size_t tasks = 16384;
  TableEntries entries{std::vector<TaskEntry>(tasks), std::vector<WaitEntry>(tasks),
                       std::vector<RegionEntry>(2 * tasks), std::vector<PostEntry>(2 * tasks)};
  entries.tasks.clear();
  entries.waits.clear();
  entries.regions.clear();
  entries.posts.clear();
  return entries;
}

void put_numbers(TaskEntry& entry, const Block& block) {
  entry.kind = TaskKind::block;
  put(entry, {static_cast<std::uint32_t>(block.kind),
              {word(block.args[0]), word(block.args[1]), word(block.args[2]), word(block.args[3])},
              word(block.share),
              word(block.shares)});
  entry.adds = narrow<std::uint16_t>(block.reads.size(), "regions that one block reads");
  entry.stores = narrow<std::uint16_t>(block.stores.size(), "stores of one block");
}

RankTable translate(plan::TaskStream& tasks, const TableSurvey& survey, const execute::HeapLayout& layout, int rank,
                    const HeapHandle& heap, std::size_t offset, const TileShape& shape, TableEntries memory) {
  Translation translation(tasks.frame(), survey, layout, rank, heap, offset, shape, std::move(memory));
  tasks.for_each([&](const plan::TaskPlace& place, const Task& task) { translation.add(place, task); });
  return translation.finish();
}

RankTable translate(const Plan& plan, const execute::HeapLayout& layout, int rank, const HeapHandle& heap,
                    std::size_t offset, const TileShape& shape) {
  const TableSurvey survey = survey_of(plan, rank);
  Translation translation(plan, survey, layout, rank, heap, offset, shape, {});
  plan::for_each_task(plan, [&](const plan::TaskPlace& place, const Task& task) { translation.add(place, task); });
  return translation.finish();
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

bool fits(const Plan& plan, const TableSurvey& survey, const TileShape& shape) {
  // Only at the end of K do loads bring zeros, to fill up the second half.
  if (shape.sharing == Sharing::k && !survey.whole_depth()) return false;
  return !shape.registers || std::all_of(plan.buffers.begin(), plan.buffers.end(), [&](const Buffer& b) {
    return (b.type == plan.problem.type || b.type == output_type(plan.problem.type) || b.type == Type::fp32) &&
           (b.layout != Layout::fragment || b.cols >= shape.m * shape.n);
  });
}

}  // namespace imbrex::cuda
