#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "choose/kernel_tiles.hpp"
#include "imbrex/gpu.hpp"
#include "imbrex/world.hpp"
#include "machine/card_file.hpp"
#include "plan/problem.hpp"
#include "program/card/card.hpp"
#include "program/measure/changes.hpp"
#include "program/measure/measure.hpp"

namespace imbrex::program {
namespace {

struct Size {
  std::int64_t m, n, k;
};

// From one wave of tiles, or less, to many; long in N, in K, in neither. Some last a millisecond: then the clock is the
// one that lasts.
constexpr Size fitted_sizes[] = {{16, 8192, 4096},   {64, 4096, 8192},   {128, 14336, 4096},  {256, 4096, 4096},
                                 {512, 8192, 2048},  {1024, 4096, 4096}, {1024, 14336, 2048}, {2048, 8192, 2048},
                                 {2048, 4096, 8192}, {4096, 4096, 4096}, {4096, 8192, 4096},  {8192, 8192, 4096}};
constexpr Size held_out_sizes[] = {{32, 5120, 5120},   {200, 12288, 3072}, {384, 6144, 3072},
                                   {1536, 5120, 4352}, {3000, 7168, 2048}, {6144, 3072, 6144}};
constexpr std::int64_t curve_rows[] = {64, 256, 1024, 4096, 16384};
constexpr std::int64_t curve_columns = 8192, few = 64;
constexpr int rounds = 3;

// Numbers that forked ranks leave to this process; zeros at first.
class Shared {
 public:
  explicit Shared(std::size_t count) : bytes_(std::max<std::size_t>(count, 1) * sizeof(double)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw Error(ErrorCode::runtime_failure, fmt::format("no memory of {} bytes that processes share", bytes_));
    numbers_ = static_cast<double*>(memory);
  }
  Shared(const Shared&) = delete;
  ~Shared() { munmap(numbers_, bytes_); }
  double& operator[](std::size_t i) { return numbers_[i]; }

