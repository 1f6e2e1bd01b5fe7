// GPU memory that a world gives back and takes again, behind graphs that hold its calls; and the limit of what it
// takes.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "execute/cuda/lanes/graph.hpp"
#include "gpu/operators/any_m_subject.hpp"
#include "imbrex/collectives.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex {
namespace {

using test::AnyM;
using test::error_of;
using test::on_ranks;
using test::Random;
using test::Stream;
using test::Subject;

constexpr std::size_t mib = std::size_t{1} << 20;

// All operators of a world have the same CUDA options.
OperatorOptions with(Transport transport) { return test::options_of(Strategy::fused, transport, 0); }

std::size_t free_bytes() {
  std::size_t free = 0, all = 0;
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  IMBREX_CUDA_TRY(cudaMemGetInfo(&free, &all));
  return free;
}

// An all-reduce of numbers of this rank's own; what it gave at first is what it must give.
class Reduced {
 public:
  Reduced(World& world, const AllReduceOptions& options)
      : op_(world, count, Type::bf16, options, Device::cuda),
        in_(cuda::raw_memory(bytes)),
        out_(cuda::raw_memory(bytes)) {
    Random random(static_cast<std::uint64_t>(world.rank()) + 3);
    std::vector<std::uint16_t> values(count);
    for (std::uint16_t& value : values) value = static_cast<std::uint16_t>(0x3f00 + random.between(0, 0x1ff));
    cuda::upload(in_.get(), values.data(), bytes);
  }

  void call(cudaStream_t stream) {
    op_.run({{"in", View::vector(in_.get(), Type::bf16, count)}, {"out", View::vector(out_.get(), Type::bf16, count)}},
            stream);
  }
  void poison(cudaStream_t stream) { IMBREX_CUDA_TRY(cudaMemsetAsync(out_.get(), 0xff, bytes, stream)); }
  void judge(const std::string& when) {
    std::vector<std::byte> got(bytes);
    IMBREX_CUDA_TRY(cudaMemcpy(got.data(), out_.get(), bytes, cudaMemcpyDeviceToHost));
    if (wanted_.empty()) wanted_ = got;
    if (got != wanted_) throw Error(ErrorCode::unsound, when + ": an all-reduce has other bits than at first");
  }

 private:
  static constexpr std::int64_t count = 200'000;
  static constexpr std::size_t bytes = count * 2;
  AllReduce op_;
  cuda::RawMemory in_, out_;
  std::vector<std::byte> wanted_;
};

// Something that is called, and a graph of one or three calls of it.
struct Captured {
  std::function<void(cudaStream_t)> call, poison;
  std::function<void(const std::string&)> judge;
  std::unique_ptr<cuda::Graph> graph{};

  void capture(cudaStream_t stream, int calls) {
    graph = std::make_unique<cuda::Graph>(stream, calls, [&] { call(stream); });
  }
};

World& with_its_gpu(World& world) {
  test::select_gpu(world);
  return world;
}

// Calls of every kind that keeps something in memory of the world.
class Everything {
 public:
  explicit Everything(World& world) : stream(with_its_gpu(world)) {
    const std::int64_t m = 24 * 20;
    any_.push_back(std::make_unique<AnyM>(world, Operator::gemm_all_reduce, GemmShape{m, 512, 384, Type::bf16},
                                          with(Transport::store)));
    any_.push_back(std::make_unique<AnyM>(world, Operator::all_gather_gemm, GemmShape{m, 768, 256, Type::bf16},
                                          with(Transport::store)));
    for (const auto& any : any_)
      for (const std::int64_t rows : {m, m / 2, m / 4}) {
        test::Sized& sized = any->of(rows);
        add(sized, [&sized, op = any->made.get()](cudaStream_t on) { sized.call(*op, on); });
      }
    const GemmShape shape{m, 768, 384, Type::bf16};
    subject(world, Operator::gemm_reduce_scatter, shape, Transport::store, 1);
    subject(world, Operator::gemm_all_to_all, shape, Transport::store, 2);
    // Copy engines bring nothing to ranks that share a GPU.
    if (test::ranks_per_gpu() == 1) {
      subject(world, Operator::all_gather_gemm, shape, Transport::push, 3);
    }
    for (const bool quantized : {false, true}) {
      AllReduceOptions options;
      if (quantized) options.codec = parse_codec_pair("int8");
      reduced_.push_back(std::make_unique<Reduced>(world, options));
      add(*reduced_.back(), [op = reduced_.back().get()](cudaStream_t on) { op->call(on); });
    }
  }

