// From the operands that a caller names to the addresses that executions take.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "execute/lines.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/operands.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::execute {

/// One place for each operand that any problem has.
inline constexpr std::size_t most_operands = 11;

/// What one operator's calls may give. Remembers the operands of the last call, so that the same ones are found right
/// at once.
class OperandRules {
 public:
  /// With `any_m`, calls have any M from 1 to the problem's, by which it divides by the ranks where theirs must.
  explicit OperandRules(const Problem& problem, bool any_m = false);

  /// With any M: of the largest.
  const std::vector<OperandInfo>& infos() const { return infos_; }
  /// `name` is that of one of them.
  const OperandInfo& info(std::string_view name) const { return infos_[place_of(name, 0)]; }
  /// The operand in a call of that M. Throws Error(invalid_input) if there are no calls of that M.
  OperandInfo info(std::string_view name, std::int64_t m) const;

  /// Throws Error(invalid_input) naming operand, value and rule if an operand is missing, unknown or given twice, if
  /// its address is null, or if its type, extents or strides are not those of infos(). Extents of 1 may be left out or
  /// added, and all extents but the last may be split. With any M, the rows of "a" say which it is. Keeps nothing of
  /// what it refuses.
  ///
  /// An output that has a byte in common with another operand is refused, too, except "a" of an all-gather at the
  /// place of a rank's rows of an output: see in_place. It need not be this rank's place, so that ranks that are told
  /// alike are refused alike.
  Addresses resolve(const Operands& operands);

  /// M of the call that was resolved last.
  std::int64_t m() const { return m_; }
  /// Whether its "a" lies in an output. Its rows are to be read from elsewhere then: Addresses::aside has all but the
  /// memory, which takes info("a").bytes() at most.
  bool in_place() const { return addresses_.aside.rows != 0; }

 private:
  std::size_t place_of(std::string_view name, std::size_t guess) const;
  // By its rows.
  std::int64_t m_of(const View& a) const;
  // The view that says so, if one does.
  void expect_m(std::int64_t m, const OperandInfo& info, const View* view) const;
  // At `place`, in a call of that M.
  OperandInfo info_at(std::size_t place, std::int64_t m) const;
  void lay_lines(std::int64_t m);
  // Looks at the operands found, which fit. Returns whether "a" lies in an output.
  bool expect_apart(std::int64_t m);

  Problem problem_;
  bool any_m_;
  std::vector<OperandInfo> infos_;
  std::vector<std::int64_t> m_per_row_;  // by operand; 0: its rows do not depend on M
  std::vector<Operand> known_, found_;   // the last call's, and memory for the next one's; names are those of infos_
  Addresses addresses_;
  std::int64_t m_;

  // What a call of `lines_m_` touches, by operand, and where "a" may lie in an output.
  struct Output {
    std::size_t place = 0;    // among the operands
    std::uintptr_t part = 0;  // bytes from one rank's rows to the next's
    bool takes_a = false;     // "a" may be such rows
  };
  std::vector<Lines> lines_;
  std::vector<Output> outputs_;
  std::int64_t lines_m_ = -1;
};

}  // namespace imbrex::execute
