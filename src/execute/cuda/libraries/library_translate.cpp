#include "execute/cuda/libraries/library_translate.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include "base/check.hpp"
#include "execute/cuda/refusal.hpp"
#include "plan/builder.hpp"

namespace imbrex::cuda {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

// Waits as (signal, count). A product that begins late is still right, so where in a tile a wait stands is ignored.
using Waits = std::set<std::pair<int, std::uint32_t>>;

Waits waits_of(const Task& task) {
  Waits waits;
  for (const Wait& wait : task.waits) waits.insert({wait.signal, wait.count});
  return waits;
}

// Tiles that post to different signals are awaited apart, so they stay apart.
std::set<int> signals_of(const Task& task) {
  std::set<int> signals;
  for (const Post& post : task.posts) signals.insert(post.signal);
  return signals;
}

// A step before it has a place in the program. Steps of one lane run one after another; a lane becomes a stream.
struct Draft {
  LibraryStep step;
  Waits waits;
  std::set<int> signals;
  std::map<int, std::uint32_t> posts;  // by signal
  std::size_t lane = 0, place = 0;     // place: in its lane
  std::vector<std::size_t> after;      // drafts that end before this one begins
  std::vector<std::size_t> seen;       // by lane: steps that have ended when this one has
};

bool extends(const LibraryProduct& p, const LibraryProduct& next) {
  const auto moved = [](Region from, const Region& to) {
    from.row = to.row;
    return from == to;
  };
  if (!p.a_scale.empty() || next.batch != 1 || next.b != p.b || next.bias != p.bias || !moved(p.a, next.a) ||
      !moved(p.to, next.to))
    return false;
  const std::int64_t a = next.a.row - p.a.row, to = next.to.row - p.to.row;
  return p.batch == 1 ? a > 0 && to >= p.to.rows : a == p.batch * p.a_step && to == p.batch * p.to_step;
}

// Whether a tile's result lies in its destination where the first one's grid of rows and columns puts it.
bool aligned(const Tile& first, const Tile& tile, Scales scales) {
  if (first.adds.size() != tile.adds.size()) return false;
  if (!first.adds.empty() && tile.adds[0].col - tile.b.col != first.adds[0].col - first.b.col) return false;
  const Region &s = first.a_scale, &z = tile.a_scale;
  const std::int64_t apart = scales == Scales::row ? tile.a.row - first.a.row : 0;
  if (s.buffer != z.buffer || z.row - s.row != apart) return false;
  const Region &a = first.a, &b = first.b, &to = first.stores[0].to;
  const Region &c = tile.a, &d = tile.b, &e = tile.stores[0].to;
  return c.buffer == a.buffer && c.col == a.col && c.cols == a.cols && d.buffer == b.buffer && d.row == b.row &&
         e.buffer == to.buffer && e.row - c.row == to.row - a.row && e.col - d.col == to.col - b.col;
}

// The bias is the last of what a tile adds, and here all of it.
Region bias_of(const Tile& tile) { return tile.adds.empty() ? Region{} : tile.adds.back(); }

// Starts and sizes of stretches that lie one after another, or nothing.
struct Stretches {
  std::map<std::int64_t, std::int64_t> sizes;
  bool consistent = true;

  void add(std::int64_t begin, std::int64_t size) {
    consistent = consistent && sizes.try_emplace(begin, size).first->second == size;
  }
  bool contiguous() const {
    for (auto i = sizes.begin(); i != sizes.end() && std::next(i) != sizes.end(); ++i)
      if (i->first + i->second != std::next(i)->first) return false;
    return consistent;
  }
  std::vector<std::int64_t> begins() const {
    std::vector<std::int64_t> all;
    for (const auto& [begin, size] : sizes) all.push_back(begin);
    return all;
  }
  std::int64_t begin() const { return sizes.begin()->first; }
  std::int64_t size() const { return sizes.rbegin()->first + sizes.rbegin()->second - begin(); }
};

class LibraryTranslation {
 public:
  LibraryTranslation(const Plan& plan, int rank) : plan_(plan), rank_(rank) {}

  LibraryProgram run() {
    check_collectives();
    for (int q = 0; q < std::ssize(rank_plan().queues); ++q) draft_queue(q);
    link();
    order();
    if (in_turn()) unite_streams();
    return std::move(program_);
  }

 private:
  const RankPlan& rank_plan() const { return plan_.ranks[index(rank_)]; }
  const Buffer& buffer(const Region& r) const { return plan_.buffers[index(r.buffer)]; }
  const Task& task_at(int q, std::size_t t) const { return rank_plan().queues[index(q)].tasks[t]; }
  std::string where(int q, std::size_t t) const { return task_name(plan_, rank_, q, t); }

