// Reduce-scatter, all-gather and all-to-all on GPUs: the bits of those on the CPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "collectives/backend.hpp"
#include "collectives/cuda/cuda_collectives.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/collectives/reduce_vectors.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

using cuda::CollectivesOptions, cuda::CudaCollectives;
using test::Trouble, test::expect_none;

struct ExchangeCase {
  ExchangeKind kind;
  std::int64_t count;  // of a block
  Type type;
  std::size_t in_shift, out_shift;  // elements
  bool hostile;
  const char* codec = nullptr;  // null: exact

  ExchangeOptions options() const { return {.codec = codec ? std::optional(parse_codec(codec)) : std::nullopt}; }

  std::string text() const {
    return std::string(name_of(kind)) + " " + std::to_string(count) + " " + std::string(name_of(type)) + " shifts " +
           std::to_string(in_shift) + " " + std::to_string(out_shift) + (hostile ? " hostile" : "") + " " +
           (codec ? codec : "exact");
  }
};

// One rank's memory: blocks between bytes that must stay as they are.
class Blocks {
 public:
  Blocks(World& world, const ExchangeCase& c)
      : c_(c),
        element_(size_of(c.type)),
        in_bytes_(bytes_of(c.kind == ExchangeKind::all_gather ? 1 : world.size())),
        out_bytes_(bytes_of(c.kind == ExchangeKind::reduce_scatter ? 1 : world.size())),
        host_in_(in_bytes_),
        in_(cuda::raw_memory(in_bytes_ + c.in_shift * element_)),
        out_(cuda::raw_memory(out_bytes_ + (c.out_shift + guard) * element_)) {
    const std::vector<std::byte> stretch = test::input_stretch(c.type, world.rank(), 3, c.hostile);
    for (std::size_t i = 0; i < in_bytes_; ++i) host_in_[i] = stretch[i % stretch.size()];
    cuda::upload(in(), host_in_.data(), in_bytes_);
  }

  const std::vector<std::byte>& host_in() const { return host_in_; }
  std::size_t out_bytes() const { return out_bytes_; }
  std::byte* in() const { return static_cast<std::byte*>(in_.get()) + c_.in_shift * element_; }
  std::byte* out() const { return static_cast<std::byte*>(out_.get()) + c_.out_shift * element_; }

  void spoil() { cuda::fill(out_.get(), 0xa5, out_bytes_ + (c_.out_shift + guard) * element_); }

  /// Empty if the output is `want`, any NaN for NaN, and nothing around it was written.
  std::string fault(const std::vector<std::byte>& want) const {
    std::vector<std::byte> all(out_bytes_ + (c_.out_shift + guard) * element_);
    IMBREX_CUDA_TRY(cudaMemcpy(all.data(), out_.get(), all.size(), cudaMemcpyDeviceToHost));
    const std::size_t first = c_.out_shift * element_;
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((i < first || i >= first + out_bytes_) && all[i] != std::byte{0xa5})
        return "byte " + std::to_string(i) + " beside the output was written";
    const auto count = static_cast<std::int64_t>(out_bytes_ / element_);
    for (std::int64_t at = 0; at < count; at += test::reduce_period) {
      const std::int64_t n = std::min(count - at, test::reduce_period);
      const std::size_t o = static_cast<std::size_t>(at) * element_;
      const std::vector<std::byte> part(want.begin() + static_cast<std::ptrdiff_t>(o),
                                        want.begin() + static_cast<std::ptrdiff_t>(o) + n * static_cast<int>(element_));
      if (const std::int64_t d = test::first_difference(c_.type, all.data() + first + o, n, part); d >= 0)
        return "element " + std::to_string(at + d) + " is wrong";
    }
    return {};
  }

 private:
  static constexpr std::size_t guard = 32;  // elements

  std::size_t bytes_of(int blocks) const {
    return static_cast<std::size_t>(blocks) * static_cast<std::size_t>(c_.count) * element_;
  }

