// Operators that take any M on GPUs: the bits of an operator made for each, no collective set-up, graphs, and what they
// refuse.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "execute/cuda/lanes/graph.hpp"
#include "gpu/gpu_case.hpp"
#include "gpu/operator_subject.hpp"
#include "ops/world_gpus.hpp"
#include "runtime/host_world.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using runtime::DeviceMemory;
using test::error_of;
using test::on_ranks;
using test::Stream;

// Barriers and gathers that this rank has entered.
std::uint64_t entered(World& world) {
  runtime::ControlBlock& block = dynamic_cast<runtime::HostWorld&>(world).control().block();
  return runtime::word(block.ranks[world.rank()].arrived).load();
}

bool splits_m(Operator op) { return op != Operator::gemm_all_reduce; }

// All operators of a world have the same CUDA options.
OperatorOptions options_of(bool plans_given, std::uint64_t first_epoch = 0) {
  OperatorOptions options =
      test::options_of(plans_given ? std::optional(Strategy::fused) : std::nullopt, Transport::store, 5);
  options.cuda.testing.first_epoch = first_epoch;
  return options;
}

/// Operands of one M on the GPU, and an operator made for it, with the same plan: any other gives its bits.
class Sized {
 public:
  Sized(World& world, Operator op, GemmShape shape, const OperatorOptions& options)
      : m_(shape.m), fixed_(world, op, shape, options), out_(fixed_.out_bytes()) {
    a_.emplace(fixed_.a().size()).upload(fixed_.a());
    b_.emplace(fixed_.b().size()).upload(fixed_.b());
    if (!fixed_.bias().empty()) bias_.emplace(fixed_.bias().size()).upload(fixed_.bias());
    if (!fixed_.a_scale().empty()) {
      a_scale_.emplace(fixed_.a_scale().size() * sizeof(float)).upload(fixed_.a_scale().data());
      b_scale_.emplace(fixed_.b_scale().size() * sizeof(float)).upload(fixed_.b_scale().data());
    }
    test::meet_if_sharing(world);
    fixed_.op().run_and_wait(operands(fixed_.op()));
    judge("made for it");
    test::meet_if_sharing(world);
  }

  void call(GemmOperator& any, cudaStream_t stream) { any.run(operands(any), stream); }
  void call_and_wait(GemmOperator& any) { any.run_and_wait(operands(any)); }
  void poison(cudaStream_t stream) { IMBREX_CUDA_TRY(cudaMemsetAsync(out_.get(), 0xff, fixed_.out_bytes(), stream)); }

  void call_from_host(GemmOperator& any) {
    std::vector<std::byte> out(fixed_.out_bytes() + 64, std::byte{0x5a});
    std::vector<Operand> all = fixed_.operands(out.data());
    for (Operand& operand : all) operand = any.operand(operand.name, operand.view.data, m_);
    any.run_and_wait(all);
    for (std::size_t i = fixed_.out_bytes(); i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0x5a});
    out.resize(fixed_.out_bytes());
    expect("from host memory", out);
  }

  /// Compares; the GPU is idle.
  void judge(const std::string& when) {
    std::vector<std::byte> result(fixed_.out_bytes());
    IMBREX_CUDA_TRY(cudaMemcpy(result.data(), out_.get(), result.size(), cudaMemcpyDeviceToHost));
    expect(when, result);
  }

 private:
  std::vector<Operand> operands(GemmOperator& op) {
    std::vector<Operand> all{op.operand("a", a_->get(), m_), op.operand("b", b_->get(), m_)};
    if (bias_) all.push_back(op.operand("bias", bias_->get(), m_));
    if (a_scale_) {
      all.push_back(op.operand("a_scale", a_scale_->get(), m_));
      all.push_back(op.operand("b_scale", b_scale_->get(), m_));
    }
    all.push_back(op.operand("out", out_.get(), m_));
    return all;
  }

  void expect(const std::string& when, const std::vector<std::byte>& result) {
    if (const std::string wrong = fixed_.judge(result); !wrong.empty())
      throw Error(ErrorCode::unsound, fmt::format("M = {}, {}: {}", m_, when, wrong));
  }

  std::int64_t m_;
  test::OperatorCase fixed_;
  std::optional<DeviceMemory> a_, b_, bias_, a_scale_, b_scale_;
  DeviceMemory out_;
};

