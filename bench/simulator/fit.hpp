// Predicting one measured row, and choosing constants by rows.
#pragma once

#include <string>
#include <vector>

#include "imbrex/execute.hpp"

namespace imbrex::bench {

struct Row {
  Problem problem;
  std::string net;
  bool fit = false;                              ///< belongs to the half that constants are chosen by
  double gemm = 0, library = 0, sequential = 0;  ///< measured seconds; library 0: not measured apart
};

struct Prediction {
  std::int64_t tile_m = 0, tile_n = 0;  ///< the tile shape that was predicted fastest, as cuBLAS would choose one
  double gemm = 0, seconds = 0;
};

Prediction predict(const Row& row, const Machine& machine);

/// `machine` with its GEMM constants and the all-gather and reduce-scatter curves chosen by the rows marked `fit`.
Machine fit(const std::vector<Row>& rows, Machine machine);

}  // namespace imbrex::bench