  ExchangeCase c_;
  std::size_t element_, in_bytes_, out_bytes_;
  std::vector<std::byte> host_in_;
  cuda::RawMemory in_, out_;
};

std::vector<std::byte> on_cpu(World& world, const ExchangeCase& c, const Blocks& blocks) {
  std::vector<std::byte> want(blocks.out_bytes());
  const auto reference = collectives::make_cpu_exchange(world, c.kind, c.count, c.type, c.options());
  (*reference)(blocks.host_in().data(), want.data(), c.count);
  return want;
}

void call(CudaCollectives& collectives, const ExchangeCase& c, const Blocks& blocks, cudaStream_t stream) {
  if (c.codec)
    collectives.exchange(c.kind, blocks.in(), blocks.out(), c.count, c.type, parse_codec(c.codec), stream);
  else
    collectives.exchange(c.kind, blocks.in(), blocks.out(), c.count, c.type, stream);
}

void run_cases(int ranks, const std::vector<ExchangeCase>& cases, const CollectivesOptions& options, int repeats) {
  Trouble faults;
  const auto body = [&](World& world) {
    CudaCollectives collectives(world, test::select_gpu(world), test::sharing(options));
    const test::Stream stream(world);
    for (const ExchangeCase& c : cases) {
      Blocks blocks(world, c);
      const std::vector<std::byte> want = on_cpu(world, c, blocks);
      for (int repeat = 0; repeat < repeats; ++repeat) {
        blocks.spoil();
        call(collectives, c, blocks, stream);
        collectives.finish(stream);
        if (const std::string fault = blocks.fault(want); !fault.empty()) {
          faults.add(c.text() + " rank " + std::to_string(world.rank()) + ": " + fault);
        }
      }
    }
    return 0;
  };
  expect_none(test::on_world(ranks, {.heap_bytes = 64 << 20, .wait_limit = 10}, body), faults);
}

constexpr ExchangeKind kinds[] = {ExchangeKind::reduce_scatter, ExchangeKind::all_gather, ExchangeKind::all_to_all};

std::vector<ExchangeCase> all_cases() {
  std::vector<ExchangeCase> list;
  for (const ExchangeKind kind : kinds)
    for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{7}, std::int64_t{8}, std::int64_t{1000},
                                       std::int64_t{4096}, std::int64_t{70'001}, std::int64_t{262'144}})
        for (const bool odd : {false, true}) list.push_back({kind, count, type, odd ? 1u : 0u, odd ? 3u : 0u, odd});
  return list;
}

TEST(GpuExchange, BitsOnSeveralNumbersOfRanks) {
  NEEDS_GPUS(2);
  for (const int ranks : test::rank_counts(2)) run_cases(ranks, all_cases(), {}, 2);
}

