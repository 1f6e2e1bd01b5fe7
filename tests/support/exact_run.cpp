#include "support/exact_run.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "execute/operands.hpp"
#include "plan/operand_buffers.hpp"
#include "plan/problem.hpp"

namespace imbrex::test {
namespace {

// Small integers multiply and add up exactly in fp32.
float operand(bool a, std::int64_t row, std::int64_t col, std::uint64_t epoch) {
  const auto mix = static_cast<std::uint64_t>(row * 7 + col * 13 + (a ? 3 : 5)) + epoch * 11;
  return static_cast<float>(static_cast<std::int64_t>(mix % 9) - 4);
}

struct Whole {
  const Problem& problem;
  std::uint64_t epoch;
  RankShapes s = shapes_of(problem);  // once: elements are many

  // Element of a rank's operand, by the whole problem's coordinates; several products stand side by side.
  float a(int rank, std::int64_t row, std::int64_t col) const {
    if (problem.op == Operator::all_gather_gemm) return operand(true, rank * s.a.rows + row, col, epoch);
    return operand(true, row, rank * s.depth + col, epoch);
  }
  float b(int rank, std::int64_t row, std::int64_t col, int number = 0) const {
    if (problem.op == Operator::all_gather_gemm)
      return operand(false, row, plan::first_col_of(problem, number, rank) + col, epoch);
    return operand(false, rank * s.depth + row, col, epoch);
  }
  float bias(int rank, std::int64_t col, int number = 0) const {
    if (!problem.bias) return 0;
    if (problem.op == Operator::all_gather_gemm)
      return operand(true, -1, plan::first_col_of(problem, number, rank) + col, epoch);
    return operand(true, problem.op == Operator::gemm_all_to_all ? -1 - rank : -1, col, epoch);
  }
  float product(int rank, std::int64_t row, std::int64_t col) const {
    float sum = 0;
    for (std::int64_t k = 0; k < s.depth; ++k) sum += a(rank, row, k) * b(rank, k, col);
    return sum;
  }
  float gathered(std::int64_t row, std::int64_t col) const {
    const std::int64_t rows = s.a.rows;
    return a(static_cast<int>(row / rows), row % rows, col);
  }
  float out(int rank, std::int64_t row, std::int64_t col, int number) const {
    float sum = problem.op == Operator::gemm_all_to_all ? 0 : bias(rank, col, number);
    switch (problem.op) {
      case Operator::all_gather_gemm:
        for (std::int64_t k = 0; k < s.depth; ++k) sum += gathered(row, k) * b(rank, k, col, number);
        return sum;
      case Operator::gemm_all_to_all: {
        const std::int64_t block = s.out.rows / problem.ranks;
        return product(static_cast<int>(row / block), rank * block + row % block, col) +
               bias(static_cast<int>(row / block), col);
      }
      default:
        for (int source = 0; source < problem.ranks; ++source)
          sum += product(source, problem.op == Operator::gemm_reduce_scatter ? rank * s.out.rows + row : row, col);
        return sum;
    }
  }

  // An element of any operand; of an output what it ought to be.
  float value(const plan::OperandPlace& place, int rank, std::int64_t row, std::int64_t col) const {
    using What = plan::OperandPlace::What;
    switch (place.what) {
      case What::a: return a(rank, row, col);
      case What::b: return b(rank, row, col, place.product);
      case What::bias: return bias(rank, col, place.product);
      case What::gathered: return gathered(row, col);
      default: return out(rank, row, col, place.product);
    }
  }
};

}  // namespace

int run_exact(World& world, const Plan& plan, const CpuOptions& options, int epochs) {
  const auto executor = make_cpu_executor(world, options);
  const auto execution = executor->prepare(plan);
  const Problem& problem = plan.problem;
  // In the order of the plan's buffers.
  const std::vector<Buffer> buffers = plan::operand_buffers(problem);
  std::vector<OperandInfo> infos;
  std::vector<std::vector<float>> memory;
  std::vector<Operand> views;
  execute::OperandRules rules(problem);
  for (const Buffer& b : buffers) {
    const OperandInfo& info = infos.emplace_back(rules.info(b.name));
    memory.emplace_back(info.bytes() / sizeof(float),
                        info.role == OperandRole::input ? std::numeric_limits<float>::quiet_NaN() : -1.0f);
    views.push_back({info.name, info.at(memory.back().data())});
  }
  const Addresses addresses = rules.resolve(views);
  int wrong = 0;
  for (int e = 0; e < epochs; ++e) {
    const Whole whole{problem, static_cast<std::uint64_t>(e)};
    const auto for_each_element = [&](BufferRole role, auto&& f) {
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        const Buffer& b = buffers[i];
        if (b.role != role) continue;
        const plan::OperandPlace place = plan::operand_at(problem, static_cast<int>(i));
        const std::int64_t length = infos[i].length(), pitch = infos[i].pitch == 0 ? length : infos[i].pitch;
        for (std::size_t j = 0; j < memory[i].size(); ++j) {
          const std::int64_t line = static_cast<std::int64_t>(j) / pitch, at = static_cast<std::int64_t>(j) % pitch;
          if (at >= length)
            wrong += role == BufferRole::output ? memory[i][j] != -1.0f : !std::isnan(memory[i][j]);
          else
            f(memory[i][j], b.layout == Layout::column_major ? whole.value(place, world.rank(), at, line)
                                                             : whole.value(place, world.rank(), line, at));
        }
      }
    };
    for_each_element(BufferRole::input, [](float& element, float value) { element = value; });
    execution->run(addresses);
    for_each_element(BufferRole::output, [&](float& element, float value) {
      wrong += element != value;
      element = -1;
    });
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace imbrex::test
