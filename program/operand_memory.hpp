// One rank's operands in the memory that its executor works on.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/operands.hpp"

namespace imbrex::program {

class OperandMemory {
 public:
  explicit OperandMemory(const Problem& problem) : problem_(problem) {}
  virtual ~OperandMemory() = default;

  virtual Addresses operands() = 0;
  /// What operands() has, as operators take it.
  std::vector<Operand> named();
  /// Overwrites the outputs, so that an element that no task writes does not pass for an earlier run's.
  virtual void poison() = 0;
  /// An output, by its place in outputs_of, in host memory, with what is between its rows; valid until the next call of
  /// either.
  virtual const std::vector<std::byte>& output(std::size_t place = 0) = 0;

 private:
  Problem problem_;
};

/// One rank's inputs in host memory, without gaps; what is empty is not given.
struct HostValues {
  std::vector<std::byte> a, b, bias{};
  std::vector<float> a_scale{}, b_scale{};
  struct Further {
    std::vector<std::byte> b, bias;
  };
  std::array<Further, max_products - 1> more{};
};

/// A rank's outputs: "out" comes first, then those of further B, then the gathered A.
std::vector<OperandInfo> outputs_of(const Problem& problem);

/// The elements of an operand as `info` says that it lies, with poison between its rows.
std::vector<std::byte> with_gaps(const OperandInfo& info, std::vector<std::byte> values);
/// The elements of an operand that lies as `info` says, without what is between its rows.
std::vector<std::byte> without_gaps(const OperandInfo& info, const std::vector<std::byte>& operand);
/// Whether what is between them is as poison() left it.
bool gaps_are_poison(const OperandInfo& info, const std::vector<std::byte>& operand);

/// In host memory. Here and below, gaps of inputs hold what makes a result that reads them wrong.
std::unique_ptr<OperandMemory> host_operands(HostValues values, const Problem& problem);

/// In the memory of the calling thread's GPU, the first output in `out`, which allocate_output gave.
std::unique_ptr<OperandMemory> device_operands(const HostValues& values, const Problem& problem,
                                               std::shared_ptr<void> out);

}  // namespace imbrex::program
