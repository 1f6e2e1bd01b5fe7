#include "imbrex/execute.hpp"

namespace imbrex {

double Execution::time(const Operands& operands, int runs) {
  double seconds = 0;
  for (int i = 0; i < runs; ++i) seconds += run(operands).seconds;
  return seconds / runs;
}

}  // namespace imbrex