  /// Once each, on the stream, and judged.
  void call(const std::string& when) {
    for (Captured& one : all_) one.poison(stream), one.call(stream);
    judge(when);
  }
  void capture() {
    int number = 0;
    for (Captured& one : all_) one.capture(stream, number++ % 3 == 2 ? 3 : 1);
  }
  void replay(int times, const std::string& when) {
    for (int i = 0; i < times; ++i) {
      const bool last = i % 20 == 19 || i + 1 == times;
      for (Captured& one : all_) {
        if (last) one.poison(stream);
        one.graph->launch(stream);
      }
      if (last) judge(fmt::format("replay {} {}", i, when));
    }
  }
  Captured& first() { return all_.front(); }

  Stream stream;

 private:
  template <typename One>
  void add(One& of, std::function<void(cudaStream_t)> call) {
    all_.push_back({std::move(call), [&of](cudaStream_t on) { of.poison(on); },
                    [&of](const std::string& when) { of.judge(when); }});
  }

  void subject(World& world, Operator op, const GemmShape& shape, Transport transport, std::uint64_t seed) {
    subjects_.push_back(std::make_unique<Subject>(world, op, shape, with(transport), false, seed));
    add(*subjects_.back(), [of = subjects_.back().get()](cudaStream_t on) { of->call(on); });
  }

  void judge(const std::string& when) {
    IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
    for (Captured& one : all_) one.judge(when);
  }

