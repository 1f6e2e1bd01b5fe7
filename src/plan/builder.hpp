// What all strategies share: the operands' buffers, and adding signals and tasks rank by rank.
#pragma once

#include <utility>
#include <vector>

#include "imbrex/plan.hpp"
#include "plan/limits.hpp"
#include "plan/operand_buffers.hpp"
#include "plan/pairs.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::plan {

/// Half-open range of rows or columns.
struct Range {
  std::int64_t begin = 0, size = 0;
  std::int64_t end() const { return begin + size; }
};

inline bool overlap(const Range& x, const Range& y) { return x.begin < y.end() && y.begin < x.end(); }

/// Tiles' stretches of K begin and end at multiples of this, or with K: whole steps of every executor's main loop.
inline constexpr std::int64_t k_unit = 128;

/// SMs of today's large GPUs.
inline constexpr int usual_sms = 132;

/// How many pairs of overlapping pieces there are, at most, where a stretch is cut in two ways, into so many each.
constexpr std::int64_t most_overlaps(std::int64_t pieces, std::int64_t others) {
  return pieces == 0 || others == 0 ? 0 : pieces + others - 1;
}

/// `total` cut into pieces of `piece`, the last one shorter.
std::vector<Range> cut(std::int64_t total, std::int64_t piece);

/// Part `index` of `total` cut into `parts` as equal as can be; may be empty.
Range part_of(std::int64_t total, std::int64_t parts, std::int64_t index);

/// For whom a plan is made.
inline constexpr int all_ranks = -1;

/// How much of a plan a strategy is going to make: all of it, or a rank's part.
struct Counts {
  std::int64_t tasks = 0;
  std::int64_t parts = 0;    ///< waits, posts and regions that differ from task to task, at most
  std::int64_t signals = 0;  ///< of all ranks

  /// As much on each of the ranks; never more than base::uncountable.
  Counts times(std::int64_t ranks) const;
};

class Builder {
 public:
  /// With `only` a rank, the plan is make_rank_plan's.
  Builder(const Problem& problem, Strategy strategy, const Knobs& knobs, int only = all_ranks);

  const Problem& problem() const { return plan_.problem; }
  const Knobs& knobs() const { return plan_.knobs; }
  const RankShapes& shapes() const { return shapes_; }
  int ranks() const { return plan_.problem.ranks; }

  /// Whether the plan keeps the rank's tasks. It keeps others' posts to ranks whose tasks it keeps, and whether a
  /// wait came before.
  bool keeps(int rank) const { return only_ == all_ranks || rank == only_; }
  /// That rank, or all_ranks.
  int only() const { return only_; }
  /// Before any task: the plan is for all ranks after all.
  void keep_all() { only_ = all_ranks; }

  /// Before anything of that many is made: throws Error(invalid_input) unless a plan may have so many signals, and may
  /// hand over, or keep, so many tasks.
  void expect_handed(const Counts& counts) const;
  void expect_kept(const Counts& counts) const;

  /// A new workspace; returns its index.
  int workspace(const std::string& name, Layout layout, Type type, std::int64_t rows, std::int64_t cols, int copies);

  const Buffer& buffer(int index) const { return plan_.buffers[static_cast<std::size_t>(index)]; }
  /// Whether the rows of an operand have gaps between them, so that collectives need them elsewhere.
  bool has_gaps(int index) const { return pitch_of(problem(), buffer(index), index) != 0; }

  /// `count` new signals on `rank`; returns the first one's index.
  int signals(int rank, std::int64_t count = 1);

  /// A new queue on every rank; returns its index, the same on all. Compute queues take the knobs' tiles and clusters;
  /// their tasks are paired as these say.
  int queue(Engine engine, int workers = 0);
  /// SMs that the compute queues leave to that library queue, on every rank.
  void keep_free(int queue, int sms);

  /// Before any task: what tiles wait for before they load is posted by tasks that neither wait nor stand after a tile
  /// or a task that waits. So tiles may wait for it while their mates load.
  void set_loads_free() { loads_are_free_ = true; }

  void add(int rank, int queue, Task task);
  /// Counts a task that is not kept.
  void skip(int rank, int queue, const std::vector<Wait>& waits, std::vector<Post> posts);

  /// A new tile of a rank that the plan keeps, to be filled in before the next task is added: with scales, if the
  /// problem has them.
  Task& add_tile(int rank, int queue) {
    finish_tile();
    tile_pairs_ = &pairs(rank, queue);
    if (visit_ == nullptr) {
      expect_kept_task();
      return *(kept_tile_ = &tasks(rank, queue).emplace_back());
    }
    tile_place_ = &place(rank, queue);
    auto& tile = std::get<Tile>(tile_.work);
    tile.adds.clear();
    tile.own = 0;
    tile.stores.clear();
    tile_.waits.clear();
    tile_.posts.clear();
    return tile_;
  }

