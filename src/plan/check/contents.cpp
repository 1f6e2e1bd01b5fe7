#include "plan/check/contents.hpp"

#include <algorithm>

#include "base/narrow.hpp"
#include "plan/operand_buffers.hpp"

namespace imbrex::plan {
namespace {

template <typename F>
void for_each_writer(const Write& write, F&& f) {
  f(write.task);
  for (const TaskId task : write.beside) f(task);
}

// Rows in which some piece lies.
std::int64_t count_rows(const std::vector<Piece>& pieces) {
  std::vector<std::pair<std::int64_t, std::int64_t>> stretches;
  for (const Piece& piece : pieces) stretches.emplace_back(piece.region.row, piece.region.row + piece.region.rows);
  std::sort(stretches.begin(), stretches.end());
  std::int64_t rows = 0, end = 0;
  for (const auto& [first, last] : stretches) {
    rows += std::max<std::int64_t>(0, last - std::max(first, end));
    end = std::max(end, last);
  }
  return rows;
}

}  // namespace

Contents::Contents(const Plan& plan, Graph& graph, Sums& sums)
    : plan_(plan),
      graph_(graph),
      operands_(operand_buffers(plan.problem)),
      index_(plan.ranks.size() * plan.buffers.size()) {
  const problem::OperatorDescriptor& op = problem::descriptor_of(plan.problem.op);
  for (int rank = 0; rank < plan.problem.ranks; ++rank)
    for (const Buffer& b : operands_)
      inputs_.push_back(b.role == BufferRole::input ? value_of(op.input(plan.problem, rank, b.name), sums) : Value{});
  if (auto finding = find_shares(plan_, graph_, shares_)) throw RefusedFlow{*std::move(finding)};
  collect_writes();
}

std::string Contents::text(const Region& r) const {
  return fmt::format("rows {}+{} cols {}+{} of {} on rank {}", r.row, r.rows, r.col, r.cols, buffer(r).name, r.rank);
}

std::string Contents::name(TaskId id) const {
  const TaskNode& node = graph_.nodes()[id];
  return task_name(plan_, node.rank, node.queue, node.index);
}

void Contents::collect_writes() {
  for (TaskId id = 0; id < graph_.nodes().size(); ++id) {
    std::vector<TaskId> beside;
    if (const auto found = shares_.find(id); found != shares_.end()) {
      if (found->second.front() != id) continue;  // the first share's write is all of theirs
      beside.assign(found->second.begin() + 1, found->second.end());
    }
    for_each_written(id, [&](const Region& region) {
      index_of(region.rank, region.buffer).add({region, id, {}, {}, 0, beside});
    });
  }
  for (int rank = 0; rank < plan_.problem.ranks; ++rank)
    for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
      WriteIndex& index = index_of(rank, base::narrow<int>(b, "buffers"));
      if (const auto both = index.build(plan_.buffers[b])) {
        const auto& [later, earlier] = *both;
        refuse(Fault::coverage, later.task,
               fmt::format("writes {}, which {} writes too", text(later.region), name(earlier.task)));
      }
      for (const Write& write : index.writes())
        for_each_writer(write, [&](TaskId task) {
          check_caller_memory(task, write.region, graph_.entered_at_end(task), "writes");
        });
    }
}

// The caller may touch its memory until its rank enters the epoch and again when its rank has left it.
void Contents::check_caller_memory(TaskId id, const Region& region, RankMask entered, const char* verb) const {
  if (buffer(region).role == BufferRole::workspace || region.rank == graph_.nodes()[id].rank) return;
  if ((entered & bit(region.rank)) == 0)
    refuse(Fault::race, id,
           fmt::format("{} {} before that rank is known to have entered the epoch", verb, text(region)));
  if ((graph_.holds(id) & bit(region.rank)) == 0)
    refuse(Fault::race, id,
           fmt::format("{} {}, and that rank may leave the epoch before it is done", verb, text(region)));
}