  // A communicator runs collectives in the order of their launch, which must be one on all ranks that it joins.
  void check_collectives() const {
    struct Part {
      const Collective* work;
      std::string name;
    };
    const auto sequence = [&](int rank) {
      std::map<std::vector<int>, std::vector<Part>> parts;
      int queues = 0;
      const auto& queues_of_rank = plan_.ranks[index(rank)].queues;
      for (int q = 0; q < std::ssize(queues_of_rank); ++q) {
        const Queue& queue = queues_of_rank[index(q)];
        if (queue.engine != Engine::library || queue.tasks.empty()) continue;
        IMBREX_EXPECTS(++queues == 1, "{}: the CUDA executor runs one library queue a rank",
                       task_name(plan_, rank, q, 0));
        for (std::size_t t = 0; t < queue.tasks.size(); ++t) {
          const auto& work = std::get<Collective>(queue.tasks[t].work);
          IMBREX_EXPECTS(
              plan_.knobs.transport != Transport::store || !work.ranks.empty() || buffer(work.from).type != Type::e4m3,
              "{}: Imbrex' own collectives (transport store) do not take e4m3 yet; NCCL does (push or pull)",
              task_name(plan_, rank, q, t));
          parts[ranks_of(work, plan_)].push_back({&work, task_name(plan_, rank, q, t)});
        }
      }
      return parts;
    };
    std::map<int, std::map<std::vector<int>, std::vector<Part>>> others;
    for (const auto& [ranks, own] : sequence(rank_)) {
      const auto [other, fresh] = others.try_emplace(ranks.front());
      if (fresh) other->second = sequence(ranks.front());
      const std::vector<Part>& first = other->second.at(ranks);
      for (std::size_t i = 0; i < own.size(); ++i) {
        const Collective &mine = *own[i].work, &theirs = *first[i].work;
        IMBREX_EXPECTS(mine.group == theirs.group && buffer(mine.from).type == buffer(theirs.from).type,
                       "{}: collective {} of {} stands where rank {} has {} of {}; a library needs one order and type "
                       "on all ranks",
                       own[i].name, mine.group, name_of(buffer(mine.from).type), ranks.front(), theirs.group,
                       name_of(buffer(theirs.from).type));
      }
    }
  }

  void check_own(const Region& r, const char* what, int q, std::size_t t) const {
    IMBREX_EXPECTS(r.rank == rank_, "{}: {} is on rank {}; beside library collectives, tasks stay on their rank",
                   where(q, t), what, r.rank);
  }

  // Tasks of a compute queue other than tiles have a lane of their own, as if by a second worker: a tile must not wait
  // behind what waits for a collective.
  void draft_queue(int q) {
    const Queue& queue = rank_plan().queues[index(q)];
    for (std::size_t t = 0; t < queue.tasks.size();) {
      const Task& task = queue.tasks[t];
      if (std::holds_alternative<Tile>(task.work)) {
        t = draft_tiles(q, t);
        continue;
      }
      Draft draft;
      if (const auto* collective = std::get_if<Collective>(&task.work)) {
        draft.step.work = *collective;
      } else if (const auto* transfer = std::get_if<Transfer>(&task.work)) {
        if (!transfer->from.empty()) {
          check_own(transfer->from, "the source", q, t);
          check_own(transfer->to, "the destination", q, t);
        }
        draft.step.work = *transfer;
      } else {
        draft.step.work = checked(std::get<Reduction>(task.work), q, t);
      }
      add(std::move(draft), q, t, 1);
      ++t;
    }
  }

  const Reduction& checked(const Reduction& reduction, int q, std::size_t t) const {
    for (const Region& from : reduction.from) check_own(from, "a source", q, t);
    for (const Region& to : reduction.to) check_own(to, "a destination", q, t);
    IMBREX_EXPECTS(reduction.from.size() + reduction.to.size() <= max_sum_regions,
                   "{}: {} sources and {} destinations; the CUDA executor takes {} together", where(q, t),
                   reduction.from.size(), reduction.to.size(), max_sum_regions);
    const Region& shape = reduction.from.front();
    IMBREX_EXPECTS(shape.cols < std::int64_t{1} << 31 && shape.rows <= (std::int64_t{1} << 31) / ((shape.cols + 7) / 8),
                   "{}: {} x {} elements are more than one sum takes", where(q, t), shape.rows, shape.cols);
    return reduction;
  }

