// What every buffer of a plan holds, as far as it has been followed: who has written which rectangle, with what, and
// whether who reads it comes behind. The first fault is thrown.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/check/blocks.hpp"
#include "plan/check/graph.hpp"
#include "plan/check/writes.hpp"

namespace imbrex::plan {

struct RefusedFlow {
  Finding finding;
};

class Contents {
 public:
  /// Takes all writes of the plan's tasks, and what the caller's inputs hold.
  Contents(const Plan& plan, Graph& graph, Sums& sums);

  [[noreturn]] void refuse(Fault fault, TaskId task, const std::string& text) const {
    throw RefusedFlow{graph_.finding(fault, task, text)};
  }

  /// The plan's first buffers, by their own names.
  const std::vector<Buffer>& operands() const { return operands_; }
  const Buffer& buffer(const Region& region) const { return plan_.buffers[static_cast<std::size_t>(region.buffer)]; }
  WriteIndex& index_of(int rank, int buffer) {
    return index_[static_cast<std::size_t>(rank) * plan_.buffers.size() + static_cast<std::size_t>(buffer)];
  }
  std::string text(const Region& r) const;

  /// Says what a task has left in `region`, one of its writes.
  void store(const Region& region, const Value& value);
  /// Stores to a region whose parts hold different values.
  void store(const Region& region, std::vector<Piece> pieces);

  /// What `region` holds, one value, when `id` reads it: `moment_of` says when what a write to a region has left is
  /// read; `at_load` whether all of it is read at the task's load point, or at its end.
  template <typename MomentOf>
  Value read_at(TaskId id, const Region& region, bool at_load, MomentOf&& moment_of) {
    check_caller_memory(id, region, at_load ? graph_.entered_at_load(id) : graph_.entered_at_end(id), "reads");
    if (buffer(region).role == BufferRole::input) return input(region);
    std::optional<Value> value;
    std::int64_t area = 0;
    index_of(region.rank, region.buffer).for_each_overlap(region, [&](const Write& write) {
      check_order(id, region, write, moment_of(write.region));
      for_each_piece(write, region, [&](const Region& piece, const Value& held) {
        if (value && !(*value == held))
          refuse(Fault::coverage, id, fmt::format("reads {}, whose parts do not belong together", text(region)));
        value = held;
        area += piece.rows * piece.cols;
      });
    });
    check_all_written(id, region, area);
    return *value;
  }

  /// What a collective takes, of its own rank's memory: it carries along whatever its rows hold, one value or a piece
  /// each, and, after a row's last one, elements that were not written.
  std::vector<Piece> pieces_of(TaskId id, const Region& region);

  /// A read that a later epoch's write may meet.
  const std::optional<Finding>& reuse() const { return reuse_; }

 private:
  void collect_writes();
  const Value& input(const Region& region) const {
    return inputs_[static_cast<std::size_t>(region.rank) * operands_.size() + static_cast<std::size_t>(region.buffer)];
  }
  std::string name(TaskId id) const;
  void check_caller_memory(TaskId id, const Region& region, RankMask entered, const char* verb) const;
  void check_order(TaskId id, const Region& region, const Write& write, Moment moment);
  void check_all_written(TaskId id, const Region& region, std::int64_t area) const;
  template <typename F>
  void for_each_written(TaskId id, F&& f) const;

  const Plan& plan_;
  Graph& graph_;
  std::vector<Buffer> operands_;
  std::vector<Value> inputs_;  // by rank and operand
  std::vector<WriteIndex> index_;
  Shares shares_;
  std::optional<Finding> reuse_;
};

/// Calls f(a, to) for the products of a batch.
template <typename F>
void for_each_of(const Product& product, F&& f) {
  Region a = product.a, to = product.to;
  for (int i = 0; i < product.batch; ++i) {
    f(a, to);
    a.row += product.a_step;
    to.row += product.to_step;
  }
}

}  // namespace imbrex::plan
