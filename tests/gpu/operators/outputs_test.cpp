// Several B for one gathered A, and the gathered A as an output, on GPUs: random problems over layouts of B, types and
// kernels, exact where the operands are integers, and within their bounds elsewhere.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/convert.hpp"
#include "execute/cuda/tables/table_survey.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "imbrex/error.hpp"
#include "plan/problem.hpp"
#include "support/operators.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::cases;
using test::expect_right;
using test::GpuCase;
using test::Outcome;
using test::Random;

struct Tile {
  std::int64_t m, n;
};

// Operands that the tensor-core kernels take, unless `odd`: one to three B and perhaps the gathered A.
Problem random_problem(Random& random, int ranks, std::int64_t most, Type type, bool odd) {
  Problem p{Operator::all_gather_gemm, 0, 0, 0, ranks, type, random.chance(0.4)};
  test::set_type(random, p, type);
  const std::int64_t elements = size_of(type) == 1 ? 16 : 8;
  const auto columns = [&] {
    const std::int64_t step = odd ? 1 : random.chance(0.5) ? 8 : cuda::column_step(p);
    return ranks * step * random.between(1, std::max<std::int64_t>(1, most / ranks / step));
  };
  p.m = ranks * random.between(1, most / ranks);
  p.n = columns();
  p.k = odd ? random.between(1, most) : elements * random.between(1, most / elements);
  const auto further = p.scales == Scales::none ? random.between(0, max_products - 1) : 0;
  for (std::size_t i = 0; std::cmp_less(i, further); ++i) p.more_n[i] = columns();
  p.gathered_a = further == 0 || random.chance(0.5);
  return p;
}

Knobs random_knobs(Random& random, const Problem& p, Tile tile) {
  Knobs k;
  k.tile_m = tile.m;
  k.tile_n = tile.n;
  k.group = static_cast<int>(random.between(1, 9));
  k.order = random.one_of({TileOrder::owner_major, TileOrder::column_major, TileOrder::naive});
  k.partial = output_type(p.type);
  // Copy engines bring nothing to ranks that share a GPU.
  const bool alone = test::ranks_per_gpu() == 1;
  k.transport = alone ? random.one_of({Transport::push, Transport::store}) : Transport::store;
  k.comm_rows = random.chance(0.5) ? 0 : random.between(16, 400);
  k.k_slices = random.chance(0.5) ? 1 : static_cast<int>(random.between(2, 4));
  k.split_k = random.chance(0.6) ? 1 : static_cast<int>(random.between(2, 4));
  k.cluster_k = k.split_k == 1 && random.chance(0.3) ? 2 : 1;
  k.span_shards = random.chance(0.3) && p.scales != Scales::tensor;
  return k;
}