template <typename F>
void Contents::for_each_written(TaskId id, F&& f) const {
  const auto& work = graph_.nodes()[id].task->work;
  if (const auto* tile = std::get_if<Tile>(&work))
    for (const Store& store : tile->stores) f(store.to);
  else if (const auto* transfer = std::get_if<Transfer>(&work)) {
    if (!transfer->to.empty()) f(transfer->to);
  } else if (const auto* reduction = std::get_if<Reduction>(&work))
    for (const Region& to : reduction->to) f(to);
  else if (const auto* product = std::get_if<Product>(&work))
    for_each_of(*product, [&](const Region&, const Region& to) { f(to); });
  else if (const auto* block = std::get_if<Block>(&work))
    for (const Store& s : block->stores) f(s.to);
  else {
    const auto& c = std::get<Collective>(work);
    // Parts from different ranks have different values, and so are writes of their own.
    const bool by_rank = c.kind == CollectiveKind::all_gather || c.kind == CollectiveKind::all_to_all;
    const std::int64_t h = by_rank ? c.to.rows / std::ssize(ranks_of(c, plan_)) : c.to.rows;
    for (std::int64_t row = 0; row < c.to.rows; row += h)
      f(Region{c.to.rank, c.to.buffer, c.to.row + row, 0, h, c.to.cols});
  }
}

void Contents::store(const Region& region, const Value& value) {
  index_of(region.rank, region.buffer).for_each_overlap(region, [&](Write& write) { write.value = value; });
}

void Contents::store(const Region& region, std::vector<Piece> pieces) {
  if (pieces.size() == 1 && pieces.front().region == region) return store(region, pieces.front().value);
  std::sort(pieces.begin(), pieces.end(), [](const Piece& x, const Piece& y) {
    return std::pair(x.region.row, x.region.col) < std::pair(y.region.row, y.region.col);
  });
  std::int64_t tallest = 0;
  for (const Piece& piece : pieces) tallest = std::max(tallest, piece.region.rows);
  index_of(region.rank, region.buffer).for_each_overlap(region, [&](Write& write) {
    write.pieces = pieces;
    write.tallest = tallest;
  });
}

void Contents::check_order(TaskId id, const Region& region, const Write& write, Moment moment) {
  if (std::holds_alternative<Collective>(graph_.nodes()[id].task->work)) moment = {false, 0};
  const int copies = buffer(region).copies;
  for_each_writer(write, [&](TaskId writer) {
    if (writer == id || !graph_.ordered(writer, id, moment))
      refuse(Fault::race, id, fmt::format("may read {} before {} has written it", text(region), name(writer)));
    if (!reuse_ && !graph_.ordered_across(id, writer, copies))
      reuse_ = graph_.finding(Fault::reuse, id,
                              fmt::format("may still read {} of epoch e when {} writes it in epoch e+{}", text(region),
                                          name(writer), copies));
  });
}

void Contents::check_all_written(TaskId id, const Region& region, std::int64_t area) const {
  if (area != region.rows * region.cols)
    refuse(Fault::coverage, id,
           fmt::format("reads {}, of which {} elements are never written", text(region),
                       region.rows * region.cols - area));
}

std::vector<Piece> Contents::pieces_of(TaskId id, const Region& region) {
  if (buffer(region).role == BufferRole::input) return {{region, input(region)}};
  std::vector<Piece> pieces;
  std::int64_t area = 0;
  bool same = true;
  index_of(region.rank, region.buffer).for_each_overlap(region, [&](const Write& write) {
    check_order(id, region, write, {});
    for_each_piece(write, region, [&](const Region& piece, const Value& value) {
      area += piece.rows * piece.cols;
      same = same && (pieces.empty() || pieces.front().value == value);
      pieces.push_back({piece, value});
    });
  });
  if (area == region.rows * region.cols && same) return {{region, pieces.front().value}};
  if (count_rows(pieces) != region.rows) check_all_written(id, region, area);
  return pieces;
}

}  // namespace imbrex::plan