  const Tile& checked(const Tile& tile, int q, std::size_t t) const {
    IMBREX_EXPECTS(tile.adds.empty() || plan::is_bias(plan_.problem, tile.adds.front()),
                   "{}: a GEMM library adds no slots", where(q, t));
    const std::string bias = refusal_of_library_bias(plan_.problem);
    IMBREX_EXPECTS(tile.adds.empty() || bias.empty(), "{}: {}", where(q, t), bias);
    check_own(tile.a, "operand A", q, t);
    IMBREX_EXPECTS(tile.stores.size() == 1, "{}: stores {} regions; a GEMM library stores one", where(q, t),
                   tile.stores.size());
    const Store& store = tile.stores.front();
    check_own(store.to, "the store", q, t);
    const Buffer& to = buffer(store.to);
    IMBREX_EXPECTS(to.layout == Layout::row_major && store.row == 0 && store.col == 0 && store.to.rows == tile.a.rows &&
                       store.to.cols == tile.b.cols,
                   "{}: a GEMM library stores a tile as a whole, in rows", where(q, t));
    const Type result = output_type(plan_.problem.type);
    IMBREX_EXPECTS(to.type == result || to.type == Type::fp32, "{}: cuBLASLt does not store products of {} as {}",
                   where(q, t), name_of(plan_.problem.type), name_of(to.type));
    IMBREX_EXPECTS(tile.adds.empty() || to.type == result, "{}: cuBLASLt adds a bias of {} to results of {} only",
                   where(q, t), name_of(result), name_of(result));
    if (!tile.a_scale.empty()) check_own(tile.a_scale, "the scales of A", q, t);
    return tile;
  }

  // Whether the tiles take every place of the grid once.
  static bool fill_a_grid(std::span<const Task> tiles, const Stretches& rows, const Stretches& cols) {
    const std::size_t width = cols.sizes.size();
    if (tiles.size() != rows.sizes.size() * width) return false;
    const std::vector<std::int64_t> row_begins = rows.begins(), col_begins = cols.begins();
    std::vector<bool> taken(tiles.size());
    for (const Task& task : tiles) {
      const auto& tile = std::get<Tile>(task.work);
      const auto place = [](const std::vector<std::int64_t>& begins, std::int64_t begin) {
        return static_cast<std::size_t>(std::lower_bound(begins.begin(), begins.end(), begin) - begins.begin());
      };
      const std::size_t at = place(row_begins, tile.a.row) * width + place(col_begins, tile.b.col);
      if (taken[at]) return false;
      taken[at] = true;
    }
    return true;
  }

  // The longest run of tiles from `t` on that could be one product; returns the task behind it.
  std::size_t draft_tiles(int q, std::size_t t) {
    const auto& tasks = rank_plan().queues[index(q)].tasks;
    const Tile& first = checked(std::get<Tile>(tasks[t].work), q, t);
    const Task& head = tasks[t];
    const auto alike = [&](const Task& task) {
      return (task.waits == head.waits || waits_of(task) == waits_of(head)) &&
             (task.posts == head.posts || signals_of(task) == signals_of(head));
    };
    Stretches rows, cols;
    std::size_t end = t;
    for (; end < tasks.size(); ++end) {
      const auto* tile = std::get_if<Tile>(&tasks[end].work);
      if (tile == nullptr || !alike(tasks[end]) || !aligned(first, checked(*tile, q, end), plan_.problem.scales)) break;
      rows.add(tile->a.row, tile->a.rows);
      cols.add(tile->b.col, tile->b.cols);
    }
    const std::size_t count = end - t;
    if (rows.contiguous() && cols.contiguous() && fill_a_grid({&tasks[t], count}, rows, cols)) {
      LibraryProduct product{first.a, first.b, first.stores.front().to};
      product.to.row += rows.begin() - first.a.row;
      product.to.col += cols.begin() - first.b.col;
      product.a.row = rows.begin();
      product.b.col = cols.begin();
      product.a.rows = product.to.rows = rows.size();
      product.b.cols = product.to.cols = cols.size();
      product.bias = bias_of(first);
      product.a_scale = first.a_scale;
      if (plan_.problem.scales == Scales::row) {
        product.a_scale.row += rows.begin() - first.a.row;
        product.a_scale.rows = rows.size();
      }
      if (!product.bias.empty()) {
        product.bias.col += cols.begin() - first.b.col;
        product.bias.cols = cols.size();
      }
      draft_product(product, q, t, count);
    } else {
      for (std::size_t i = t; i < end; ++i) {
        const Tile& tile = std::get<Tile>(tasks[i].work);
        draft_product({tile.a, tile.b, tile.stores.front().to, 1, 0, 0, bias_of(tile), tile.a_scale}, q, i, 1);
      }
    }
    return end;
  }

