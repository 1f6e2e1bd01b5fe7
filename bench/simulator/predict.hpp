// Predicting one measured row.
#pragma once

#include <string>
#include <vector>

#include "imbrex/advanced/execute.hpp"

namespace imbrex::bench {

struct Row {
  Problem problem;
  std::string net;
  double gemm = 0, sequential = 0;  ///< measured seconds
};

struct Prediction {
  std::int64_t tile_m = 0, tile_n = 0;  ///< the tile shape that was predicted fastest, as cuBLAS would choose one
  double gemm = 0, seconds = 0;
};

Prediction predict(const Row& row, const Machine& machine);

}  // namespace imbrex::bench
