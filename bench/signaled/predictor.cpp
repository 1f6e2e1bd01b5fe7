// How well the analytical model of signaled plans tells what they take: one GPU, one rank, and a stand-in for NCCL that
// takes the SMs kept free, moves the bytes and follows a set curve (stand_in.hpp). Given are the product's time alone,
// the curve, and what a gate and an epoch take, all measured in turn with the plans.
//
//   signaled_predictor [JSON [SECONDS]]       (default 140: what does not fit is left out, and said)
//
// 1. Shapes x curves: the searched partition, predicted and measured; also one group a wave, as FlashOverlap's
//    Figure 11 has it.
// 2. Shapes of few waves: all partitions measured; then the best 8 and the searched one again, in turn.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/ceil_div.hpp"
#include "choose/choose_gpu.hpp"
#include "choose/signaled_times.hpp"
#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/world.hpp"
#include "program/measure/operator_of.hpp"
#include "program/measure/random_bytes.hpp"
#include "program/measure/turns.hpp"
#include "program/operand_memory.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/survey.hpp"
#include "signaled/plans.hpp"
#include "signaled/stand_in.hpp"

namespace {

using namespace imbrex;
using Sizes = std::vector<std::int64_t>;

constexpr int kept_free = 16, runs = 6, most_groups = 16;

struct Shape {
  std::int64_t m, n, k;
};

struct NamedCurve {
  const char* name;
  bench::Curve curve;
};

constexpr double us = 1e-6, MB = 1e6;

// NVLink pairs, PCIe, and a library that changes its protocol on the way; times of all-reduces over four ranks.
constexpr NamedCurve curves[] = {
    {"fast", {2, {0, 100 * MB}, {12 * us, 12 * us + 100 * MB / 150e9}}},
    {"slow", {2, {0, 100 * MB}, {25 * us, 25 * us + 100 * MB / 40e9}}},
    {"stepped", {5, {0, 1 * MB, 2 * MB, 16 * MB, 100 * MB}, {8 * us, 40 * us, 42 * us, 180 * us, 950 * us}}}};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const std::int64_t m : {1024, 2048, 3072, 4096, 8192})
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{4096, 2048},
                               {4096, 3584},
                               {4096, 8192},
                               {5120, 3456},
                               {6144, 4096},
                               {8192, 2048},
                               {8192, 4096},
                               {8192, 7168},
                               {12288, 3072},
                               {12288, 6144}})
      all.push_back({m, n, k});
  return all;
}

constexpr Shape few_waves[] = {{1024, 4096, 4096}, {1024, 6144, 4096}, {1024, 8192, 2048}, {1024, 8192, 7168},
                               {1536, 8192, 4096}, {2048, 6144, 4096}, {2048, 8192, 2048}, {2048, 8192, 7168},
                               {2560, 8192, 4096}, {3072, 6144, 8192}, {3072, 8192, 3072}, {3328, 8192, 4096}};

// Every way to cut so many waves, at most `most_groups` groups.
std::vector<Sizes> partitions(std::int64_t waves) {
  std::vector<Sizes> all;
  for (std::uint32_t cuts = 0; cuts < std::uint32_t{1} << (waves - 1); ++cuts) {
    Sizes sizes{1};
    for (std::int64_t w = 1; w < waves; ++w) {
      if ((cuts >> (w - 1) & 1) != 0)
        sizes.push_back(1);
      else
        ++sizes.back();
    }
    if (std::ssize(sizes) <= most_groups) all.push_back(sizes);
  }
  return all;
}

// What one more gate takes, and an epoch with lanes beside one without.
struct Frame {
  double gate = 0, epoch = 0;
};

class Bench {
 public:
  Bench(World& world, double seconds) : world_(world), seconds_(seconds) {
    gpus_ = choose::kind_of(runtime::survey_gpus_here(), 1, false);
    sms_ = runtime::survey_gpus_here().gpus.front().sms;
  }

