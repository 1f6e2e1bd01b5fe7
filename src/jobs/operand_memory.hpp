// One rank's operands in the memory that its executor works on.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "imbrex/advanced/execute.hpp"

namespace imbrex::jobs {

class OperandMemory {
 public:
  virtual ~OperandMemory() = default;

  virtual Addresses operands() = 0;
  /// Overwrites the output, so that an element that no task writes does not pass for an earlier run's.
  virtual void poison() = 0;
  /// The output, in host memory; valid until the next call of either.
  virtual const std::vector<std::byte>& output() = 0;
};

/// One rank's operands in host memory; what is empty is not given.
struct HostValues {
  std::vector<std::byte> a, b, bias{};
  std::vector<float> a_scale{}, b_scale{};
};

/// In host memory.
std::unique_ptr<OperandMemory> host_operands(HostValues values, std::size_t out_bytes);

/// In the memory of the calling thread's GPU, the output where peers can write it. Collective; to be dropped before the
/// executor.
std::unique_ptr<OperandMemory> device_operands(const HostValues& values, std::size_t out_bytes, Executor& executor);

}  // namespace imbrex::jobs
