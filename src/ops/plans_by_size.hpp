// The executions of an operator that takes any M: one for each M met lately.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "imbrex/advanced/execute.hpp"

namespace imbrex::ops {

/// Makes executions as calls ask for them and keeps the last ones, without asking the other ranks. The ranks' calls are
/// the same, so each keeps the same.
class PlansBySize {
 public:
  using Make = std::function<std::shared_ptr<Execution>(std::int64_t m)>;

  /// A call of another M drops the one whose last call is longest ago.
  static constexpr std::size_t most_kept = 32;

  explicit PlansBySize(Make make, std::size_t most = most_kept) : make_(std::move(make)), most_(most) {}

  /// Until the next call. Throws what `make` throws, and keeps what it had.
  Execution& at(std::int64_t m);

  /// The one used last; null where none is kept.
  Execution* last() const { return kept_.empty() ? nullptr : kept_.front().execution.get(); }

  /// Keeps none any more; calls make them anew.
  void clear() { kept_.clear(); }

  /// Whether it is kept.
  bool has(std::int64_t m) const;

 private:
  struct Kept {
    std::int64_t m = 0;
    std::shared_ptr<Execution> execution;
  };

  Make make_;
  std::size_t most_;
  std::vector<Kept> kept_;  // the last one used first
};

}  // namespace imbrex::ops
