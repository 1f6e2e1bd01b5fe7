// Operators on GPUs: how failure surfaces, and what they refuse.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <utility>

#include "base/fixed_text.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/operators/operator_subject.hpp"

namespace imbrex {
namespace {

using runtime::DeviceMemory;
using test::on_ranks;
using test::options_of;
using test::Stream;
using test::Subject;
using Clock = std::chrono::steady_clock;

struct Ending {
  std::string message;
  double seconds = 0;
};

// How rank 0's host waits for its stream: by CUDA's means, which knows nothing of ranks, and asks once; or the
// operator's.
enum class Waits { by_cuda, by_operator };

// Rank 1 keeps away from a call that rank 0 has queued, and is lost or not.
Ending rank_0_alone(Strategy strategy, Transport transport, bool lost, double limit, Waits waits = Waits::by_cuda) {
  // Rank 0 may be another process.
  struct Told {
    char message[2048] = {};
    double seconds = 0;
  };
  const test::SharedArray<Told> told(1);
  OperatorOptions options = options_of(strategy, transport, 0);
  options.knobs = Knobs{.transport = transport};
  std::atomic<bool> ended = false;
  const int code = on_ranks(2, limit, [&](World& world) {
    Subject s(world, Operator::gemm_all_reduce, {512, 512, 512, Type::bf16}, options, false);
    const Stream stream(world);
    s.call(stream);
    s.op().synchronize(stream);
    world.barrier();
    if (world.rank() == 1) {
      if (lost) {
        world.fail("rank 1 is lost");
        // NOTE: on one GPU, memory that is given back holds up every call there.
        for (int i = 0; test::ranks_per_gpu() > 1 && !ended && i < 1000; ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return;
      }
      for (;;) {
        world.throw_if_failed();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    const auto begin = Clock::now();
    try {
      s.call(stream);
      if (waits == Waits::by_operator) s.op().synchronize(stream);
      cudaStreamSynchronize(stream);
      s.op().check();
      world.fail("nobody was told of the wait");
    } catch (const Error& error) {
      base::put_text(error.what(), told[0].message);
      told[0].seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      ended = true;
      throw;
    }
  });
  EXPECT_EQ(code, 3);
  const Ending ending{told[0].message, told[0].seconds};
  std::cout << name_of(strategy) << ": " << ending.message << " (after " << ending.seconds << " s)\n";
  return ending;
}

TEST(GpuOperators, AWaitPastItsLimitEndsTheCallersStream) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  const Ending fused = rank_0_alone(Strategy::fused, Transport::store, false, 3);
  EXPECT_NE(fused.message.find("waited longer than 3 s for signal"), std::string::npos);
  EXPECT_NE(fused.message.find(" over 2 ranks; rank 1 has not come to this rank's last call"), std::string::npos);
  EXPECT_LT(fused.seconds, 6);
}

TEST(GpuOperators, ACollectivePastItsLimitEndsTheCallersStream) {
  NEEDS_OWN_GPUS(2);
  const Ending library = rank_0_alone(Strategy::sequential, Transport::push, false, 5);
  EXPECT_NE(library.message.find("(collective) waited longer than 5 s"), std::string::npos);
  EXPECT_NE(library.message.find(" over 2 ranks; rank 1 has not come to this rank's last call"), std::string::npos);
  EXPECT_LT(library.seconds, 11);
  for (const Waits waits : {Waits::by_cuda, Waits::by_operator}) {
    const Ending own = rank_0_alone(Strategy::sequential, Transport::store, false, 3, waits);
    EXPECT_NE(own.message.find("waited longer than 3 s in collective call"), std::string::npos);
    EXPECT_NE(own.message.find("; rank 1 has not come to this rank's last call"), std::string::npos);
    EXPECT_LT(own.seconds, 6);
  }
}

class GpuOperatorsOf : public testing::TestWithParam<std::pair<Strategy, Transport>> {};

TEST_P(GpuOperatorsOf, ALostRankEndsTheCallersStream) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  if (!test::runs_here(GetParam().first, GetParam().second)) GTEST_SKIP() << "ranks share a GPU";
  const Ending ending = rank_0_alone(GetParam().first, GetParam().second, true, 25);
  EXPECT_NE(ending.message.find("rank 1"), std::string::npos);
  EXPECT_LT(ending.seconds, 8);
}

INSTANTIATE_TEST_SUITE_P(Strategies, GpuOperatorsOf,
                         testing::Values(std::pair{Strategy::fused, Transport::store},
                                         std::pair{Strategy::sequential, Transport::push},
                                         std::pair{Strategy::sequential, Transport::store}),
                         [](const auto& test) {
                           return std::string(name_of(test.param.first)) + "_" +
                                  std::string(name_of(test.param.second));
                         });

// What `call` throws.
template <typename Call>
std::string refusal_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input) << error.what();
    return error.what();
  }
  return "nothing was refused";
}

