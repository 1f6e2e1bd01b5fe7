// Operands on GPUs that share memory: gathers in place have the bits of operands that lie apart, on streams, in graphs
// and under delays; what else overlaps is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/convert.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/operators/operator_subject.hpp"
#include "imbrex/collectives.hpp"

namespace imbrex {
namespace {

using runtime::DeviceMemory;
using test::on_ranks;
using test::options_of;
using test::Stream;

std::vector<std::byte> random_elements(Type type, std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(bytes / size_of(type));
  for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random);
  return base::elements_of(type, values);
}

// An all-gather, its operands apart, and room in which A is this rank's rows of an output.
class Gather {
 public:
  Gather(World& world, const GemmShape& shape, const OperatorOptions& options, std::string_view in)
      : op_(world, shape, options), in_(in) {
    for (const OperandInfo& info : op_.operands()) {
      const auto seed = static_cast<std::uint64_t>(world.rank() + 10 * static_cast<int>(memory_.size()));
      auto& memory = memory_[std::string(info.name)] = std::make_unique<DeviceMemory>(info.bytes());
      memory->upload(random_elements(info.type, info.bytes(), seed));
      if (info.name == "a") a_ = info;
    }
    for (const OperandInfo& info : op_.operands())
      if (info.name == in) own_rows_ = static_cast<std::size_t>(world.rank()) * a_.bytes();
    test::meet_if_sharing(world);
  }

  AllGatherGemm& op() { return op_; }

  std::vector<Operand> operands(bool in_place) {
    std::vector<Operand> all;
    for (const OperandInfo& info : op_.operands())
      all.push_back(
          op_.operand(info.name, info.name == "a" && in_place ? rows() : memory_.at(std::string(info.name))->get()));
    return all;
  }

  /// Brings A to its place in the output.
  void place(cudaStream_t stream) {
    IMBREX_CUDA_TRY(cudaMemcpyAsync(rows(), memory_.at("a")->get(), a_.bytes(), cudaMemcpyDeviceToDevice, stream));
  }

  void poison(cudaStream_t stream) {
    for (const OperandInfo& info : op_.operands())
      if (info.role == OperandRole::output)
        IMBREX_CUDA_TRY(cudaMemsetAsync(memory_.at(std::string(info.name))->get(), 0xff, info.bytes(), stream));
  }

  void call(cudaStream_t stream, bool in_place) {
    poison(stream);
    if (in_place) place(stream);
    op_.run(operands(in_place), stream);
  }

  /// The GPU is idle.
  std::vector<std::vector<std::byte>> outputs() const {
    std::vector<std::vector<std::byte>> all;
    for (const OperandInfo& info : op_.operands())
      if (info.role == OperandRole::output) memory_.at(std::string(info.name))->download(all.emplace_back());
    return all;
  }

  void judge(const std::vector<std::vector<std::byte>>& want, const std::string& when) const {
    if (outputs() != want) throw Error(ErrorCode::unsound, when + ": a gather in place has other bits");
  }

 private:
  std::byte* rows() const { return static_cast<std::byte*>(memory_.at(in_)->get()) + own_rows_; }

