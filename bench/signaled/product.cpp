// What signals cost a product: its tiles lie packed and post to their groups' signals, on the SMs that are not kept
// free; beside the plain kernel on as many SMs, whose output lies in rows, and cuBLASLt's product on all, in turn. A
// shape that is above 1.03 is measured three times more, and the median stands.
//
//   signaled_product [JSON [ROUNDS]]       (default 5 rounds)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "choose/choose_gpu.hpp"
#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/world.hpp"
#include "program/measure/operator_of.hpp"
#include "program/measure/random_bytes.hpp"
#include "program/measure/turns.hpp"
#include "program/operand_memory.hpp"
#include "runtime/cuda/survey.hpp"
#include "signaled/plans.hpp"

namespace {

using namespace imbrex;

struct Shape {
  std::int64_t m, n, k;
};

// A rank's products of row-parallel layers: Llama 3 8B's and 70B's, Llama 2 70B's, GPT-3's, over four ranks.
constexpr Shape layers[] = {{0, 4096, 3584}, {0, 8192, 2048}, {0, 8192, 7168}, {0, 12288, 3072}};
constexpr std::int64_t rows[] = {1024, 2048, 4096, 8192, 16384};
constexpr int kept_free = 16, groups = 4, runs = 6;

Knobs knobs_for(const Problem& problem, const choose::GpuKind& gpus) {
  Knobs knobs = choose::choose_gpu_candidate(problem, Strategy::fused, {}, gpus).knobs;
  if (problem.n % knobs.tile_n != 0) knobs.tile_m = knobs.tile_n = 128;
  // What signaled plans take of it.
  Knobs tiles{.tile_m = knobs.tile_m, .tile_n = knobs.tile_n, .cluster = knobs.cluster, .group = knobs.group};
  tiles.partial = problem.type;
  tiles.packed = true;
  tiles.kept_free = kept_free;
  return tiles;
}

std::vector<std::int64_t> equal_groups(std::int64_t tiles) {
  std::vector<std::int64_t> sizes;
  for (int g = 0; g < groups; ++g) sizes.push_back(tiles * (g + 1) / groups - tiles * g / groups);
  std::erase(sizes, 0);
  return sizes;
}

int measure(World& world, const std::string& json, int rounds) {
  CudaOptions options;
  options.heap_bytes = std::size_t{1} << 30;
  const choose::GpuKind gpus = choose::kind_of(runtime::survey_gpus_here(), 1, false);
  nlohmann::json all = nlohmann::json::array();
  fmt::print("{}, microseconds, {} SMs kept free\n{:>5} {:>6} {:>6} {:>6} {:>9}  {:>9} {:>9} {:>9}  {:>7} {:>7}\n",
             gpus.name, kept_free, "type", "M", "N", "K", "tile", "signals", "plain", "cuBLAS", "/plain", "/cuBLAS");
  double sum = 0;
  for (const Type type : {Type::fp16, Type::bf16})
    for (const std::int64_t m : rows)
      for (const Shape& layer : layers) {
        const Problem problem{Operator::gemm_all_reduce, m, layer.n, layer.k, 1, type};
        const bench::SignaledProduct product{problem, knobs_for(problem, gpus), kept_free};
        std::vector<std::unique_ptr<GemmOperator>> ways;
        const auto run = [&](Plan plan) { ways.push_back(program::operator_of(world, std::move(plan), options)); };
        run(bench::with_signals(product, equal_groups(product.tiles())));
        run(bench::alone(product));
        const plan::Candidate cublas = choose::choose_gpu_candidate(problem, Strategy::sequential, {}, gpus);
        run(make_plan(problem, cublas.strategy, cublas.knobs));
        const auto memory = program::device_operands(
            {program::random_bytes(m * layer.k, type, 1), program::random_bytes(layer.k * layer.n, type, 2)}, problem,
            ways[1]->allocate_output());
        std::vector<std::vector<Operand>> operands;
        for (const auto& op : ways) operands.push_back(program::operands_for(*op, *memory));
        const auto times = [&] {
          return program::timed_in_turn(ways.size(), rounds,
                                        [&](std::size_t i) { return ways[i]->time(operands[i], runs); });
        };
        std::vector<double> t = times();
        double ratio = t[0] / t[1];
        nlohmann::json again = nlohmann::json::array();
        if (ratio > 1.03) {
          std::vector<double> ratios{ratio};
          for (int i = 0; i < 3; ++i) {
            const std::vector<double> more = times();
            ratios.push_back(more[0] / more[1]);
          }
          again = ratios;
          std::sort(ratios.begin(), ratios.end());
          ratio = (ratios[1] + ratios[2]) / 2;
        }
        sum += std::log(ratio);
        all.push_back({{"type", name_of(type)},
                       {"m", m},
                       {"n", layer.n},
                       {"k", layer.k},
                       {"tile_m", product.knobs.tile_m},
                       {"tile_n", product.knobs.tile_n},
                       {"kernel", ways[0]->kernel_name()},
                       {"microseconds", {{"signals", t[0] * 1e6}, {"plain", t[1] * 1e6}, {"cublas", t[2] * 1e6}}},
                       {"ratio", ratio},
                       {"ratios", again}});
        fmt::print("{:>5} {:6} {:6} {:6} {:>9}  {:9.1f} {:9.1f} {:9.1f}  {:7.3f} {:7.3f}\n", name_of(type), m, layer.n,
                   layer.k, fmt::format("{}x{}", product.knobs.tile_m, product.knobs.tile_n), t[0] * 1e6, t[1] * 1e6,
                   t[2] * 1e6, ratio, t[0] / t[2]);
      }
  const double mean = std::exp(sum / static_cast<double>(all.size()));
  fmt::print("geometric mean of signals / plain: {:.4f}\n", mean);
  if (!json.empty())
    write_file(
        json,
        nlohmann::json{{"gpu", gpus.name}, {"kept_free", kept_free}, {"mean", mean}, {"rows", all}}.dump(1) + "\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string json = argc > 1 ? argv[1] : "";
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
    return run_threads(1, {.heap_bytes = 1 << 20, .wait_limit = 60},
                       [&](World& world) { return measure(world, json, rounds); });
  } catch (const Error& error) {
    fmt::print(stderr, "signaled_product: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