  nlohmann::json run() {
    nlohmann::json all{{"gpu", gpus_.name}, {"kept_free", kept_free}};
    all["predictions"] = predictions();
    all["searches"] = searches();
    return all;
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Case {
    bench::SignaledProduct product;
    std::int64_t workers = 0, waves = 0;
    std::unique_ptr<GemmOperator> alone;  // the product, without signals
    std::unique_ptr<program::OperandMemory> memory;

    double time(GemmOperator& op) const { return op.time(program::operands_for(op, *memory), runs); }
  };

  // Whether less than `reserve` seconds are left.
  bool late(double reserve) const {
    return std::chrono::duration<double>(Clock::now() - begin_).count() + reserve > seconds_;
  }

  Case case_of(const Shape& shape) {
    const Problem problem{Operator::gemm_all_reduce, shape.m, shape.n, shape.k, 1, Type::bf16};
    Knobs knobs{.tile_m = 128, .tile_n = 256};
    knobs.packed = true;
    knobs.kept_free = kept_free;
    Case c{{problem, knobs, kept_free}, sms_ - kept_free, 0, nullptr, nullptr};
    c.waves = base::ceil_div(c.product.tiles(), c.workers);
    c.alone = made_of(bench::alone(c.product));
    c.memory = program::device_operands({program::random_bytes(shape.m * shape.k, Type::bf16, 1),
                                         program::random_bytes(shape.k * shape.n, Type::bf16, 2)},
                                        problem, c.alone->allocate_output());
    return c;
  }

  std::unique_ptr<GemmOperator> made_of(Plan plan) {
    CudaOptions options;
    options.heap_bytes = std::size_t{1} << 30;
    return program::operator_of(world_, std::move(plan), options);
  }

  std::unique_ptr<GemmOperator> prepared(const Case& c, const Sizes& waves) {
    return made_of(bench::with_collectives(c.product, bench::tiles_of_waves(waves, c.workers, c.product.tiles())));
  }

  static std::vector<double> times(const Case& c, const std::vector<GemmOperator*>& ways, int rounds) {
    return program::timed_in_turn(ways.size(), rounds, [&](std::size_t i) { return c.time(*ways[i]); });
  }

  static double bytes_of(const Case& c, std::int64_t first, std::int64_t count) {
    const std::int64_t tiles = c.product.tiles();
    const auto share =
        static_cast<double>(std::min((first + count) * c.workers, tiles) - std::min(first * c.workers, tiles));
    return share * static_cast<double>(c.product.problem.m * c.product.problem.n * 2) / static_cast<double>(tiles);
  }

  // Waves are units. The last one is as long as the others.
  choose::GroupCosts costs(const Case& c, double alone, const bench::Curve& curve, const Frame& frame) const {
    choose::GroupCosts costs;
    for (std::int64_t w = 1; w <= c.waves; ++w)
      costs.computed.push_back(frame.epoch + alone * static_cast<double>(w) / static_cast<double>(c.waves));
    costs.collective = [&c, &curve, gate = frame.gate](std::int64_t first, std::int64_t count) {
      return gate + curve.at(bytes_of(c, first, count));
    };
    costs.behind = [](std::int64_t, std::int64_t) { return 0.0; };
    return costs;
  }

  // A product of one tile's time, and groups whose collectives take far longer than it.
  Frame frame(const bench::Curve& curve) {
    stand_in_set_curve(&curve);
    Case c = case_of({1024, 4096, 64});
    c.workers = 8;
    const std::int64_t units = c.product.tiles() / c.workers;
    const auto one = prepared(c, {units}), eight = prepared(c, Sizes(8, units / 8));
    const std::vector<double> t = times(c, {one.get(), eight.get(), c.alone.get()}, 5);
    double eight_alone = 0;
    for (int g = 0; g < 8; ++g) eight_alone += curve.at(bytes_of(c, g * units / 8, units / 8));
    const double whole = curve.at(bytes_of(c, 0, units));
    Frame f;
    f.gate = std::max(0.0, ((t[1] - eight_alone) - (t[0] - whole)) / 7);
    f.epoch = std::max(0.0, t[0] - whole - f.gate - t[2]);
    fmt::print("a gate takes {:.2f} us, an epoch with lanes {:.2f} us more than one without\n", f.gate * 1e6,
               f.epoch * 1e6);
    return f;
  }

  nlohmann::json predictions() {
    nlohmann::json all = nlohmann::json::array();
    std::vector<Frame> frames;
    for (const NamedCurve& curve : curves) frames.push_back(frame(curve.curve));
    double error = 0, one_wave = 0;
    int count = 0, best_is_one_wave = 0;
    for (const Shape& shape : shapes()) {
      if (late(seconds_ / 2)) {
        fmt::print("no time is left for M = {}, N = {}, K = {}\n", shape.m, shape.n, shape.k);
        continue;
      }
      const Case c = case_of(shape);
      for (std::size_t i = 0; i < std::size(curves); ++i) {
        const bench::Curve& curve = curves[i].curve;
        stand_in_set_curve(&curve);
        // Which partition is searched depends on the product's time, which is measured again in turn with it.
        const double guess = c.time(*c.alone);
        const Sizes searched = choose::best_groups(costs(c, guess, curve, frames[i]), most_groups);
        const Sizes waves(static_cast<std::size_t>(c.waves), 1);
        const auto way = prepared(c, searched);
        std::unique_ptr<GemmOperator> each;
        std::vector<GemmOperator*> ways{c.alone.get(), way.get()};
        if (c.waves <= most_groups) ways.push_back((each = prepared(c, waves)).get());
        const std::vector<double> t = times(c, ways, 3);
        const double predicted = choose::seconds_of_groups(costs(c, t[0], curve, frames[i]), searched);
        error += std::fabs(predicted / t[1] - 1);
        ++count;
        nlohmann::json row{
            {"m", shape.m},
            {"n", shape.n},
            {"k", shape.k},
            {"curve", curves[i].name},
            {"waves", c.waves},
            {"groups", searched},
            {"microseconds", {{"product", t[0] * 1e6}, {"predicted", predicted * 1e6}, {"measured", t[1] * 1e6}}}};
        if (each != nullptr) {
          row["microseconds"]["one_wave_groups"] = t[2] * 1e6;
          one_wave += std::log(t[2] / t[1]);
          best_is_one_wave += t[2] <= t[1] ? 1 : 0;
        }
        fmt::print(
            "{:6} {:6} {:6} {:>8} {:3} waves  product {:8.1f}  predicted {:8.1f}  measured {:8.1f}  {:+5.1f} %  {}\n",
            shape.m, shape.n, shape.k, curves[i].name, c.waves, t[0] * 1e6, predicted * 1e6, t[1] * 1e6,
            100 * (predicted / t[1] - 1), fmt::join(searched, ","));
        all.push_back(std::move(row));
      }
    }
    if (count > 0) fmt::print("mean error over {}: {:.2f} %\n", count, 100 * error / count);
    return all;
  }

  nlohmann::json searches() {
    nlohmann::json all = nlohmann::json::array();
    double sum = 0, least = 1;
    const NamedCurve& named = curves[1];
    const Frame f = frame(named.curve);
    for (const Shape& shape : few_waves) {
      if (late(6)) {
        fmt::print("no time is left for all partitions of M = {}, N = {}, K = {}\n", shape.m, shape.n, shape.k);
        continue;
      }
      stand_in_set_curve(&named.curve);
      const Case c = case_of(shape);
      const double product = times(c, {c.alone.get()}, 3).front();
      const Sizes searched = choose::best_groups(costs(c, product, named.curve, f), most_groups);
      std::vector<std::pair<double, Sizes>> measured;
      for (const Sizes& sizes : partitions(c.waves)) measured.emplace_back(c.time(*prepared(c, sizes)), sizes);
      std::sort(measured.begin(), measured.end());
      measured.resize(std::min<std::size_t>(measured.size(), 8));
      std::vector<std::unique_ptr<GemmOperator>> made;
      std::vector<GemmOperator*> ways;
      for (const auto& [seconds, sizes] : measured) ways.push_back(made.emplace_back(prepared(c, sizes)).get());
      ways.push_back(made.emplace_back(prepared(c, searched)).get());
      const std::vector<double> t = times(c, ways, 5);
      const std::size_t best = static_cast<std::size_t>(std::min_element(t.begin(), t.end()) - t.begin());
      const double fraction = t[best] / t.back();
      sum += fraction;
      least = std::min(least, fraction);
      const Sizes& best_sizes = best < measured.size() ? measured[best].second : searched;
      all.push_back(
          {{"m", shape.m},
           {"n", shape.n},
           {"k", shape.k},
           {"curve", named.name},
           {"waves", c.waves},
           {"searched", searched},
           {"best", best_sizes},
           {"microseconds", {{"product", product * 1e6}, {"searched", t.back() * 1e6}, {"best", t[best] * 1e6}}}});
      fmt::print("{:6} {:6} {:6} {} waves: searched {} {:8.1f}, best {} {:8.1f}: {:.3f}\n", shape.m, shape.n, shape.k,
                 c.waves, fmt::join(searched, ","), t.back() * 1e6, fmt::join(best_sizes, ","), t[best] * 1e6,
                 fraction);
    }
    if (!all.empty())
      fmt::print("searched is {:.2f} % as fast as the best in the mean, {:.2f} % at least\n",
                 100 * sum / static_cast<double>(all.size()), 100 * least);
    return all;
  }

  Clock::time_point begin_ = Clock::now();
  World& world_;
  double seconds_;
  choose::GpuKind gpus_;
  std::int64_t sms_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string json = argc > 1 ? argv[1] : "";
    const double seconds = argc > 2 ? std::atof(argv[2]) : 140;
    return run_threads(1, {.heap_bytes = 1 << 20, .wait_limit = 60}, [&](World& world) {
      const nlohmann::json all = Bench(world, seconds).run();
      if (!json.empty()) write_file(json, all.dump(1) + "\n");
      return 0;
    });
  } catch (const Error& error) {
    fmt::print(stderr, "signaled_predictor: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