  AllGatherGemm op_;
  std::string in_;
  std::map<std::string, std::unique_ptr<DeviceMemory>> memory_;
  OperandInfo a_;
  std::size_t own_rows_ = 0;
};

// A's rows are as long as the output's: K = N/R.
std::vector<std::unique_ptr<Gather>> gathers(World& world, std::uint64_t delays) {
  std::vector<std::unique_ptr<Gather>> list;
  const std::int64_t ranks = world.size(), m = 256 * ranks, k = 384;
  const auto add = [&](GemmShape shape, std::optional<Strategy> strategy, Transport transport, std::string_view in) {
    if (!test::runs_here(strategy, transport)) return;
    shape.m = m, shape.k = k;
    if (shape.n == 0) shape.n = k * ranks;
    list.push_back(std::make_unique<Gather>(world, shape, options_of(strategy, transport, delays), in));
  };
  for (const bool any_m : {false, true}) {
    add({.any_m = any_m}, Strategy::fused, Transport::store, "out");
    add({.n = 128 * ranks, .any_m = any_m, .gathered_a = true}, Strategy::fused, Transport::store, "gathered");
    add({.any_m = any_m}, Strategy::sequential, Transport::push, "out");
  }
  add({}, Strategy::fused, Transport::push, "out");
  add({.n = 128 * ranks, .gathered_a = true}, Strategy::fused, Transport::push, "gathered");
  add({.n = 128 * ranks, .more_n = {k * ranks, 0}}, Strategy::fused, Transport::store, "out1");
  add({}, Strategy::decomposed, Transport::push, "out");
  add({.n = 128 * ranks, .gathered_a = true}, Strategy::sequential, Transport::push, "gathered");
  add({}, Strategy::signaled, Transport::push, "out");
  add({}, std::nullopt, Transport::push, "out");
  return list;
}

void in_place(World& world) {
  auto list = gathers(world, 0);
  const Stream stream(world), side(world);
  std::vector<std::vector<std::vector<std::byte>>> want;
  for (auto& gather : list) {
    gather->call(stream, false);
    gather->op().synchronize(stream);
    want.push_back(gather->outputs());
    test::meet_if_sharing(world);
    // Memory for the copy is taken in a call, and not in a capture.
    const std::string refused =
        test::error_of([&] { cuda::Graph(stream, 1, [&] { gather->op().run(gather->operands(true), stream); }); });
    if (refused.find("the stream is being captured") == std::string::npos)
      throw Error(ErrorCode::unsound, "in a capture: '" + refused + "'");
    cudaGetLastError();
    gather->call(stream, true);
    gather->op().synchronize(stream);
    gather->judge(want.back(), "on a stream");
    test::meet_if_sharing(world);
    gather->place(stream);
    IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
    gather->op().run_and_wait(gather->operands(true));
    gather->judge(want.back(), "waited for");
  }
  // Graphs take turns with calls, whose copies are in one memory.
  std::vector<std::unique_ptr<cuda::Graph>> graphs;
  for (auto& gather : list)
    graphs.push_back(std::make_unique<cuda::Graph>(stream, 2, [&] { gather->call(stream, true); }));
  std::mt19937_64 order(7), own(17 + static_cast<std::uint64_t>(world.rank()));
  for (int i = 0; i < 200; ++i) {
    const std::size_t which = order() % list.size();
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    const bool replayed = order() % 2 == 0;
    if (replayed)
      graphs[which]->launch(stream);
    else
      list[which]->call(stream, order() % 4 != 0);
    list[which]->op().synchronize(stream);
    list[which]->judge(want[which], replayed ? "a replay" : "a call");
  }
}

TEST(GpuInPlace, GathersGiveTheBitsOfOperandsApart) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(2, 20, in_place), 0);
  if (test::most_ranks() == 2) return;
  EXPECT_EQ(on_ranks(test::most_ranks(), 20, in_place), 0);
}

// One operator's calls on two streams share the copy's memory: a call copies when the one before has read its own.
TEST(GpuInPlace, OnTwoStreams) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(2, 20,
                     [](World& world) {
                       const GemmShape shape{.m = 1024, .n = 1024, .k = 512};
                       const OperatorOptions options = options_of(Strategy::fused, Transport::store, 5);
                       Gather one(world, shape, options, "out"), other(world, shape, options, "out");
                       const Stream first(world), second(world);
                       std::vector<std::vector<std::byte>> want[2];
                       int i = 0;
                       for (Gather* gather : {&one, &other}) {
                         gather->call(first, false);
                         gather->op().synchronize(first);
                         want[i++] = gather->outputs();
                       }
                       for (int round = 0; round < 300; ++round) {
                         one.call(first, true);
                         other.call(second, true);
                         one.op().synchronize(first);
                         other.op().synchronize(second);
                         one.judge(want[0], "one");
                         other.judge(want[1], "the other");
                       }
                     }),
            0);
}

