#include "execute/cuda/stream_execution.hpp"

#include <chrono>

namespace imbrex::cuda {

Report StreamExecution::run(const Operands& operands) {
  const auto begin = std::chrono::steady_clock::now();
  enqueue(operands);
  finish();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), {}};
}

}  // namespace imbrex::cuda
