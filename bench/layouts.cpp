// What B by columns, N x K as a linear layer's weights lie, costs beside B by rows: the products of a rank of four of
// Llama 2 70B's, Llama 3 8B's and GPT-3's layers on one GPU, by the same plan on the kernels for both layouts, and by
// cuBLASLt, in turn. Prints microseconds, N x K over K x N.
//
//   layouts [ROUNDS]             (default 10)
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "choose/choose_gpu.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "program/measure/operator_of.hpp"
#include "program/measure/random_bytes.hpp"
#include "program/measure/turns.hpp"
#include "program/operand_memory.hpp"
#include "runtime/cuda/survey.hpp"

namespace {

using namespace imbrex;

struct Product {
  std::int64_t n, k;
};

// As bench/model/shapes.py tells them, queries with keys and values, and both halves of a gate, as one.
constexpr Product products[] = {{2560, 8192}, {8192, 2048}, {14336, 8192}, {8192, 7168},  {1536, 4096},
                                {7168, 4096}, {4096, 3584}, {9216, 12288}, {12288, 3072}, {12288, 12288}};
constexpr std::int64_t rows[] = {512, 4096};

int measure(World& world, int rounds) {
  CudaOptions options;
  options.heap_bytes = std::size_t{1} << 26;
  const choose::GpuKind gpus = choose::kind_of(runtime::survey_gpus_here(), 1, false);
  fmt::print("{}, microseconds\n{:>6} {:>6} {:>6}  {:>8} {:>8} {:>6}  {:>8} {:>8} {:>6}  {}\n", gpus.name, "M", "N",
             "K", "KxN", "NxK", "ratio", "cuBLAS", "NxK", "ratio", "kernel of NxK");
  double own = 0, library = 0;
  int count = 0;
  for (const std::int64_t m : rows)
    for (const auto& [n, k] : products) {
      Problem by_rows{Operator::gemm_reduce_scatter, m, n, k, 1, Type::bf16}, by_columns = by_rows;
      by_columns.b_layout = Layout::column_major;
      const plan::Candidate fused = choose::choose_gpu_candidate(by_rows, Strategy::fused, {}, gpus),
                            cublas = choose::choose_gpu_candidate(by_rows, Strategy::sequential, {}, gpus);
      std::vector<std::unique_ptr<GemmOperator>> ways;
      for (const plan::Candidate& way : {fused, cublas})
        for (const Problem& problem : {by_rows, by_columns})
          ways.push_back(program::operator_of(world, problem, way.strategy, way.knobs, options));
      const auto memory = program::device_operands(
          {program::random_bytes(m * k, by_rows.type, 1), program::random_bytes(k * n, by_rows.type, 2)}, by_rows,
          ways.front()->allocate_output());
      // The same bytes, as B by rows and by columns.
      std::vector<std::vector<Operand>> operands;
      for (const auto& op : ways) operands.push_back(program::operands_for(*op, *memory));
      const std::vector<double> times =
          program::timed_in_turn(ways.size(), rounds, [&](std::size_t i) { return ways[i]->time(operands[i], 8); });
      fmt::print("{:6} {:6} {:6}  {:8.1f} {:8.1f} {:6.3f}  {:8.1f} {:8.1f} {:6.3f}  {}\n", m, n, k, times[0] * 1e6,
                 times[1] * 1e6, times[1] / times[0], times[2] * 1e6, times[3] * 1e6, times[3] / times[2],
                 ways[1]->kernel_name());
      own += std::log(times[1] / times[0]);
      library += std::log(times[3] / times[2]);
      ++count;
    }
  fmt::print("geometric means of NxK / KxN: {:.4f}, by cuBLASLt {:.4f}\n", std::exp(own / count),
             std::exp(library / count));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
    return run_threads(1, {.heap_bytes = 1 << 20, .wait_limit = 60},
                       [&](World& world) { return measure(world, rounds); });
  } catch (const Error& error) {
    fmt::print(stderr, "layouts: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