  std::vector<std::unique_ptr<AnyM>> any_;
  std::vector<std::unique_ptr<Subject>> subjects_;
  std::vector<std::unique_ptr<Reduced>> reduced_;
  std::vector<Captured> all_;
};

class GpuTrim : public testing::TestWithParam<int> {};

TEST_P(GpuTrim, GraphsReplayWithTheSameBitsBehindIt) {
  NEEDS_OWN_GPUS(GetParam());
  EXPECT_EQ(on_ranks(GetParam(), 20,
                     [](World& world) {
                       Everything all(world);
                       all.call("before");
                       all.capture();
                       all.replay(20, "before");
                       for (int round = 0; round < 3; ++round) {
                         const std::string when = fmt::format("after trim {}", round);
                         trim(world);
                         restore(world);
                         all.replay(round == 0 ? 100 : 21, when);
                         all.call(when);
                       }
                     }),
            0);
}

// A call of an operator or a collective takes the memory again, and so does the making of another operator.
TEST_P(GpuTrim, TheNextCallRestores) {
  NEEDS_OWN_GPUS(GetParam());
  EXPECT_EQ(on_ranks(GetParam(), 20,
                     [](World& world) {
                       Everything all(world);
                       all.call("before");
                       all.capture();
                       for (int round = 0; round < 4; ++round) {
                         const std::string when = fmt::format("after trim {}", round);
                         trim(world);
                         trim(world);
                         if (round == 1) {
                           Reduced first(world, {});
                           first.call(all.stream);
                           IMBREX_CUDA_TRY(cudaStreamSynchronize(all.stream));
                         }
                         std::optional<Subject> other;
                         if (round == 2)
                           other.emplace(world, Operator::gemm_all_reduce, GemmShape{240, 512, 384, Type::bf16},
                                         with(Transport::store), true, 9);
                         if (round == 3) all.first().call(all.stream);
                         all.call(when);
                         all.replay(21, when);
                       }
                     }),
            0);
}

TEST_P(GpuTrim, ACapturedFirstCallIsRefused) {
  NEEDS_OWN_GPUS(GetParam());
  EXPECT_EQ(on_ranks(GetParam(), 20,
                     [](World& world) {
                       Everything all(world);
                       all.call("before");
                       all.capture();
                       trim(world);
                       const std::string said = error_of([&] { all.first().capture(all.stream, 1); });
                       EXPECT_NE(said.find("memory was trimmed: call restore before the capture"), std::string::npos)
                           << said;
                       all.call("after a refusal");
                       all.capture();
                       all.replay(21, "captured after it");
                     }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuTrim, testing::Values(1, 2, 4), testing::PrintToStringParamName());

// As much memory is free as before the world had operators. An earlier world has loaded the kernels.
TEST(GpuTrim, GivesBackWhatTheWorldTook) {
  NEEDS_OWN_GPUS(2);
  NEEDS_THREADS;
  const auto body = [](World& world, bool measured) {
    runtime::select_device(world, 1);
    world.barrier();
    const std::size_t before = free_bytes();
    world.barrier();
    Everything all(world);
    all.call("before");
    all.capture();
    all.replay(3, "before");
    const std::size_t used = before - free_bytes();
    trim(world);
    const std::size_t after = free_bytes();
    world.barrier();
    if (measured) {
      EXPECT_GT(used, 256 * mib);
      EXPECT_LE(before - std::min(before, after), 32 * mib);
    }
    restore(world);
    all.replay(21, "after");
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
    const std::size_t again = before - free_bytes();
    if (measured) {
      EXPECT_NEAR(static_cast<double>(again), static_cast<double>(used), 8.0 * mib);
    }
  };
  for (const bool measured : {false, true}) EXPECT_EQ(on_ranks(2, 20, [&](World& world) { body(world, measured); }), 0);
}

// What lies in memory of allocate_output is the caller's.
TEST(GpuTrim, LeavesOutputs) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(
      on_ranks(
          2, 20,
          [](World& world) {
            Subject op(world, Operator::gemm_all_reduce, {240, 512, 384, Type::bf16}, with(Transport::store), true);
            op.call();
            op.judge("before");
            trim(world);
            op.judge("trimmed");
            restore(world);
            op.judge("restored");
            op.call();
            op.judge("after");
          }),
      0);
}

// Objects end while their memory is away.
TEST(GpuTrim, OperatorsEndAndComeMeanwhile) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(on_ranks(2, 20,
                     [](World& world) {
                       std::optional<Everything> all(std::in_place, world);
                       all->call("before");
                       trim(world);
                       all.reset();
                       all.emplace(world);
                       all->call("made anew");
                       trim(world);
                     }),
            0);
}

TEST(GpuTrim, OfSomeRanksFailsOnAll) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(on_ranks(2, 20,
                     [](World& world) {
                       Everything all(world);
                       all.call("before");
                       for (int round = 0; round < 4; ++round) {
                         if (round == 2) trim(world);  // the call of the others would restore
                         const bool trims = world.rank() == round % 2;
                         if (!trims) std::this_thread::sleep_for(std::chrono::milliseconds(200));
                         const std::string said = error_of([&] {
                           if (trims)
                             round < 2 ? trim(world) : restore(world);
                           else
                             all.first().call(all.stream);
                         });
                         EXPECT_FALSE(said.empty());
                         all.call(fmt::format("after round {}", round));
                       }
                     }),
            0);
}

