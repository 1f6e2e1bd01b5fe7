// What must be known of all of a plan's tasks before the first one is translated.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "execute/layout.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::cuda {

/// How many tiles a rank computes.
struct TileCounts {
  std::size_t all = 0;
  std::size_t alone = 0;  ///< those without a mate

  bool operator==(const TileCounts&) const = default;
};

class TableSurvey {
 public:
  /// For the tables of `rank`; tasks come one by one, those of other ranks, too. `frame` outlives the survey.
  TableSurvey(const Plan& frame, int rank);
  void add(const plan::TaskPlace& place, const Task& task);

  /// Entries of the tables, without idle mates.
  struct Sizes {
    std::size_t tasks = 0, waits = 0, regions = 0, posts = 0;
  };
  const Sizes& sizes() const { return sizes_; }

  /// The rank's own.
  const TileCounts& tiles() const { return tiles_; }
  int rank() const { return rank_; }
  /// Whether copy engines run some of them.
  bool copies() const { return copies_; }

  /// Over all ranks whose tasks have come.
  Extent largest_tile() const { return largest_; }

  /// Whether every tile multiplies all of its rank's K.
  bool whole_depth() const { return whole_depth_; }

  /// How pairs of the rank's workers share operands: one way in all of its compute queues that have tasks. Throws
  /// Error(invalid_input) where there are several.
  ClusterMode cluster() const;

  /// SMs that the rank's library queues keep free.
  int kept_free() const;

  /// What keeps the TMA from loading the problem's operands, or tiles of them; empty if nothing does.
  std::string refusal_of_tma() const;

 private:
  const Plan* plan_;
  int rank_;
  std::span<const Queue> queues_;  // of the rank
  std::int64_t column_step_;       // at which loads of B can begin: a power of two
  std::int64_t depth_;             // of a rank's product
  Sizes sizes_;
  TileCounts tiles_;
  bool copies_ = false;
  Extent largest_;
  bool whole_depth_ = true;
  std::int64_t odd_column_ = 0;  // the first one at which loads cannot begin
};

/// What one way through a plan's tasks tells.
struct Surveyed {
  execute::HeapLayout layout;
  TableSurvey tables;
};

/// For the tables of `rank`. Throws Error(invalid_input) where the plan breaks a rule of check_format; of tasks that a
/// strategy makes only the frame is checked.
Surveyed survey(plan::TaskStream& tasks, int rank);

/// The survey of a plan that has its tasks.
TableSurvey survey_of(const Plan& plan, int rank);

/// Rank 0's tiles, as any rank comes to know them: those of `tasks`, of a rank that was surveyed, or, where ranks are
/// not alike, of the tasks that `leading` makes, rank 0's.
TileCounts leading_tiles(const plan::TaskStream& tasks, const TableSurvey& survey,
                         const std::function<std::unique_ptr<plan::TaskStream>()>& leading);

Extent largest_tile(const Plan& plan);

/// Columns of B at multiples of which a tile of the tensor-core kernels may begin: a power of two.
std::int64_t column_step(const Problem& problem);

/// As TableSurvey's, of the problem's operands alone, and of a plan that has its tasks.
std::string refusal_of_tma(const Problem& problem);
std::string refusal_of_tma(const Plan& plan);

}  // namespace imbrex::cuda