/// An operator of any M, and operands of some.
struct AnyM {
  AnyM(World& w, Operator op, const GemmShape& largest, const OperatorOptions& o)
      : world(w), kind(op), shape(largest), options(o) {
    GemmShape any = shape;
    any.any_m = true;
    made = test::make_operator(world, kind, any, options);
    EXPECT_EQ(made->device(), Device::cuda);
    test::meet_if_sharing(world);
  }

  Sized& of(std::int64_t m) {
    if (const auto found = sizes.find(m); found != sizes.end()) return found->second;
    GemmShape own = shape;
    own.m = m;
    return sizes.try_emplace(m, world, kind, own, of_size(m)).first->second;
  }

  /// With the plan that the operator chooses for that M.
  OperatorOptions of_size(std::int64_t m) const {
    if (options.knobs) return options;
    choose::GpuKind gpus = ops::gpus_of(world, options.cuda)->gpus;
    gpus.copies = gpus.libraries = false;
    Problem problem = made->plan().problem;
    problem.m = m;
    const plan::Candidate chosen = choose::choose_gpu_candidate(problem, {}, {}, gpus);
    OperatorOptions own = options;
    own.strategy = chosen.strategy;
    own.knobs = chosen.knobs;
    return own;
  }

  World& world;
  Operator kind;
  GemmShape shape;
  OperatorOptions options;
  std::unique_ptr<GemmOperator> made;
  std::map<std::int64_t, Sized> sizes;
};

// So many sizes, from the least to the largest; more than plans are kept.
constexpr int many = 40;

std::vector<std::int64_t> sizes_of(World& world, Operator op, std::int64_t most, int count) {
  const std::int64_t unit = splits_m(op) ? world.size() : 1;
  std::vector<std::int64_t> sizes{unit, most};
  std::mt19937_64 random(test::seed_from_environment());
  while (std::ssize(sizes) < count) {
    const std::int64_t m = unit * (1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most / unit)));
    if (std::find(sizes.begin(), sizes.end(), m) == sizes.end()) sizes.push_back(m);
  }
  return sizes;
}

// Every rank draws the same M, and falls behind at random.
void call_any(World& world, AnyM& any, int sizes, int calls) {
  const std::vector<std::int64_t> list = sizes_of(world, any.kind, any.shape.m, sizes);
  for (const std::int64_t m : list) any.of(m);
  const Stream stream(world);
  std::mt19937_64 order(test::seed_from_environment()),
      own(test::seed_from_environment() + 17 * static_cast<std::uint64_t>(world.rank() + 1));
  const std::uint64_t before = entered(world);
  std::vector<std::int64_t> called;
  for (int i = 0; i < calls; ++i) {
    const std::int64_t m = list[order() % list.size()];
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    any.of(m).poison(stream);
    any.of(m).call(*any.made, stream);
    called.push_back(m);
    if (i % 16 != 15) continue;
    any.made->synchronize(stream);
    for (const std::int64_t each : called) any.of(each).judge("call " + std::to_string(i));
    called.clear();
  }
  any.made->synchronize(stream);
  EXPECT_EQ(entered(world), before) << "some call was collective";
}

class GpuAnyM : public testing::TestWithParam<int> {};