  /// `count` tasks are going to be added.
  void reserve(int rank, int queue, std::size_t count);

  Region region(int rank, int buffer, std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) const {
    return {rank, buffer, row, col, rows, cols};
  }
  /// Whole rows of a buffer.
  Region rows_of(int rank, int buffer, std::int64_t row, std::int64_t rows) const {
    return {rank, buffer, row, 0, rows, plan_.buffers[static_cast<std::size_t>(buffer)].cols};
  }

  /// The scales of rows of `rank`'s own A; an empty region where the problem has none.
  Region scales_of(int rank, const Range& rows) const {
    if (problem().scales == Scales::none) return {};
    return scale_rows(rank, buffer_a_scale(problem()), problem().scales == Scales::tensor ? Range{0, 1} : rows);
  }
  /// Rows of a buffer of scales.
  Region scale_rows(int rank, int buffer, const Range& rows) const {
    return region(rank, buffer, rows.begin, rows.size, 0, 1);
  }

  /// Lets the task whose result, of that product, is complete add the bias of its columns, if the problem has one.
  void add_bias(int rank, const Range& cols, std::vector<Region>& adds, int product = 0) const {
    if (!problem().bias) return;
    adds.push_back(region(rank, buffer_bias_of(problem(), product), 0, 1, cols.begin, cols.size));
  }

  /// The plan as it stands.
  const Plan& plan() const { return plan_; }
  Plan take() {
    finish_tile();
    return std::move(plan_);
  }

  /// Tasks that `add` adds go to `visit`, and not into the plan.
  template <typename F>
  void hand_over(const TaskVisit& visit, F&& add) {
    visit_ = &visit;
    tile_pairs_ = nullptr;
    places_.clear();
    for (int rank = 0; rank < ranks(); ++rank)
      for (int queue = 0; queue < std::ssize(plan_.ranks.front().queues); ++queue) places_.push_back({rank, queue, 0});
    for (PairChoice& pairs : pairs_) pairs.begin();
    add();
    finish_tile();
    for (PairChoice& pairs : pairs_) pairs.end();
    visit_ = nullptr;
  }

 private:
  // Where the next task of the queue stands, and its pairs.
  TaskPlace& place(int rank, int queue) { return places_[number_of(rank, queue)]; }
  PairChoice& pairs(int rank, int queue) { return pairs_[number_of(rank, queue)]; }
  std::size_t number_of(int rank, int queue) const {
    return static_cast<std::size_t>(rank) * plan_.ranks.front().queues.size() + static_cast<std::size_t>(queue);
  }
  void hand(TaskPlace& place, const Task& task) {
    (*visit_)(place, task);
    ++place.index;
  }
  // The last tile, if there is one, has been filled in.
  void finish_tile() {
    if (tile_pairs_ == nullptr) return;
    Task& tile = visit_ == nullptr ? *kept_tile_ : tile_;
    tile.mate = std::exchange(tile_pairs_, nullptr)->next(plan_, tile, loads_are_free_);
    if (visit_ != nullptr) hand(*tile_place_, tile_);
  }

  // One more. What a strategy has counted before is not less.
  void expect_kept_task() {
    if (++kept_ > most_kept_tasks) [[unlikely]]
      refuse_count(kept_, "tasks", most_kept_tasks);
  }
  [[noreturn]] void refuse_count(std::int64_t count, const char* what, std::int64_t most) const;
  std::vector<Task>& tasks(int rank, int queue) {
    return plan_.ranks[static_cast<std::size_t>(rank)].queues[static_cast<std::size_t>(queue)].tasks;
  }

  Plan plan_;
  RankShapes shapes_;
  int only_;
  std::int64_t signals_ = 0;          // of all ranks
  std::int64_t kept_ = 0;             // tasks in the plan
  const TaskVisit* visit_ = nullptr;  // null: the plan keeps tasks
  std::vector<TaskPlace> places_;     // by rank and queue: of the next task that goes there
  bool loads_are_free_ = false;
  std::vector<PairChoice> pairs_;  // by rank and queue
  // The tile that is being filled in, its queue's pairs, and where it goes: one for all that are handed over, so that
  // its parts' memory is, too, or one that the plan keeps.
  Task tile_;
  PairChoice* tile_pairs_ = nullptr;  // null: there is none
  TaskPlace* tile_place_ = nullptr;
  Task* kept_tile_ = nullptr;
};

/// How pairs of workers are to share operands, by the knobs.
ClusterMode cluster_mode(const Knobs& knobs);

/// An empty transfer: it only waits and posts.
inline Task signal_task(std::vector<Wait> waits, std::vector<Post> posts) {
  return {Transfer{}, std::move(waits), std::move(posts)};
}

}  // namespace imbrex::plan