std::vector<ExchangeCase> quantized_cases() {
  std::vector<ExchangeCase> list;
  for (const ExchangeKind kind : kinds)
    for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
      for (const char* codec : {"int8", "int6-g64", "int5-asym", "int4-asym-g128", "int3-fp32", "fp8-e8m0"})
        for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{70'001}})
          for (const bool odd : {false, true})
            list.push_back({kind, count, type, odd ? 1u : 0u, odd ? 3u : 0u, odd, codec});
  return list;
}

TEST(GpuExchange, QuantizedBitsOnSeveralNumbersOfRanks) {
  NEEDS_GPUS(2);
  for (const int ranks : test::rank_counts(1)) run_cases(ranks, quantized_cases(), {}, 2);
}

TEST(GpuExchange, BlocksLargerThanTheWorkspaceAndPauses) {
  NEEDS_GPUS(2);
  CollectivesOptions options;
  options.workspace_bytes = std::size_t{16} << 20;
  options.delays = 8;
  options.max_delay = 5e-5;
  std::vector<ExchangeCase> list;
  for (const ExchangeKind kind : kinds)
    for (const char* codec : {static_cast<const char*>(nullptr), "int8", "int3-asym-g128"})
      list.push_back({kind, 3'000'001, Type::bf16, 0, 1, false, codec});
  run_cases(test::most_ranks(), list, options, 2);
}

TEST(GpuExchange, ThousandsOfReplaysWithPauses) {
  NEEDS_GPUS(2);
  CollectivesOptions options;
  options.delays = 6;
  options.max_delay = 1e-5;
  Trouble faults;
  const auto body = [&](World& world) {
    CudaCollectives collectives(world, test::select_gpu(world), test::sharing(options));
    const test::Stream stream(world);
    std::vector<std::unique_ptr<Blocks>> blocks;
    std::vector<std::vector<std::byte>> want;
    std::vector<ExchangeCase> cases;
    for (int i = 0; i < 6; ++i) {
      cases.push_back({kinds[i % 3], 5000, Type::bf16, 0, 0, false, i < 3 ? nullptr : "int6"});
      blocks.push_back(std::make_unique<Blocks>(world, cases.back()));
      want.push_back(on_cpu(world, cases.back(), *blocks.back()));
    }
    const cuda::Graph graph(stream, 1, [&] {
      for (std::size_t i = 0; i < cases.size(); ++i) call(collectives, cases[i], *blocks[i], stream);
    });
    for (int round = 0; round < 10; ++round) {
      for (auto& b : blocks) b->spoil();
      for (int i = 0; i < 200; ++i) graph.launch(stream);
      collectives.finish(stream);
      for (std::size_t i = 0; i < cases.size(); ++i)
        if (const std::string fault = blocks[i]->fault(want[i]); !fault.empty()) {
          faults.add(cases[i].text() + " round " + std::to_string(round) + ": " + fault);
        }
    }
    return 0;
  };
  expect_none(test::on_world(test::most_ranks(), {.heap_bytes = 64 << 20, .wait_limit = 10}, body), faults);
}

TEST(GpuExchange, PublicObjectsReportWhatTheCpuReports) {
  NEEDS_OWN_GPUS(2);
  Trouble faults;
  const auto body = [&](World& world) {
    test::select_gpu(world);  // the blocks are made first
    for (const ExchangeKind kind : kinds)
      for (int i = 0; i < 8; ++i) {
        constexpr const char* codecs[] = {nullptr, "int8", "int4-asym-g128", "fp8-g64-e8m0"};
        const bool hostile = i % 2 == 1;
        const ExchangeCase c{kind, 3000, Type::fp16, 0, 0, hostile, codecs[i / 2]};
        Blocks blocks(world, c);
        blocks.spoil();
        const auto gpu = collectives::make_cuda_exchange(world, kind, c.count, c.type, c.options()),
                   cpu = collectives::make_cpu_exchange(world, kind, c.count, c.type, c.options());
        std::vector<std::byte> want(blocks.out_bytes());
        (*gpu)(blocks.in(), blocks.out(), c.count);
        (*cpu)(blocks.host_in().data(), want.data(), c.count);
        const ExchangeReport a = gpu->report(), b = cpu->report();
        if (const std::string fault = blocks.fault(want); !fault.empty()) faults.add(c.text() + ": " + fault);
        // A GPU looks at fewer elements of exact sums at a time.
        if (!(c.codec ? a.largest_error == b.largest_error : a.largest_error <= b.largest_error) ||
            a.non_finite != b.non_finite || a.groups != b.groups)
          faults.add(c.text() + ": error " + std::to_string(a.largest_error) + " CPU " +
                     std::to_string(b.largest_error) + ", not finite " + std::to_string(a.non_finite) + " CPU " +
                     std::to_string(b.non_finite) + ", groups " + std::to_string(a.groups) + " CPU " +
                     std::to_string(b.groups));
      }
    return 0;
  };
  expect_none(test::on_world(2, {.heap_bytes = 64 << 20, .wait_limit = 10}, body), faults);
}

}  // namespace
}  // namespace imbrex