// One of each is what a program gets where it forgets to select the rank's GPU.
TEST(GpuOperators, RefuseStreamsAndMemoryOfOtherGpus) {
  NEEDS_OWN_GPUS(2);
  const auto body = [](World& world) {
    Subject s(world, Operator::gemm_all_reduce, {64, 64, 64, Type::bf16},
              options_of(Strategy::fused, Transport::store, 0), false);
    const int own = world.rank(), other = 1 - own;
    const Stream stream(world);
    IMBREX_CUDA_TRY(cudaSetDevice(other));
    const Stream foreign(world);
    const DeviceMemory far(64 * 64 * 2);
    const auto said = [&](const std::string& text, const std::string& about) {
      EXPECT_NE(text.find(about + std::to_string(other)), std::string::npos) << text;
      EXPECT_NE(text.find("works on GPU " + std::to_string(own)), std::string::npos) << text;
    };
    said(refusal_of([&] { s.call(foreign); }), "the stream belongs to GPU ");
    IMBREX_CUDA_TRY(cudaSetDevice(other));
    said(refusal_of([&] { const cuda::Graph graph(foreign, 1, [&] { s.call(foreign); }); }),
         "the stream belongs to GPU ");
    const auto from_far = [&] { return s.operands(far.get(), far.get(), s.out()); };
    said(refusal_of([&] { s.op().run(from_far(), stream); }), "lies in the memory of GPU ");
    said(refusal_of([&] { s.op().run_and_wait(from_far()); }), "lies in the memory of GPU ");
    // Another GPU is current, and nothing has happened.
    IMBREX_CUDA_TRY(cudaSetDevice(other));
    s.call(stream);
    s.op().synchronize(stream);
    s.judge("after refusals");
    IMBREX_CUDA_TRY(cudaSetDevice(other));
    s.call(nullptr);
    s.op().synchronize(nullptr);
    s.judge("on the default stream");
  };
  EXPECT_EQ(on_ranks(2, 5, body), 0);
}

TEST(GpuOperators, RefuseWhatTheyCannotTake) {
  NEEDS_GPUS(2);
  EXPECT_EQ(
      on_ranks(
          2, 5,
          [](World& world) {
            const OperatorOptions options = options_of(Strategy::fused, Transport::store, 0);
            Subject s(world, Operator::gemm_all_reduce, {64, 64, 64, Type::bf16}, options, false);
            std::vector<std::byte> host(64 * 64 * 2), out(host.size());
            const Stream stream(world);
            EXPECT_THROW(s.op().run(s.operands(host.data(), host.data(), out.data()), stream), Error);
            OperatorOptions other = options;
            other.cuda.heap_bytes *= 2;
            EXPECT_THROW(test::make_operator(world, Operator::gemm_all_reduce, {64, 64, 64, Type::bf16}, other), Error);
            s.call();  // nothing has happened
            s.judge("after refusals");
          }),
      0);
}

}  // namespace
}  // namespace imbrex