  void draft_product(const LibraryProduct& product, int q, std::size_t t, std::size_t tasks) {
    const std::size_t lane = lane_of(q, true);
    if (!lanes_[lane].empty()) {
      Draft& last = drafts_[lanes_[lane].back()];
      if (auto* p = std::get_if<LibraryProduct>(&last.step.work);
          p != nullptr && last.waits == waits_of(task_at(q, t)) && last.signals == signals_of(task_at(q, t)) &&
          extends(*p, product)) {
        if (p->batch == 1) {
          p->a_step = product.a.row - p->a.row;
          p->to_step = product.to.row - p->to.row;
        }
        ++p->batch;
        add_posts(last, q, t, tasks);
        return;
      }
    }
    Draft draft;
    draft.step.work = product;
    add(std::move(draft), q, t, tasks);
  }

  std::size_t lane_of(int q, bool product) {
    const bool aside = rank_plan().queues[index(q)].engine == Engine::compute && !product;
    const auto [entry, fresh] = lane_numbers_.try_emplace({q, aside}, lanes_.size());
    if (fresh) lanes_.emplace_back();
    return entry->second;
  }

  void add_posts(Draft& draft, int q, std::size_t t, std::size_t tasks) const {
    for (std::size_t i = t; i < t + tasks; ++i)
      for (const Post& post : task_at(q, i).posts) {
        IMBREX_EXPECTS(post.rank == rank_, "{}: posts to rank {}; beside library collectives, signals stay on a rank",
                       where(q, i), post.rank);
        ++draft.posts[post.signal];
      }
  }

  void add(Draft draft, int q, std::size_t t, std::size_t tasks) {
    draft.lane = lane_of(q, std::holds_alternative<LibraryProduct>(draft.step.work));
    draft.step.queue = q;
    draft.step.task = t;
    draft.waits = waits_of(task_at(q, t));
    draft.signals = signals_of(task_at(q, t));
    add_posts(draft, q, t, tasks);
    draft.place = lanes_[draft.lane].size();
    lanes_[draft.lane].push_back(drafts_.size());
    drafts_.push_back(std::move(draft));
  }

  // From signals to steps. Posts of one lane arrive in its order; those of several are sure to have come when all have.
  void link() {
    std::vector<std::vector<std::size_t>> posters(index(rank_plan().signals));
    for (std::size_t d = 0; d < drafts_.size(); ++d)
      for (const auto& [signal, count] : drafts_[d].posts) posters[index(signal)].push_back(d);
    for (Draft& draft : drafts_)
      for (const auto& [signal, count] : draft.waits) {
        const auto& all = posters[index(signal)];
        const auto posts = [&, signal = signal](std::uint64_t sum, std::size_t d) {
          return sum + drafts_[d].posts.at(signal);
        };
        const std::uint64_t total = std::accumulate(all.begin(), all.end(), std::uint64_t{0}, posts);
        IMBREX_EXPECTS(count <= total, "{}: waits for {} posts to signal {}, which receives {}",
                       where(draft.step.queue, draft.step.task), count, signal, total);
        const bool one_lane = std::all_of(all.begin(), all.end(),
                                          [&](std::size_t d) { return drafts_[d].lane == drafts_[all.front()].lane; });
        IMBREX_EXPECTS(count == total || one_lane,
                       "{}: waits for {} of {} posts to signal {} that come from several queues; the CUDA executor "
                       "waits for all of them, or for those of one queue",
                       where(draft.step.queue, draft.step.task), count, total, signal);
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < all.size() && sum < count; ++i) {
          sum = posts(sum, all[i]);
          draft.after.push_back(all[i]);
        }
      }
  }

