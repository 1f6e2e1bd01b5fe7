// Counters of the all-reduces through codecs: what is posted after a wait was given up, and what calls leave out.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/cuda/cuda_collectives.hpp"
#include "gpu/collectives/collective_ranks.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex {
namespace {

using cuda::QuantizedKnobs, cuda::QuantizedSteps, cuda::QuantizedWay, cuda::CudaCollectives;
using test::Trouble, test::run_collectives;

void sleep_longer_than_the_limit(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(1500)); }

/// How far the ranks have come, which may be processes.
struct Progress {
  std::atomic<int> began = 0;
  std::atomic<bool> late_has_ended = false;
};

struct Call {
  const char* codec;
  QuantizedKnobs knobs;
};

// A rank whose stream is busy comes when its peer has given up, and has not told anybody but the GPUs: it must not take
// what was never sent for sums.
TEST(GpuQuantizedCounters, ALateRankDoesNotTakeWhatWasGivenUp) {
  NEEDS_OWN_GPUS(2);
  QuantizedKnobs staged, tolerant, chunks;
  staged.way = QuantizedWay::copies;
  tolerant.tolerance = 1;
  chunks.blocks = 1, chunks.span = 64, chunks.slots = 3, chunks.steps = QuantizedSteps::one_shot;
  for (const Call& call : {Call{"int8", staged}, Call{"int8", tolerant}, Call{"int5-asym", {}}, Call{"int8", chunks}}) {
    Trouble trouble;
    const test::SharedArray<Progress> shared(1);
    Progress& progress = shared[0];
    const int code = run_collectives(
        2, {}, 0.5, trouble, [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
          constexpr std::int64_t count = 1 << 20;
          const auto memory = cuda::raw_memory(count * 2);
          cuda::fill(memory.get(), 0, count * 2);
          IMBREX_CUDA_TRY(cudaDeviceSynchronize());
          world.barrier();
          const bool late = world.rank() == 1;
          if (late) IMBREX_CUDA_TRY(cudaLaunchHostFunc(stream, sleep_longer_than_the_limit, nullptr));
          collectives.all_reduce(memory.get(), memory.get(), count, Type::bf16, parse_codec_pair(call.codec), stream,
                                 call.knobs);
          ++progress.began;
          for (int i = 0; !late && !progress.late_has_ended && i < 800; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          try {
            collectives.finish(stream);
            t.add(std::string(call.codec) + ": rank " + std::to_string(world.rank()) + " ended well");
          } catch (const Error&) {
            if (late) progress.late_has_ended = true;
            throw;
          }
          if (late) progress.late_has_ended = true;
        });
    EXPECT_EQ(code, 3) << call.codec;
    EXPECT_EQ(progress.began, 2) << call.codec << ": ranks ended before the call";
    for (const std::string& line : trouble.list()) ADD_FAILURE() << line;
  }
}

// Calls by the kernel for any codec use one counter of each kind, rings have their own. The others follow before they
// seem to be ahead.
TEST(GpuQuantizedCounters, ThoseThatCallsDoNotPostFollow) {
  NEEDS_OWN_GPUS(2);
  for (const QuantizedSteps steps : {QuantizedSteps::two_shot, QuantizedSteps::ring}) {
    SCOPED_TRACE(steps == QuantizedSteps::ring ? "ring" : "two steps");
    Trouble trouble;
    const int code = run_collectives(
        2, {}, 30, trouble, [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
          constexpr std::int64_t count = 3'000'000;
          const auto memory = cuda::raw_memory(count * 2);
          cuda::fill(memory.get(), 0, count * 2);
          IMBREX_CUDA_TRY(cudaDeviceSynchronize());
          world.barrier();
          QuantizedKnobs narrow;
          narrow.blocks = 1, narrow.span = 64, narrow.slots = 3, narrow.steps = steps;
          if (steps == QuantizedSteps::two_shot) narrow.tolerance = 1;
          const CodecPair pair = parse_codec_pair("int8");
          cuda::CommState state{};
          for (int round = 0; round < 60 && state.blocks[0].posts < (1u << 20); ++round) {
            for (int i = 0; i < 20; ++i)
              collectives.all_reduce(memory.get(), memory.get(), count, Type::bf16, pair, stream, narrow);
            collectives.finish(stream);
            state = collectives.own_state();
          }
          world.barrier();
          state = collectives.own_state();
          const auto expect_near = [&](const char* what, std::uint32_t counter) {
            if (counter < (1u << 20) || counter > state.blocks[0].posts)
              t.add("rank " + std::to_string(world.rank()) + ": a counter of " + what + " at " +
                    std::to_string(counter) + " after " + std::to_string(state.blocks[0].posts) + " posts");
          };
          const int peer = 1 - world.rank();
          for (const auto* kind : {&state.parts, &state.sums, &state.freed})
            for (const cuda::CommCounters& counters : *kind) expect_near("two steps", counters[peer][0]);
          for (int stage = 0; stage < 3; ++stage) expect_near("a ring", state.ring[stage][0]);
        });
    test::expect_none(code, trouble);
  }
}

}  // namespace
}  // namespace imbrex