// Fused plans, on the kernel that is named, whose tiles are of 128 x 128, or on what fits.
void random_problems(int ranks, int count, const CudaOptions& options = {}, int repeats = 2, int queued = 1) {
  Random random(test::seed_from_environment() + static_cast<std::uint64_t>(ranks));
  std::vector<Plan> plans;
  std::vector<GpuCase> all;
  for (int i = 0; i < count; ++i) {
    const bool plain = options.kernel == "plain", sm80 = options.kernel == "sm80";
    const Type type = plain  ? random.one_of({Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
                      : sm80 ? random.one_of({Type::bf16, Type::fp16})
                             : random.one_of({Type::bf16, Type::bf16, Type::fp16, Type::e4m3});
    const Problem p = random_problem(random, ranks, i == 0 ? 2200 : 700, type, plain && random.chance(0.5));
    Tile tile = random.one_of<Tile>({{128, 128}, {128, 256}, {128, 224}, {128, 192}, {64, 192}, {64, 128}, {64, 64}});
    if (type == Type::e4m3) tile.n = 128;
    const Knobs k = random_knobs(random, p, options.kernel.empty() ? tile : Tile{128, 128});
    GpuCase c;
    c.options = options;
    c.repeats = repeats;
    c.queued = queued;
    c.seed = static_cast<std::uint64_t>(i) + 7;
    c.shared_out = random.chance(0.5);
    c.whole_numbers = i % 2 == 0;
    c.exact = c.whole_numbers && p.scales == Scales::none;
    if (sm80) c.wait_limit = 30;  // the driver compiles it first, on one rank after another
    plans.push_back(make_plan(p, Strategy::fused, k));
    all.push_back(c);
  }
  test::expect_each_right(plans, all);
}

TEST(GpuOutputs, RandomProblemsOnOne) {
  NEEDS_GPUS(1);
  random_problems(1, cases(12));
}

TEST(GpuOutputs, RandomProblemsOnTwo) {
  NEEDS_GPUS(2);
  random_problems(2, cases(16));
}

TEST(GpuOutputs, RandomProblemsOnFour) {
  NEEDS_GPUS(4);
  random_problems(4, cases(16));
}

TEST(GpuOutputs, RandomProblemsOnThePlainKernel) {
  NEEDS_GPUS(1);
  CudaOptions options;
  options.kernel = "plain";
  for (const int ranks : {1, 2, 4})
    if (ranks <= test::gpus()) random_problems(ranks, cases(6), options);
}

TEST(GpuOutputs, RandomProblemsOnOtherGpusKernel) {
  NEEDS_GPUS(1);
  CudaOptions options;
  options.kernel = "sm80";
  for (const int ranks : {1, 2, 4})
    if (ranks <= test::gpus()) random_problems(ranks, cases(4), options);
}

TEST(GpuOutputs, ManyEpochsQueuedWithDelays) {
  NEEDS_GPUS(2);
  CudaOptions options;
  options.testing.delays = 81;
  options.testing.max_delay = 2e-4;
  random_problems(test::most_ranks(), cases(6), options, 4, 3);
}

// The output that peers could write, its neighbours and the gathered A, epoch after epoch from a graph.
TEST(GpuOutputs, ManyEpochsFromAGraphWithDelays) {
  NEEDS_GPUS(2);
  for (const Layout layout : {Layout::row_major, Layout::column_major}) {
    Problem p{Operator::all_gather_gemm, 520, 1024, 256, test::most_ranks(), Type::bf16, true};
    p.b_layout = layout;
    p.more_n = {512, 256};
    p.gathered_a = true;
    GpuCase c;
    c.options.testing.delays = 5;
    c.options.testing.max_delay = 2e-5;
    c.options.heap_bytes = std::size_t{1} << 28;
    c.repeats = 1;
    c.replays = 1000;
    c.shared_out = true;
    expect_right(make_plan(p, Strategy::fused, {.transport = Transport::store}), c, "replays");
  }
}

// Rows that lie further apart than they are long, by multiples of 16 bytes, which tensor-core kernels take, or by any
// number of elements; of every operator, its outputs where peers write them and elsewhere.
void random_pitches(int ranks, int count, const CudaOptions& options = {}) {
  Random random(test::seed_from_environment() + 100 + static_cast<std::uint64_t>(ranks));
  std::vector<Plan> plans;
  std::vector<GpuCase> all;
  for (int i = 0; i < count; ++i) {
    const bool plain = options.kernel == "plain", sm80 = options.kernel == "sm80";
    const Type type = plain  ? random.one_of({Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
                      : sm80 ? random.one_of({Type::bf16, Type::fp16})
                             : random.one_of({Type::bf16, Type::bf16, Type::fp16, Type::e4m3});
    Problem p = random_problem(random, ranks, 700, type, plain && random.chance(0.5));
    const auto op = static_cast<Operator>(i % 4);
    if (op != Operator::all_gather_gemm) {
      p.op = op;
      p.more_n = {};
      p.gathered_a = false;
      if (op != Operator::gemm_all_to_all) p.k *= ranks;
    }
    test::add_pitches(random, p, plain ? 1 : static_cast<std::int64_t>(16 / size_of(type)));
    if (random.chance(0.3) && p.ldo > 0) ++p.ldo;  // tiles are stored element by element then
    Knobs k = random_knobs(random, p, {128, 128});
    if (op != Operator::all_gather_gemm) {
      k = {.partial = output_type(p.type)};
      k.transport = Transport::store;
      k.reducer = random.one_of({Reducer::tile, Reducer::tail});
    }
    GpuCase c;
    c.options = options;
    c.seed = static_cast<std::uint64_t>(i) + 7;
    c.shared_out = random.chance(0.5);
    c.whole_numbers = i % 2 == 0 && op == Operator::all_gather_gemm;
    c.exact = c.whole_numbers && p.scales == Scales::none;
    if (sm80) c.wait_limit = 30;
    plans.push_back(make_plan(p, Strategy::fused, k));
    all.push_back(c);
  }
  test::expect_each_right(plans, all);
}

TEST(GpuOutputs, WithGapsBetweenRows) {
  NEEDS_GPUS(1);
  for (const int ranks : test::rank_counts(1)) random_pitches(ranks, cases(24));
}

TEST(GpuOutputs, WithGapsBetweenRowsOnThePlainKernel) {
  NEEDS_GPUS(1);
  CudaOptions options;
  options.kernel = "plain";
  for (const int ranks : {1, 2, 4})
    if (ranks <= test::gpus()) random_pitches(ranks, cases(8), options);
}

TEST(GpuOutputs, WithGapsBetweenRowsOnOtherGpusKernel) {
  NEEDS_GPUS(1);
  CudaOptions options;
  options.kernel = "sm80";
  for (const int ranks : {1, 2})
    if (ranks <= test::gpus()) random_pitches(ranks, cases(8), options);
}

TEST(GpuOutputs, WithGapsBetweenRowsOfLibraries) {
  NEEDS_GPUS(1);
  Random random(test::seed_from_environment() + 131);
  for (const int ranks : {1, 2, 4}) {
    if (ranks > test::gpus()) continue;
    std::vector<Plan> plans;
    for (int i = 0; i < cases(8); ++i) {
      Problem p = random_problem(random, ranks, 700, random.one_of({Type::bf16, Type::fp16}), false);
      p.bias = false;
      if (const auto op = static_cast<Operator>(i % 4); op != Operator::all_gather_gemm) {
        p.op = op;
        p.more_n = {};
        p.gathered_a = false;
        if (op != Operator::gemm_all_to_all) p.k *= ranks;
      }
      test::add_pitches(random, p, random.one_of({1, 8}));
      const Strategy strategy = random.one_of({Strategy::sequential, Strategy::decomposed});
      const Knobs k{.partial = output_type(p.type)};
      plans.push_back(make_plan(p, strategy, k));
    }
    expect_right(plans, GpuCase{});
  }
}

// Operands in host memory are copied to the GPU and back; what is between the caller's rows stays.
TEST(GpuOutputs, WithGapsBetweenRowsInHostMemory) {
  NEEDS_GPUS(1);
  for (const int ranks : test::rank_counts(1)) {
    // Copies to a GPU wait for its kernels, and those of ranks that share it wait for this one.
    if (ranks > 4 || (ranks > 1 && test::ranks_per_gpu() > 1)) continue;
    test::Trouble trouble;
    const auto body = [&](World& world) {
      OperatorOptions options;
      options.device = Device::cuda;
      options.cuda.ranks_per_gpu = test::ranks_per_gpu();
      for (int i = 0; i < 4; ++i) {
        Problem p{static_cast<Operator>(i), 48 * ranks, 64 * ranks, 64 * ranks, ranks, Type::bf16, i % 2 == 0};
        p.lda = p.k + 8, p.ldb = p.n + 16, p.ldo = p.n + 3;
        const auto op = test::make_operator(world, p.op, test::shape_of(p), options);
        const std::vector<std::byte> got = test::result_of(world, *op, p, 5);
        const program::Reference reference =
            program::reference_of(op->plan(), *test::seeded_operands(p, 5), world.rank(), Device::cuda);
        const std::vector<float> values = base::floats_of(output_type(p.type), got);
        const auto c = program::compare(reference, values, output_type(p.type), shapes_of(p).out.cols);
        if (!(c.worst <= 1))
          trouble.add(fmt::format("{} of {} ranks, {}: row {}, column {} is {}, the reference {}: {} times its bound",
                                  name_of(p.op), ranks, name_of(op->plan().strategy), c.row, c.col, c.result, c.value,
                                  c.worst));
      }
      return 0;
    };
    test::expect_none(test::on_world(ranks, {.heap_bytes = 1 << 22, .wait_limit = 20}, body), trouble);
  }
}

// A bias is added in fp32, before the only rounding, where libraries cannot do so, too: then they are not chosen.
TEST(GpuOutputs, BiasesWithGapsOfAnyKind) {
  NEEDS_GPUS(1);
  Random random(test::seed_from_environment() + 231);
  for (const int ranks : test::rank_counts(1)) {
    if (ranks > 4 || (ranks > 1 && test::ranks_per_gpu() > 1)) continue;
    std::vector<Problem> problems;
    for (int i = 0; i < cases(12); ++i) {
      Problem p = random_problem(random, ranks, 300, random.one_of({Type::bf16, Type::fp16}), false);
      p.bias = true;
      p.more_n = {};
      p.gathered_a = false;
      p.b_layout = Layout::row_major;
      if (const auto op = static_cast<Operator>(i % 4); op != Operator::all_gather_gemm) {
        p.op = op;
        if (op != Operator::gemm_all_to_all) p.k *= ranks;
      }
      const std::int64_t gap = random.one_of({1, 3, 4, 8});
      if (random.chance(0.7)) p.ldo = p.n + gap;
      if (random.chance(0.3)) p.lda = p.k + gap;
      if (random.chance(0.3)) p.ldb = p.n + gap;
      problems.push_back(p);
    }
    test::Trouble trouble;
    const auto body = [&](World& world) {
      OperatorOptions options;
      options.device = Device::cuda;
      options.cuda.ranks_per_gpu = test::ranks_per_gpu();
      for (const Problem& p : problems) {
        const auto op = test::make_operator(world, p.op, test::shape_of(p), options);
        const std::vector<float> values = base::floats_of(output_type(p.type), test::result_of(world, *op, p, 5));
        const auto reference =
            program::reference_of(op->plan(), *test::seeded_operands(p, 5), world.rank(), Device::cuda);
        const auto c = program::compare(reference, values, output_type(p.type), shapes_of(p).out.cols);
        if (!(c.worst <= 1))
          trouble.add(fmt::format("{}: row {}, column {} is {}, the reference {}: {} times its bound",
                                  test::describe({p, op->plan().strategy, {}}), c.row, c.col, c.result, c.value,
                                  c.worst));
      }
      return 0;
    };
    test::expect_none(test::on_world(ranks, {.heap_bytes = 1 << 22, .wait_limit = 20}, body), trouble);
  }
}

// Library plans, where libraries run: the gathered A lands in the caller's memory.
TEST(GpuOutputs, OfLibraries) {
  NEEDS_GPUS(1);
  Random random(test::seed_from_environment() + 31);
  for (const int ranks : {1, 2, 4}) {
    if (ranks > test::gpus()) continue;
    for (int i = 0; i < cases(4); ++i) {
      Problem p = random_problem(random, ranks, 700, random.one_of({Type::bf16, Type::fp16}), false);
      p.bias = false;  // cuBLASLt rounds before it adds one where rows are no whole 16 bytes
      const Strategy strategy = random.one_of({Strategy::sequential, Strategy::decomposed});
      expect_right(make_plan(p, strategy, {}), {}, test::describe({p, strategy, {}}));
    }
  }
}

}  // namespace
}  // namespace imbrex