TEST(GpuOverlaps, AreRefused) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(2, 20,
                     [](World& world) {
                       for (const Operator kind : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter,
                                                   Operator::gemm_all_reduce, Operator::gemm_all_to_all}) {
                         test::Subject subject(world, kind, {.m = 512, .n = 512, .k = 512},
                                               options_of(Strategy::fused, Transport::store, 0), false);
                         const Stream stream(world);
                         subject.call(stream);
                         subject.op().synchronize(stream);
                         subject.judge("apart");
                         for (const std::size_t moved : {0, 1}) {
                           std::vector<Operand> bad = subject.operands();
                           bad[moved].view.data = static_cast<std::byte*>(subject.out()) + 16;
                           for (const bool waits : {false, true}) {
                             const std::string message = test::error_of([&] {
                               if (waits)
                                 subject.op().run_and_wait(bad);
                               else
                                 subject.op().run(bad, stream);
                             });
                             if (message.find("operand out at ") == std::string::npos ||
                                 message.find(" overlaps operand ") == std::string::npos)
                               throw Error(ErrorCode::unsound, "not refused: '" + message + "'");
                           }
                         }
                         subject.call(stream);
                         subject.op().synchronize(stream);
                         subject.judge("after refusals");
                       }
                     }),
            0);
}

TEST(GpuInPlace, ExchangesGiveTheBitsOfOperandsApart) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(on_ranks(test::most_ranks(), 20,
                     [](World& world) {
                       const auto ranks = static_cast<std::size_t>(world.size()),
                                  rank = static_cast<std::size_t>(world.rank());
                       for (const ExchangeKind kind : {ExchangeKind::all_gather, ExchangeKind::reduce_scatter})
                         for (const char* codec : {"", "int8"})
                           for (const std::int64_t count : {1'000'001, 8192, 24, 3}) {
                             ExchangeOptions options;
                             if (*codec) options.codec = parse_codec(codec);
                             Exchange op(world, kind, count, Type::bf16, options, Device::cuda);
                             const bool gather = kind == ExchangeKind::all_gather;
                             const std::size_t block = static_cast<std::size_t>(count) * 2;
                             DeviceMemory one(block), all(ranks * block);
                             const auto values = random_elements(Type::bf16, gather ? block : ranks * block, 3 + rank);
                             (gather ? one : all).upload(values);
                             const std::int64_t whole = count * world.size();
                             const auto run = [&](void* in, void* out) {
                               op.run({{"in", View::vector(in, Type::bf16, gather ? count : whole)},
                                       {"out", View::vector(out, Type::bf16, gather ? whole : count)}});
                               op.synchronize();
                             };
                             std::vector<std::byte> want, got;
                             run(gather ? one.get() : all.get(), gather ? all.get() : one.get());
                             (gather ? all : one).download(want);
                             std::byte* own = static_cast<std::byte*>(all.get()) + rank * block;
                             for (int i = 0; i < 3; ++i) {
                               if (gather) {
                                 all.fill(0xff);
                                 IMBREX_CUDA_TRY(cudaMemcpy(own, one.get(), block, cudaMemcpyDeviceToDevice));
                               } else {
                                 all.upload(values);
                               }
                               IMBREX_CUDA_TRY(cudaDeviceSynchronize());
                               run(gather ? own : all.get(), gather ? all.get() : own);
                               all.download(got);
                               if (!gather)
                                 got = {got.begin() + static_cast<std::ptrdiff_t>(rank * block),
                                        got.begin() + static_cast<std::ptrdiff_t>((rank + 1) * block)};
                               if (got != want)
                                 throw Error(ErrorCode::unsound,
                                             std::string(name_of(kind)) + " in place has other bits");
                             }
                           }
                     }),
            0);
}

}  // namespace
}  // namespace imbrex
