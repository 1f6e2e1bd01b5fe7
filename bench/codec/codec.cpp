// What each codec costs an all-reduce in accuracy, and how fast the host codes. Prints JSON.
//
// usage: codec_bench [--no-speed]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "base/convert.hpp"
#include "codec/chunk.hpp"
#include "collectives/backend.hpp"
#include "imbrex/world.hpp"

namespace imbrex {
namespace {

using Json = nlohmann::ordered_json;

constexpr int ranks = 4;
constexpr std::int64_t count = 1 << 18;

/// The same numbers everywhere, unlike the standard library's distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  /// In (0, 1), by SplitMix64 (Steele, Lea, Flood, 2014).
  double uniform() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (static_cast<double>((x ^ (x >> 31)) >> 12) + 0.5) * 0x1p-52;
  }
  /// By Box and Muller (1958).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

struct Distribution {
  const char* name;
  double (*draw)(Random&);
};

constexpr Distribution distributions[] = {
    {"gaussian", [](Random& random) { return random.normal(); }},
    {"gelu",
     [](Random& random) {
       const double x = random.normal();
       return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
     }},
    // Student's t with three degrees of freedom.
    {"heavy_tailed",
     [](Random& random) {
       double squares = 0;
       const double x = random.normal();
       for (int i = 0; i < 3; ++i) squares += std::pow(random.normal(), 2);
       return x / std::sqrt(squares / 3);
     }},
    {"outliers", [](Random& random) { return random.normal() * (random.uniform() < 1e-3 ? 50 : 1); }}};

struct Tensors {
  std::vector<std::vector<std::uint16_t>> bf16;  // by rank
  std::vector<double> sum;
};

Tensors tensors_of(const Distribution& distribution) {
  Tensors tensors{{}, std::vector<double>(count)};
  for (int rank = 0; rank < ranks; ++rank) {
    Random random(static_cast<std::uint64_t>(rank) + 1);
    std::vector<std::uint16_t> values(count);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = base::float_to_bf16(static_cast<float>(distribution.draw(random)));
      tensors.sum[i] += static_cast<double>(base::bf16_to_float(values[i]));
    }
    tensors.bf16.push_back(std::move(values));
  }
  return tensors;
}

double rounded(double value, int places) {
  const double scale = std::pow(10.0, places);
  return std::round(value * scale) / scale;
}

Json accuracy(const Distribution& distribution, const Tensors& tensors, const std::string& name,
              AllReduceAlgorithm algorithm) {
  AllReduceOptions options{.algorithm = algorithm};
  if (name != "exact") options.codec = parse_codec_pair(name);
  Json result;
  const int code = run_threads(ranks, {.heap_bytes = std::size_t{1} << 26}, [&](World& world) {
    const auto op = collectives::make_cpu_all_reduce(world, count, Type::bf16, options);
    std::vector<std::uint16_t> out(count);
    (*op)(tensors.bf16[static_cast<std::size_t>(world.rank())].data(), out.data(), count);
    const AllReduceReport report = op->report();
    if (world.rank() != 0) return 0;
    double signal = 0, noise = 0, largest = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double error = static_cast<double>(base::bf16_to_float(out[i])) - tensors.sum[i];
      signal += tensors.sum[i] * tensors.sum[i];
      noise += error * error;
      largest = std::max(largest, std::fabs(error));
    }
    const double bits =
        options.codec ? (wire_bits(options.codec->reduce_scatter) + wire_bits(options.codec->all_gather)) / 2 : 16;
    result = {{"codec", name},
              {"algorithm", name_of(algorithm)},
              {"distribution", distribution.name},
              {"wire_bits", rounded(bits, 4)},
              {"sqnr_db", rounded(10 * std::log10(signal / noise), 2)},
              {"largest_error", rounded(largest, 6)},
              {"bound", rounded(static_cast<double>(report.largest_error), 6)}};
    return 0;
  });
  if (code != 0) throw std::runtime_error(fmt::format("{}: exit code {}", name, code));
  return result;
}

double seconds_of(const auto& work) {
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

/// GB/s of fp32 values, on one core, out of its caches.
Json speed(const std::string& name) {
  constexpr std::int64_t values = 1 << 24;
  const codec::ChunkFormat format{parse_codec(name), Type::fp32, false};
  std::vector<float> in(values), out(values);
  Random random(1);
  for (float& value : in) value = static_cast<float>(random.uniform() - 0.5);
  std::vector<std::byte> wire(static_cast<std::size_t>(format.layout(values).bytes));
  const double bytes = static_cast<double>(values) * 4e-9;
  const auto rate = [&](const auto& work) { return rounded(bytes / seconds_of(work), 1); };
  return {{"codec", name},
          {"encode", rate([&] { codec::encode_chunk(format, in.data(), values, {}, wire.data()); })},
          {"decode", rate([&] { codec::decode_chunk(format, wire.data(), values, out.data(), nullptr); })},
          {"memcpy", rate([&] { std::memcpy(out.data(), in.data(), in.size() * sizeof(float)); })}};
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  return "unknown";
}

}  // namespace
}  // namespace imbrex

int main(int argc, char** argv) {
  using namespace imbrex;
  const bool speeds = argc == 1;
  if (argc > 2 || (!speeds && std::string(argv[1]) != "--no-speed")) {
    std::fprintf(stderr, "usage: codec_bench [--no-speed]\n");
    return 2;
  }
  Json report{{"what", "4-rank all-reduce of 2^18 bf16 elements against float64; bits are the mean of both steps"}};
  for (const Distribution& distribution : distributions) {
    const Tensors tensors = tensors_of(distribution);
    for (const char* name : {"exact", "int8", "int8-g128", "int8-e8m0", "int8-asym", "fp8", "fp8-g128", "int6",
                             "int6+int8", "int5", "int4", "int4-g128", "int4-asym", "int4-asym-g128", "int4+int8",
                             "int4-g128+int8-g128", "flash6", "flash8", "int3"})
      report["accuracy"].push_back(accuracy(distribution, tensors, name, AllReduceAlgorithm::two_shot));
    for (const char* name : {"int8", "int4", "flash6"})
      report["accuracy"].push_back(accuracy(distribution, tensors, name, AllReduceAlgorithm::ring));
  }
  if (speeds) {
    report["processor"] = processor();
    for (const char* name : {"int8", "int8-e8m0", "int8-asym", "int6", "int5", "int4", "int4-asym-g128", "int3", "fp8"})
      report["gigabytes_per_second"].push_back(speed(name));
  }
  // One row a line.
  std::string text = "{";
  for (const auto& [key, value] : report.items()) {
    text += fmt::format("{}\n \"{}\": ", text.size() > 1 ? "," : "", key);
    if (!value.is_array()) {
      text += value.dump();
      continue;
    }
    for (std::size_t i = 0; i < value.size(); ++i) text += fmt::format("{}\n  {}", i == 0 ? "[" : ",", value[i].dump());
    text += "]";
  }
  std::printf("%s\n}\n", text.c_str());
}
