// The demo's tensors: made once, written and read as .npy, cut into ranks' parts, rounded to bf16.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "imbrex/npy.hpp"

namespace llama_mlp {

struct Sizes {
  std::int64_t tokens = 0, hidden = 0, inner = 0;
};

/// x: tokens x hidden, w_gate and w_up: hidden x inner, w_down: inner x hidden, in one folder.
class Tensors {
 public:
  explicit Tensors(const std::string& folder);

  /// Rows of x; bf16.
  std::vector<std::uint16_t> x(std::int64_t row, std::int64_t rows) const;
  /// Columns `col` to `col + cols` of w_gate and of w_up, side by side.
  std::vector<std::uint16_t> gate_and_up(std::int64_t col, std::int64_t cols) const;
  /// Rows of w_down.
  std::vector<std::uint16_t> down(std::int64_t row, std::int64_t rows) const;

 private:
  imbrex::NpyFile x_, gate_, up_, down_;
};

/// Checks the files' shapes against each other and the number of ranks.
Sizes sizes_of(const std::string& folder, int ranks);

/// Writes random tensors of a trained layer's scale.
void make_tensors(const std::string& folder, const Sizes& sizes);

/// h = SiLU(gate) * up, where each row of `both` holds `inner` columns of gate, then of up.
std::vector<std::uint16_t> silu_and_gate(const std::vector<std::uint16_t>& both, std::int64_t rows, std::int64_t inner);

float widen(std::uint16_t bf16);
std::uint16_t narrow(float value);

}  // namespace llama_mlp
