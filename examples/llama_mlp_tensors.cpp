#include "llama_mlp_tensors.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <random>

#include "imbrex/error.hpp"

namespace llama_mlp {
namespace {

using imbrex::Error;
using imbrex::ErrorCode;

std::vector<float> block(const imbrex::NpyFile& file, std::int64_t row, std::int64_t col, std::int64_t rows,
                         std::int64_t cols) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  file.read(row, col, rows, cols, values);
  return values;
}

std::vector<std::uint16_t> narrowed(const std::vector<float>& values) {
  std::vector<std::uint16_t> result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) result[i] = narrow(values[i]);
  return result;
}

}  // namespace

float widen(std::uint16_t bf16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16); }

std::uint16_t narrow(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

Tensors::Tensors(const std::string& folder)
    : x_(folder + "/x.npy"), gate_(folder + "/w_gate.npy"), up_(folder + "/w_up.npy"), down_(folder + "/w_down.npy") {}

std::vector<std::uint16_t> Tensors::x(std::int64_t row, std::int64_t rows) const {
  return narrowed(block(x_, row, 0, rows, x_.header().cols));
}

std::vector<std::uint16_t> Tensors::gate_and_up(std::int64_t col, std::int64_t cols) const {
  const std::int64_t hidden = gate_.header().rows;
  const auto gate = narrowed(block(gate_, 0, col, hidden, cols)), up = narrowed(block(up_, 0, col, hidden, cols));
  std::vector<std::uint16_t> both;
  both.reserve(gate.size() + up.size());
  for (std::int64_t i = 0; i < hidden; ++i) {
    both.insert(both.end(), gate.begin() + i * cols, gate.begin() + (i + 1) * cols);
    both.insert(both.end(), up.begin() + i * cols, up.begin() + (i + 1) * cols);
  }
  return both;
}

std::vector<std::uint16_t> Tensors::down(std::int64_t row, std::int64_t rows) const {
  return narrowed(block(down_, row, 0, rows, down_.header().cols));
}

Sizes sizes_of(const std::string& folder, int ranks) {
  const imbrex::NpyFile x(folder + "/x.npy"), gate(folder + "/w_gate.npy"), up(folder + "/w_up.npy"),
      down(folder + "/w_down.npy");
  const Sizes s{x.header().rows, x.header().cols, gate.header().cols};
  const auto expect = [&](const imbrex::NpyFile& file, std::int64_t rows, std::int64_t cols) {
    if (file.header().rows != rows || file.header().cols != cols)
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} is {} x {}; with {} tokens, hidden {} and inner {} it must be {} x {}", file.path(),
                              file.header().rows, file.header().cols, s.tokens, s.hidden, s.inner, rows, cols));
  };
  expect(gate, s.hidden, s.inner);
  expect(up, s.hidden, s.inner);
  expect(down, s.inner, s.hidden);
  if (s.tokens % ranks != 0 || s.inner % ranks != 0)
    throw Error(ErrorCode::invalid_input,
                fmt::format("{} tokens and {} inner columns must divide by {} ranks", s.tokens, s.inner, ranks));
  return s;
}

void make_tensors(const std::string& folder, const Sizes& s) {
  std::filesystem::create_directories(folder);
  std::mt19937 engine(1);
  const auto make = [&](const char* name, std::int64_t rows, std::int64_t cols, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    for (float& v : values) v = normal(engine);
    imbrex::write_npy(folder + "/" + name, rows, cols, values);
  };
  make("x.npy", s.tokens, s.hidden, 1.0f);
  const float weight = 1 / std::sqrt(static_cast<float>(s.hidden));
  make("w_gate.npy", s.hidden, s.inner, weight);
  make("w_up.npy", s.hidden, s.inner, weight);
  make("w_down.npy", s.inner, s.hidden, 1 / std::sqrt(static_cast<float>(s.inner)));
}

std::vector<std::uint16_t> silu_and_gate(const std::vector<std::uint16_t>& both, std::int64_t rows,
                                         std::int64_t inner) {
  std::vector<std::uint16_t> h(static_cast<std::size_t>(rows * inner));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < inner; ++j) {
      const float gate = widen(both[static_cast<std::size_t>(2 * i * inner + j)]),
                  up = widen(both[static_cast<std::size_t>((2 * i + 1) * inner + j)]);
      h[static_cast<std::size_t>(i * inner + j)] = narrow(gate / (1 + std::exp(-gate)) * up);
    }
  return h;
}

}  // namespace llama_mlp
