// The executions of an operator that takes any M: one for each M met lately.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "imbrex/advanced/execute.hpp"

namespace imbrex::ops {

/// Bytes that the tables of a plan for M rows take of a GPU, about: the same on every rank, whose tables differ a
/// little.
std::size_t table_bytes_of(const Problem& problem, std::int64_t m);

/// The tables of all plans that are kept, over all operators of a world, take so much and two plans of the largest M of
/// each.
inline constexpr std::size_t spare_table_bytes = std::size_t{4} << 20;

/// The M whose plans say how much memory the plans of all M up to the largest take: other plans serve fewer rows, and
/// may take more. From the largest down.
std::vector<std::int64_t> sizes_to_survey(const Problem& largest);

/// Makes executions as calls ask for them and keeps the last ones, without asking the other ranks. The ranks' calls are
/// the same, so each keeps the same.
class PlansBySize {
 public:
  using Make = std::function<std::shared_ptr<Execution>(std::int64_t m)>;

  /// A call of another M drops the one whose last call is longest ago.
  static constexpr std::size_t most_kept = 32;

  /// `clock`: counts the calls of all that share it; it outlives this.
  explicit PlansBySize(Make make, std::size_t most = most_kept, std::uint64_t* clock = nullptr)
      : make_(std::move(make)), most_(most), clock_(clock) {}

  /// Until the next call. Throws what `make` throws, and keeps what it had.
  Execution& at(std::int64_t m);

  /// The one used last; null where none is kept.
  Execution* last() const { return kept_.empty() ? nullptr : kept_.front().execution.get(); }

  /// The M whose last call is longest ago, and when that was, by the clock; nothing where none is kept.
  struct Oldest {
    std::int64_t m = 0;
    std::uint64_t called = 0;
  };
  std::optional<Oldest> oldest() const {
    if (kept_.empty()) return std::nullopt;
    return Oldest{kept_.back().m, kept_.back().called};
  }
  void drop_oldest() { kept_.pop_back(); }

  /// f(m) for all that are kept.
  template <typename F>
  void for_each(F&& f) const {
    for (const Kept& kept : kept_) f(kept.m);
  }

  /// Keeps none any more; calls make them anew.
  void clear() { kept_.clear(); }

  /// Whether it is kept.
  bool has(std::int64_t m) const;

 private:
  struct Kept {
    std::int64_t m = 0;
    std::shared_ptr<Execution> execution;
    std::uint64_t called = 0;
  };

  Make make_;
  std::size_t most_;
  std::uint64_t* clock_;
  std::vector<Kept> kept_;  // the last one used first
};

}  // namespace imbrex::ops