  // Launches steps lane by lane in turn, each after what it waits for: an event counts only once it is recorded, and
  // where the driver has one queue for all streams, nothing may stand before what it waits for.
  void order() {
    number_streams();
    const std::size_t lanes = lanes_.size();
    program_.forked.assign(std::max<std::size_t>(lanes, 1), false);
    std::vector<std::size_t> heads(lanes);
    std::vector<std::vector<std::size_t>> seen(lanes, std::vector<std::size_t>(lanes));
    places_.assign(drafts_.size(), drafts_.size());
    while (program_.steps.size() < drafts_.size()) {
      const std::size_t before = program_.steps.size();
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        if (heads[lane] == lanes_[lane].size()) continue;
        const std::size_t d = lanes_[lane][heads[lane]];
        if (std::any_of(drafts_[d].after.begin(), drafts_[d].after.end(),
                        [&](std::size_t p) { return places_[p] == drafts_.size(); }))
          continue;
        launch(d, seen[lane]);
        ++heads[lane];
      }
      if (program_.steps.size() > before) continue;
      for (std::size_t lane = 0; lane < lanes; ++lane)
        if (heads[lane] < lanes_[lane].size()) {
          const LibraryStep& step = drafts_[lanes_[lane][heads[lane]]].step;
          throw Error(ErrorCode::invalid_input,
                      fmt::format("{}: waits for posts of tasks that come behind it", where(step.queue, step.task)));
        }
    }
    // The last steps first: what they waited for needs no wait of its own.
    std::vector<std::size_t> last;
    for (std::size_t lane = 0; lane < lanes; ++lane)
      if (!lanes_[lane].empty()) last.push_back(lanes_[lane].back());
    std::sort(last.begin(), last.end(), [&](std::size_t x, std::size_t y) { return places_[x] > places_[y]; });
    for (const std::size_t d : last) await(d, main_, seen[main_], program_.ends);
  }

  // Stream 0 is that of the first lane with products, which need no event where nothing else runs beside them.
  void number_streams() {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
      if (std::any_of(lanes_[lane].begin(), lanes_[lane].end(),
                      [&](std::size_t d) { return std::holds_alternative<LibraryProduct>(drafts_[d].step.work); })) {
        main_ = lane;
        return;
      }
  }
  std::size_t stream_of(std::size_t lane) const { return lane == main_ ? 0 : lane < main_ ? lane + 1 : lane; }

  // Makes `lane`, which has `seen` so many steps of every lane end, wait for a draft, unless it has.
  void await(std::size_t d, std::size_t lane, std::vector<std::size_t>& seen, std::vector<std::size_t>& waits) {
    const Draft& other = drafts_[d];
    if (other.lane == lane || seen[other.lane] > other.place) return;
    waits.push_back(places_[d]);
    program_.steps[places_[d]].awaited = true;
    for (std::size_t l = 0; l < seen.size(); ++l) seen[l] = std::max(seen[l], other.seen[l]);
  }

  void launch(std::size_t d, std::vector<std::size_t>& seen) {
    Draft& draft = drafts_[d];
    std::sort(draft.after.begin(), draft.after.end(),
              [&](std::size_t x, std::size_t y) { return places_[x] > places_[y]; });
    for (const std::size_t p : draft.after) await(p, draft.lane, seen, draft.step.waits);
    seen[draft.lane] = draft.place + 1;
    draft.seen = seen;
    draft.step.stream = stream_of(draft.lane);
    if (draft.place == 0 && draft.lane != main_ && draft.step.waits.empty()) program_.forked[draft.step.stream] = true;
    places_[d] = program_.steps.size();
    order_.push_back(d);
    program_.steps.push_back(draft.step);
  }

  // Whether every step begins after the one before it has ended, so that nothing is gained by several streams.
  bool in_turn() const {
    for (std::size_t i = 1; i < order_.size(); ++i) {
      const Draft &before = drafts_[order_[i - 1]], &step = drafts_[order_[i]];
      if (step.seen[before.lane] <= before.place) return false;
    }
    return true;
  }

  void unite_streams() {
    for (LibraryStep& step : program_.steps) {
      step.stream = 0;
      step.waits.clear();
      step.awaited = false;
    }
    program_.ends.clear();
    program_.forked = {false};
  }

  const Plan& plan_;
  int rank_;
  std::vector<Draft> drafts_;
  std::vector<std::vector<std::size_t>> lanes_;               // drafts
  std::map<std::pair<int, bool>, std::size_t> lane_numbers_;  // by queue, and whether beside its tiles
  std::size_t main_ = 0;                                      // lane of stream 0
  std::vector<std::size_t> places_, order_;                   // by draft: its step; the drafts in that order
  LibraryProgram program_;
};

}  // namespace

bool runs_by_libraries(const Plan& plan) {
  if (plan.problem.ranks == 1 && plan.strategy != Strategy::fused) return true;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      if (queue.engine == Engine::library && !queue.tasks.empty()) return true;
  return false;
}

LibraryProgram library_program(const Plan& plan, int rank) { return LibraryTranslation(plan, rank).run(); }

}  // namespace imbrex::cuda