TEST_P(GpuAnyM, GivesTheBitsOfAnOperatorMadeForItInAThousandCalls) {
  NEEDS_GPUS(GetParam());
  struct Kind {
    Operator op;
    GemmShape shape;
    int calls;
  };
  const std::int64_t m = 24 * 48;  // divides by all numbers of ranks
  for (const Kind& kind : {Kind{Operator::gemm_all_reduce, {640, 512, 384, Type::bf16}, 1000},
                           Kind{Operator::gemm_reduce_scatter, {m, 512, 384, Type::bf16, true}, 1000},
                           Kind{Operator::all_gather_gemm, {m, 768, 256, Type::bf16}, 1000},
                           Kind{Operator::gemm_all_to_all, {m, 512, 256, Type::fp16}, 300},
                           Kind{Operator::gemm_all_reduce, {200, 256, 384, Type::e4m3, false, Scales::row}, 300},
                           Kind{Operator::all_gather_gemm, {24 * 10, 96, 40, Type::fp32}, 300}})
    for (const std::uint64_t first_epoch : {std::uint64_t{0}, (std::uint64_t{1} << 32) - 9}) {
      if (first_epoch != 0 && kind.op != Operator::gemm_all_reduce) continue;
      EXPECT_EQ(on_ranks(GetParam(), 20,
                         [&](World& world) {
                           AnyM any(world, kind.op, kind.shape, options_of(true, first_epoch));
                           call_any(world, any, many, kind.calls);
                         }),
                0)
          << name_of(kind.op) << " " << name_of(kind.shape.type) << " from epoch " << first_epoch;
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuAnyM, testing::Values(1, 2, 4), testing::PrintToStringParamName());

// What the choice takes for each M, which other ranks do not hear of.
TEST(GpuAnyM, ChoosesAPlanForEachM) {
  NEEDS_OWN_GPUS(1);
  for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce})
    EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                       [&](World& world) {
                         AnyM any(world, op, {2048, 1024, 1024, Type::bf16}, options_of(false));
                         call_any(world, any, 12, 100);
                       }),
              0)
        << name_of(op);
}

// An operator whose calls come between: both are in one order.
TEST(GpuAnyM, TakesTurnsWithOtherOperators) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                     [](World& world) {
                       AnyM reduce(world, Operator::gemm_all_reduce, {512, 512, 512, Type::bf16}, options_of(true)),
                           gather(world, Operator::all_gather_gemm, {960, 768, 256, Type::bf16}, options_of(true));
                       const std::vector<std::int64_t> first = sizes_of(world, reduce.kind, 512, 5),
                                                       second = sizes_of(world, gather.kind, 960, 5);
                       for (std::size_t i = 0; i < 5; ++i) reduce.of(first[i]), gather.of(second[i]);
                       const Stream stream(world), side(world);
                       std::mt19937_64 order(3);
                       for (int i = 0; i < 300; ++i) {
                         const cudaStream_t on = order() % 2 == 0 ? stream : side;
                         reduce.of(first[order() % 5]).call(*reduce.made, on);
                         gather.of(second[order() % 5]).call(*gather.made, on);
                         if (i % 30 != 29) continue;
                         reduce.made->synchronize(stream);
                         reduce.made->synchronize(side);
                         for (auto& [m, sized] : gather.sizes) sized.call(*gather.made, stream);
                         gather.made->synchronize(stream);
                         for (auto& [m, sized] : gather.sizes) sized.judge("round " + std::to_string(i));
                       }
                       for (auto& [m, sized] : reduce.sizes) {
                         sized.call_and_wait(*reduce.made);
                         sized.judge("at the end");
                       }
                     }),
            0);
}

// Graphs of one call, and of three; the plans of those that were captured leave the cache meanwhile, and stay.
void replay(World& world, Operator op, const GemmShape& shape) {
  AnyM any(world, op, shape, options_of(true));
  const std::vector<std::int64_t> list = sizes_of(world, op, shape.m, many);
  for (const std::int64_t m : list) any.of(m);
  const Stream stream(world);
  const std::int64_t small = list[2], large = list[3], unmet = list[4];
  for (const std::int64_t m : {small, large}) any.of(m).call(*any.made, stream);
  any.made->synchronize(stream);
  EXPECT_EQ(error_of([&] { cuda::Graph(stream, 1, [&] { any.of(unmet).call(*any.made, stream); }); }),
            fmt::format("M = {}: the stream is being captured, and this operator keeps no plan for this M; call it "
                        "once with this M before the capture",
                        unmet));
  std::vector<std::unique_ptr<cuda::Graph>> graphs;
  for (const std::int64_t m : {small, large})
    graphs.push_back(std::make_unique<cuda::Graph>(stream, 1, [&] { any.of(m).call(*any.made, stream); }));
  int number = 0;
  graphs.push_back(
      std::make_unique<cuda::Graph>(stream, 3, [&] { any.of(number++ == 1 ? large : small).call(*any.made, stream); }));
  std::mt19937_64 order(11);
  const std::uint64_t before = entered(world);
  for (int i = 0; i < 400; ++i) {
    if (i % 20 == 0)
      for (auto& [m, sized] : any.sizes) sized.poison(stream);
    graphs[order() % graphs.size()]->launch(stream);
    const std::int64_t m = list[i < 100 ? 2 + order() % 6 : order() % list.size()];
    if (order() % 3 == 0) any.of(m).call(*any.made, stream);
    if (i % 20 != 19) continue;
    for (const auto& graph : graphs) graph->launch(stream);
    any.of(m).call(*any.made, stream);
    any.made->synchronize(stream);
    for (const std::int64_t each : {small, large, m}) any.of(each).judge("replay " + std::to_string(i));
  }
  EXPECT_EQ(entered(world), before);
}