 private:
  std::size_t bytes_;
  double* numbers_;
};

// Knobs of a product by each tile that a kernel has, one kernel a tile.
std::vector<std::string> tries_for(bool hopper) {
  std::vector<std::string> tries;
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (const cuda::KernelTile& t : choose::kernel_tiles())
    if (t.type == Type::bf16 && t.hopper == hopper && !t.shares_k && seen.insert({t.rows, t.cols}).second)
      tries.push_back(fmt::format(
          "tile_m={},tile_n={},cluster={},cluster_k=1,split_k=1,order=owner_major,group={},span_shards=false", t.rows,
          t.cols, t.cluster, t.cols > 128 ? 2 : 8));
  return tries;
}

Problem product_of(const Size& s) { return {Operator::gemm_all_to_all, s.m, s.n, s.k, 1, Type::bf16}; }

// A collective's problem, with hardly any product.
Problem moving(Operator op, std::int64_t rows, int ranks) {
  const bool gather = op == Operator::all_gather_gemm, exchange = op == Operator::gemm_all_to_all;
  return {op,    rows,      gather ? few * ranks : curve_columns, gather ? curve_columns : exchange ? few : few * ranks,
          ranks, Type::bf16};
}

int measure_products_of(std::span<const Size> sizes, bool hopper, std::vector<CardProduct>& to) {
  const std::vector<std::string> tries = tries_for(hopper);
  const std::size_t stride = tries.size() + 1;
  Shared seconds(sizes.size() * stride);
  MeasureRequest request;
  request.ranks = 1;
  for (const Size& s : sizes) request.problems.push_back(product_of(s));
  request.strategy = Strategy::sequential;
  request.tries = tries;
  request.rounds = rounds;
  const int code = measure(request, [&, at = std::size_t{0}](const Measurement& m) mutable {
    double* row = &seconds[stride * at++];
    row[0] = m.product_seconds;
    for (const Measured& plan : m.plans)
      for (std::size_t i = 0; i < tries.size(); ++i)
        if (plan.tried == tries[i]) row[1 + i] = plan.seconds;
  });
  for (std::size_t s = 0; s < sizes.size() && code == 0; ++s)
    for (std::size_t i = 0; i < stride; ++i)
      if (const double taken = seconds[s * stride + i]; taken > 0)
        to.push_back(
            {product_of(sizes[s]), i == 0 ? std::nullopt : std::optional(with_changes({}, tries[i - 1])), taken});
  return code;
}

int measure_library(int ranks, CardTimes& times) {
  MeasureRequest request;
  request.ranks = ranks;
  for (const Operator op : problem::products())
    for (const std::int64_t rows : curve_rows) request.problems.push_back(moving(op, rows, ranks));
  request.strategy = Strategy::sequential;
  request.rounds = rounds;
  Shared seconds(request.problems.size());
  const int code = measure(request, [&, at = std::size_t{0}](const Measurement& m) mutable {
    seconds[at++] = std::max(m.plans.front().seconds - m.product_seconds, 1e-6);
  });
  for (std::size_t i = 0; i < request.problems.size() && code == 0; ++i) {
    const Problem& problem = request.problems[i];
    times.library[static_cast<std::size_t>(problem.op)].push_back({plan::wire_bytes(problem), seconds[i]});
  }
  return code;
}

int measure_own(int ranks, CardTimes& times) {
  AllReduceMeasureRequest request;
  request.ranks = ranks;
  request.rounds = rounds;
  request.least = 16 << 10;
  std::size_t sizes = 0;
  for (std::int64_t bytes = request.least; bytes <= request.most; bytes *= 2) ++sizes;
  Shared seconds(2 * sizes);
  const int code = measure_all_reduces(request, [&, at = std::size_t{0}](const AllReduceMeasurement& m) mutable {
    seconds[at++] = m.one_shot;
    seconds[at++] = m.two_shot;
  });
  std::int64_t bytes = request.least;
  for (std::size_t i = 0; i < sizes && code == 0; ++i, bytes *= 2) {
    const double others = ranks - 1.0, all = static_cast<double>(bytes);
    const auto put = [](std::vector<CurvePoint>& points, double wire, double taken) {
      if (taken > 0 && taken < 1e6) points.push_back({wire, taken});
    };
    put(times.one_shot, all * others, seconds[2 * i]);
    put(times.two_shot, 2 * all * others / ranks, seconds[2 * i + 1]);
  }
  return code;
}

}  // namespace

std::string card_file(const std::string& gpu) { return machine::card_file(gpu); }

int measure_card(int ranks, const std::function<void(const std::string&)>& said,
                 const std::function<void(const CardTimes&)>& report) {
  IMBREX_EXPECTS(!World::launched(), "a launcher started this process: measuring a card starts ranks of its own");
  const GpuSurvey survey = survey_gpus();
  IMBREX_EXPECTS(!survey.gpus.empty(), "measuring needs a GPU: {}", survey.reason);
  IMBREX_EXPECTS(ranks >= 1 && ranks <= std::ssize(survey.gpus), "{} ranks for {} GPUs: one each is needed", ranks,
                 survey.gpus.size());
  const Gpu& gpu = survey.gpus.front();
  bool reach = true;
  for (int i = 0; i < ranks; ++i) {
    const Gpu& other = survey.gpus[static_cast<std::size_t>(i)];
    IMBREX_EXPECTS(other.name == gpu.name, "GPU {} is {}, GPU 0 {}: a card is of one kind; --ranks 1 measures GPU 0", i,
                   other.name, gpu.name);
    for (int j = 0; j < ranks; ++j)
      reach =
          reach && (i == j || survey.link(static_cast<std::size_t>(i), static_cast<std::size_t>(j)) != GpuLink::none);
  }
  // Choices read it.
  if (const std::string why = machine::remove_broken_card(gpu.name); !why.empty())
    said(fmt::format("again what was kept ({})", why));
  const bool hopper = gpu.major == 9;
  CardTimes times;
  times.gpu = gpu.name;
  times.driver = machine::driver_version();
  times.ranks = ranks;
  times.sms = gpu.sms;
  said(fmt::format("{} products on one {}", std::size(fitted_sizes) + std::size(held_out_sizes), gpu.name));
  if (const int code = measure_products_of(fitted_sizes, hopper, times.fitted); code != 0) return code;
  if (const int code = measure_products_of(held_out_sizes, hopper, times.held_out); code != 0) return code;
  if (ranks > 1) {
    said(fmt::format("collectives of {} GPUs", ranks));
    if (const int code = measure_library(ranks, times); code != 0) return code;
    if (hopper && reach)
      if (const int code = measure_own(ranks, times); code != 0) return code;
  }
  report(times);
  return 0;
}

}  // namespace imbrex::program