// What needs more than the heap may have is refused on every rank, with both numbers; what was there works on.
TEST(GpuTrim, TheHeapKeepsItsLimit) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(
      on_ranks(2, 20,
               [](World& world) {
                 OperatorOptions options = with(Transport::store);
                 options.cuda.heap_bytes = 32 * mib;
                 options.cuda.heap_limit = 64 * mib;
                 const auto expect_refused = [](const std::string& said) {
                   EXPECT_NE(said.find("heap_limit is 67108864"), std::string::npos) << said;
                   EXPECT_NE(said.find("bytes more are asked"), std::string::npos) << said;
                 };
                 AnyM any(world, Operator::gemm_reduce_scatter, {24 * 20, 512, 384, Type::bf16}, options);
                 Subject fixed(world, Operator::gemm_reduce_scatter, {24 * 20, 768, 384, Type::bf16}, options, false);
                 const Stream stream(world);
                 test::Sized& sized = any.of(24 * 20);
                 sized.call(*any.made, stream);
                 any.made->synchronize(stream);
                 const cuda::Graph graph(stream, 1, [&] { sized.call(*any.made, stream); });
                 const auto works = [&](const std::string& when) {
                   sized.poison(stream);
                   sized.call(*any.made, stream);
                   fixed.call(stream);
                   any.made->synchronize(stream);
                   sized.judge(when);
                   fixed.judge(when);
                   sized.poison(stream);
                   graph.launch(stream);
                   any.made->synchronize(stream);
                   sized.judge(when + ", replayed");
                 };
                 works("before");
                 for (int round = 0; round < 2; ++round) {
                   expect_refused(error_of([&] { any.made->grow(24 * 2000); }));
                   works("after growth was refused");
                   GemmShape large{24 * 2000, 4096, 512, Type::bf16};
                   expect_refused(
                       error_of([&] { test::make_operator(world, Operator::gemm_reduce_scatter, large, options); }));
                   works("after one of one M was refused");
                   large.any_m = true;
                   expect_refused(
                       error_of([&] { test::make_operator(world, Operator::gemm_reduce_scatter, large, options); }));
                   works("after one of any M was refused");
                 }
               }),
      0);
}

// All but some memory of the current GPU.
std::vector<cuda::RawMemory> take_most() {
  std::vector<cuda::RawMemory> taken;
  for (std::size_t part = 1024 * mib; part >= 16 * mib; part /= 2)
    while (free_bytes() > part + 96 * mib) taken.push_back(cuda::raw_memory(part));
  return taken;
}

// One rank's GPU is full: no rank grows, and what was there works on.
TEST(GpuTrim, ARankWithoutMemoryIsEveryRanks) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(
      on_ranks(
          2, 20,
          [](World& world) {
            AnyM any(world, Operator::gemm_reduce_scatter, {24 * 20, 512, 384, Type::bf16}, with(Transport::store));
            test::Sized& sized = any.of(24 * 20);
            const auto works = [&](const std::string& when) {
              sized.call_and_wait(*any.made);
              sized.judge(when);
            };
            works("before");
            GemmShape large{24 * 2000, 4096, 512, Type::bf16};
            const auto make = [&](bool any_m) {
              large.any_m = any_m;
              test::make_operator(world, Operator::gemm_reduce_scatter, large, with(Transport::store));
            };
            for (const bool any_m : {true, false}) {
              std::vector<cuda::RawMemory> taken;
              if (world.rank() == 1) taken = take_most();
              world.barrier();
              const std::string said = error_of([&] { make(any_m); });
              EXPECT_NE(said.find("does not have"), std::string::npos) << said;
              works("without memory");
            }
            make(true);
            works("with memory");
            trim(world);
            std::vector<cuda::RawMemory> taken;
            if (world.rank() == 1) taken = take_most();
            world.barrier();
            EXPECT_NE(error_of([&] { restore(world); }).find("does not have"), std::string::npos);
            EXPECT_NE(error_of([&] { sized.call_and_wait(*any.made); }).find("does not have"), std::string::npos);
            taken.clear();
            world.barrier();
            works("restored");
          }),
      0);
}

// A limit below the smallest piece of memory.
TEST(GpuTrim, ALimitThatHoldsNothingIsRefused) {
  NEEDS_OWN_GPUS(1);
  EXPECT_EQ(on_ranks(1, 20,
                     [](World& world) {
                       OperatorOptions options = with(Transport::store);
                       options.cuda.heap_limit = 1000;
                       const std::string said = error_of([&] {
                         test::make_operator(world, Operator::gemm_all_reduce, {64, 64, 64, Type::bf16}, options);
                       });
                       EXPECT_NE(said.find("heap_limit is 1000"), std::string::npos) << said;
                     }),
            0);
}

}  // namespace
}  // namespace imbrex