TEST(GpuAnyM, ReplaysFromGraphsOfSeveralSizes) {
  NEEDS_GPUS(2);
  for (const Operator op : {Operator::gemm_all_reduce, Operator::all_gather_gemm, Operator::gemm_reduce_scatter})
    EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                       [&](World& world) {
                         replay(world, op, {24 * 40, 768, 384, Type::bf16});
                       }),
              0)
        << name_of(op);
}

TEST(GpuAnyM, TakesOperandsFromHostMemory) {
  NEEDS_OWN_GPUS(1);
  EXPECT_EQ(
      on_ranks(test::most_ranks(), 20,
               [](World& world) {
                 AnyM any(world, Operator::gemm_reduce_scatter, {480, 256, 256, Type::bf16, true}, options_of(true));
                 for (const std::int64_t m : sizes_of(world, any.kind, 480, 6)) any.of(m);
                 for (int round = 0; round < 2; ++round)
                   for (auto& [m, sized] : any.sizes) sized.call_from_host(*any.made);
               }),
      0);
}

TEST(GpuAnyM, RefusesWhatNeedsTheOtherRanks) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(2, 20,
                     [](World& world) {
                       const auto refused = [&](std::optional<Strategy> strategy, Transport transport) {
                         OperatorOptions options = test::options_of(strategy, transport, 0);
                         return error_of([&] {
                           AllGatherGemm(world, {.m = 512, .n = 512, .k = 256, .type = Type::bf16, .any_m = true},
                                         options);
                         });
                       };
                       const std::string library = refused(Strategy::sequential, Transport::push),
                                         copies = refused(Strategy::fused, Transport::push);
                       EXPECT_NE(library.find("any_m = true: on GPUs operators of any M run plans of strategy fused"),
                                 std::string::npos)
                           << library;
                       EXPECT_NE(copies.find("transport store"), std::string::npos) << copies;
                     }),
            0);
}

// Rank 1 keeps away from a call: the message names a task of the plan that waited.
TEST(GpuAnyM, NamesTheTaskWhoseWaitPassesItsLimit) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  std::string message;
  const int code = on_ranks(2, 2, [&](World& world) {
    AnyM any(world, Operator::gemm_all_reduce, {512, 512, 512, Type::bf16}, options_of(true));
    const Stream stream(world);
    for (const std::int64_t m : {512, 64, 200}) any.of(m);
    for (const std::int64_t m : {512, 64, 200}) any.of(m).call(*any.made, stream);
    any.made->synchronize(stream);
    world.barrier();
    if (world.rank() == 1)
      for (;;) {
        world.throw_if_failed();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    try {
      any.of(64).call(*any.made, stream);
      any.made->synchronize(stream);
    } catch (const Error& error) {
      message = error.what();
      throw;
    }
  });
  EXPECT_EQ(code, 3);
  EXPECT_NE(message.find("waited longer than 2 s for signal"), std::string::npos) << message;
  EXPECT_NE(message.find("in epoch 3: "), std::string::npos) << message;
}

}  // namespace
}  // namespace imbrex
