// From the operands that a caller names to the addresses that executions take.
#pragma once

#include <array>
#include <vector>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/operands.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::execute {

/// One place for each operand that any problem has.
inline constexpr std::size_t most_operands = 6;

/// What one operator's calls may give. Remembers the operands of the last call, so that the same ones are found right
/// at once.
class OperandRules {
 public:
  explicit OperandRules(const Problem& problem);

  const std::vector<OperandInfo>& infos() const { return infos_; }
  /// `name` is that of one of them.
  const OperandInfo& info(std::string_view name) const { return infos_[place_of(name, 0)]; }

  /// Throws Error(invalid_input) naming operand, value and rule if an operand is missing, unknown or given twice, if
  /// its address is null, or if its type, extents or strides are not those of infos(). Extents of 1 may be left out or
  /// added, and all extents but the last may be split. Keeps nothing of what it refuses.
  Addresses resolve(const Operands& operands);

 private:
  std::size_t place_of(std::string_view name, std::size_t guess) const;

  std::vector<OperandInfo> infos_;
  std::vector<Operand> known_;  // the last call's; names are those of infos_
  Addresses addresses_;
};

}  // namespace imbrex::execute
