#include "imbrex/execute.hpp"

namespace imbrex {

double Execution::time(const Operands& operands, int runs) {
  double seconds = 0;
  for (int i = 0; i < runs; ++i) seconds += run(operands).seconds;
  return seconds / runs;
}

std::shared_ptr<void> Executor::allocate_output(std::size_t) { return nullptr; }

}  // namespace imbrex
