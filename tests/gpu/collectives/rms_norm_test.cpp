// All-reduces with residual and RMSNorm on GPUs: the bits of the one on the CPU.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "collectives/backend.hpp"
#include "collectives/cuda/cuda_collectives.hpp"
#include "collectives/rms_norm.hpp"
#include "collectives/rms_norm_case.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/collectives/collective_ranks.hpp"
#include "gpu/collectives/reduce_vectors.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

using cuda::CollectivesOptions, cuda::CudaCollectives, cuda::ExactAlgorithm, cuda::RmsNormKnobs;
using test::RmsNormCase, test::RmsNormData;
using test::Trouble, test::expect_none, test::run_collectives;

struct Case {
  RmsNormCase base;
  RmsNormKnobs knobs;
  bool in_place = false;
  std::size_t shift = 0;  // elements from a boundary of 16 bytes

  std::string text() const {
    const char* names[] = {"automatic", "one_shot", "two_shot"};
    return base.text() + " " + names[static_cast<std::size_t>(knobs.algorithm)] + " blocks " +
           std::to_string(knobs.blocks) + " cluster " + std::to_string(knobs.cluster) + " shift " +
           std::to_string(shift) + (in_place ? " in place" : "");
  }
};

// A matrix between bytes that must stay as they are.
class Matrix {
 public:
  Matrix(std::size_t bytes, std::size_t shift) : bytes_(bytes), first_(guard + shift), all_(bytes + shift + 2 * guard) {
    memory_ = cuda::raw_memory(all_);
  }

  std::byte* get() const { return static_cast<std::byte*>(memory_.get()) + first_; }

  void fill(const std::vector<std::byte>& with) const {
    cuda::fill(memory_.get(), 0xa5, all_);
    if (!with.empty()) cuda::upload(get(), with.data(), with.size());
  }

  /// Throws where a guard has changed.
  std::vector<std::byte> read() const {
    std::vector<std::byte> host(all_);
    IMBREX_CUDA_TRY(cudaMemcpy(host.data(), memory_.get(), all_, cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < all_; ++i)
      if ((i < first_ || i >= first_ + bytes_) && host[i] != std::byte{0xa5})
        throw std::runtime_error("byte " + std::to_string(i) + " beside a matrix was written");
    return {host.begin() + static_cast<std::ptrdiff_t>(first_),
            host.begin() + static_cast<std::ptrdiff_t>(first_ + bytes_)};
  }

 private:
  static constexpr std::size_t guard = 64;
  std::size_t bytes_, first_, all_;
  cuda::RawMemory memory_;
};

// One rank's memory of a case, and what must come out.
class Rank {
 public:
  Rank(World& world, const Case& c, std::uint64_t seed)
      : c_(c),
        data_(test::rms_norm_data(c.base, world.size(), seed)),
        own_(data_.in[static_cast<std::size_t>(world.rank())]),
        shift_(c.shift * size_of(c.base.type)),
        in_(own_.size(), shift_),
        residual_(data_.residual.size(), shift_),
        weight_(data_.weight.size(), c.shift * size_of(c.base.weight())),
        sums_(own_.size(), shift_),
        out_(own_.size(), shift_),
        want_sums_(own_.size()),
        want_out_(own_.size()) {
    const auto reference = collectives::make_cpu_all_reduce_rms_norm(
        world, c.base.rows, c.base.hidden, c.base.type, {.eps = c.base.eps, .weight_type = c.base.weight_type});
    (*reference)({own_.data(), c.base.residual ? data_.residual.data() : nullptr, data_.weight.data(),
                  want_sums_.data(), want_out_.data()},
                 c.base.rows);
  }

  void fill() {
    in_.fill(own_);
    residual_.fill(data_.residual);
    weight_.fill(data_.weight);
    sums_.fill({});
    out_.fill({});
    IMBREX_CUDA_TRY(cudaStreamSynchronize(nullptr));
  }

  collectives::RmsNormOperands operands() const {
    return {in_.get(),          c_.base.residual ? residual_.get() : nullptr, weight_.get(), sums().get(), out().get(),
            c_.base.weight_type};
  }

  void call(CudaCollectives& collectives, cudaStream_t stream) const {
    collectives.all_reduce_rms_norm(operands(), c_.base.rows, c_.base.hidden, c_.base.eps, c_.base.type, stream,
                                    c_.knobs);
  }

  std::string fault() const {
    try {
      if (const auto at = test::first_different(c_.base.type, sums().read(), want_sums_); at >= 0)
        return "residual_out: element " + std::to_string(at) + " is not the CPU's";
      if (const auto at = test::first_different(c_.base.type, out().read(), want_out_); at >= 0)
        return "out: element " + std::to_string(at) + " is not the CPU's";
      for (const Matrix* untouched : {&in_, &residual_, &weight_}) untouched->read();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return {};
  }

 private:
  const Matrix& sums() const { return c_.in_place && c_.base.residual ? residual_ : sums_; }
  const Matrix& out() const { return c_.in_place ? in_ : out_; }

  Case c_;
  RmsNormData data_;
  std::vector<std::byte> own_;
  std::size_t shift_;
  Matrix in_, residual_, weight_, sums_, out_;
  std::vector<std::byte> want_sums_, want_out_;
};

void run_cases(int ranks, const std::vector<Case>& cases, const CollectivesOptions& options = {}, int repeats = 2) {
  Trouble trouble;
  const int code = run_collectives(ranks, options, 10, trouble,
                                   [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
                                     for (const Case& c : cases) {
                                       Rank rank(world, c, 7);
                                       test::meet_if_sharing(world);
                                       for (int repeat = 0; repeat < repeats; ++repeat) {
                                         rank.fill();
                                         rank.call(collectives, stream);
                                         collectives.finish(stream);
                                         if (const std::string fault = rank.fault(); !fault.empty())
                                           t.add(c.text() + " rank " + std::to_string(world.rank()) + ": " + fault);
                                       }
                                     }
                                   });
  expect_none(code, trouble);
}

std::vector<Case> all_cases() {
  std::vector<Case> list;
  for (const ExactAlgorithm algorithm : {ExactAlgorithm::one_shot, ExactAlgorithm::two_shot})
    for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
      for (const std::int64_t hidden : {1, 7, 64, 100, 1000, 2048, 4096, 4099, 5120, 8192, 9001, 16384, 40000})
        for (const std::int64_t rows : {1, 3, 64, 333}) {
          if (rows * hidden > 400'000) continue;
          list.push_back({{rows, hidden, type, true, false}, {algorithm}});
          list.push_back({{rows, hidden, type, rows % 2 == 0, true, 1e-5f}, {algorithm}, true, 3});
          const std::uint32_t warps = collectives::row_shape(hidden, type).threads / 32;
          for (const std::uint32_t cluster : {1u, 2u, 4u, 8u})
            if (warps % cluster == 0 && rows < 64) list.push_back({{rows, hidden, type}, {algorithm, 0, cluster}});
          if (type == Type::fp32) continue;
          // Weights of fp32: from whole 16 bytes on, from any element on, and of a row that a cluster shares.
          const auto with = [&](bool residual, bool hostile) {
            return RmsNormCase{rows, hidden, type, residual, hostile, 1e-6f, Type::fp32};
          };
          list.push_back({with(true, false), {algorithm}});
          list.push_back({with(rows % 2 == 0, true), {algorithm}, true, 1});
          if (warps % 4 == 0 && rows < 64) list.push_back({with(true, false), {algorithm, 0, 4}});
        }
  return list;
}

TEST(GpuRmsNorm, BitsOfTheCpuOnSeveralNumbersOfRanks) {
  NEEDS_GPUS(2);
  for (const int ranks : test::rank_counts(1)) run_cases(ranks, all_cases());
}

// Slots are used many times within a call, down to the three chunks that must fit.
TEST(GpuRmsNorm, ManyRowsThroughFewSlotsWithPauses) {
  NEEDS_GPUS(2);
  const int ranks = test::most_ranks();
  CollectivesOptions small;
  small.workspace_bytes = test::small_workspace(ranks);
  for (const std::uint64_t delays : {0, 13}) {
    small.delays = delays;
    small.max_delay = 2e-5;
    run_cases(ranks,
              {{{3000, 4096, Type::bf16}, {ExactAlgorithm::two_shot}},
               {{1501, 8192, Type::bf16, true, true}, {ExactAlgorithm::two_shot, 16}, true},
               {{40'000, 128, Type::fp16}, {ExactAlgorithm::two_shot, 8}, true, 1},
               {{50, 30'000, Type::fp32}, {ExactAlgorithm::two_shot}},
               {{900, 8192, Type::bf16}, {ExactAlgorithm::two_shot, 64, 4}, true},
               {{900, 8192, Type::bf16, true, false, 1e-6f, Type::fp32}, {ExactAlgorithm::two_shot, 16}, true},
               {{120, 4096, Type::bf16}, {ExactAlgorithm::one_shot, 4}}},
              small, 2);
  }
  run_cases(ranks,
            {{{3, 262144, Type::fp32}, {}},
             {{3, 262144, Type::bf16, true, false, 1e-6f, Type::fp32}, {}, false, 1},
             {{9000, 2048, Type::fp32}, {}, true}},
            {}, 2);
}

TEST(GpuRmsNorm, TenThousandCallsFromAGraphWithPauses) {
  NEEDS_GPUS(2);
  CollectivesOptions options;
  options.workspace_bytes = std::size_t{16} << 20;
  options.delays = 5;
  options.max_delay = 1e-5;
  const std::vector<Case> cases = {{{1, 8192, Type::bf16}, {}},
                                   {{16, 4096, Type::bf16, true, true}, {}},
                                   {{700, 1024, Type::fp16}, {ExactAlgorithm::two_shot, 4}},
                                   {{30, 5000, Type::fp32}, {ExactAlgorithm::two_shot}},
                                   {{12, 8192, Type::bf16, true, false, 1e-6f, Type::fp32}, {}},
                                   {{200, 2048, Type::bf16}, {ExactAlgorithm::two_shot, 8, 2}}};
  Trouble trouble;
  const int code = run_collectives(test::most_ranks(), options, 10, trouble,
                                   [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
                                     const auto memory = cuda::raw_memory(4096);
                                     cuda::fill(memory.get(), 0, 4096);
                                     std::vector<std::unique_ptr<Rank>> ranks;
                                     for (const Case& c : cases) ranks.push_back(std::make_unique<Rank>(world, c, 21));
                                     for (auto& rank : ranks) rank->fill();
                                     const cuda::Graph graph(stream, 1, [&] {
                                       for (auto& rank : ranks) rank->call(collectives, stream);
                                       collectives.all_reduce(memory.get(), memory.get(), 1000, Type::bf16, stream);
                                     });
                                     replay(graph, collectives, stream, cases, ranks, t);
                                   });
  expect_none(code, trouble);
}

TEST(GpuRmsNorm, PublicObjectsAndMistakes) {
  NEEDS_OWN_GPUS(2);
  Trouble trouble;
  const int code = run_collectives(
      2, {}, 5, trouble, [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
        const Case c{{5, 3000, Type::bf16}, {}};
        Rank rank(world, c, 3);
        rank.fill();
        const auto refused = [&](const std::string& what, const std::function<void()>& call) {
          try {
            call();
            t.add(what + " was taken");
          } catch (const Error& error) {
            if (error.code() != ErrorCode::invalid_input || std::string(error.what()).find(what) == std::string::npos)
              t.add(what + " refused with: " + error.what());
          }
        };
        const auto op = collectives::make_cuda_all_reduce_rms_norm(world, 5, 3000, Type::bf16, {.eps = c.base.eps});
        refused("rows = 6", [&] { (*op)(rank.operands(), 6, stream); });
        refused("in is null", [&] { (*op)({}, 5, stream); });
        refused("300 blocks", [&] {
          collectives.all_reduce_rms_norm(rank.operands(), 5, 3000, 1e-6f, Type::bf16, stream,
                                          {ExactAlgorithm::automatic, 300});
        });
        refused("clusters of 3", [&] {
          collectives.all_reduce_rms_norm(rank.operands(), 5, 3000, 1e-6f, Type::bf16, stream,
                                          {ExactAlgorithm::automatic, 0, 3});
        });
        collectives::RmsNormOperands narrow = rank.operands();
        narrow.weight_type = Type::fp16;
        refused("weight_type = fp16: it must be fp32, or that of the rows, bf16",
                [&] { collectives.all_reduce_rms_norm(narrow, 5, 3000, 1e-6f, Type::bf16, stream); });
        narrow.weight_type = Type::fp32;
        narrow.weight = static_cast<const std::byte*>(narrow.weight) + 2;
        refused("is not aligned to an element of 4 bytes",
                [&] { collectives.all_reduce_rms_norm(narrow, 5, 3000, 1e-6f, Type::bf16, stream); });
        collectives::RmsNormOperands far = rank.operands();
        far.residual = nullptr;
        far.in = reinterpret_cast<const void*>(std::uintptr_t{1} << 40);
        far.residual_out = reinterpret_cast<void*>(std::uintptr_t{1} << 41);
        far.out = reinterpret_cast<void*>(std::uintptr_t{1} << 42);
        far.weight = reinterpret_cast<const void*>(std::uintptr_t{1} << 43);
        refused("one_shot takes at most", [&] {
          collectives.all_reduce_rms_norm(far, 1 << 20, 4096, 1e-6f, Type::bf16, stream, {ExactAlgorithm::one_shot});
        });
        (*op)({}, 0, stream);
        (*op)(rank.operands(), 5, stream);
        op->finish();
        if (const std::string fault = rank.fault(); !fault.empty()) t.add(fault);
        Rank other(world, {{5, 3000, Type::bf16, true, false, 1e-6f, Type::fp32}, {}}, 4);
        other.fill();
        const auto wide = collectives::make_cuda_all_reduce_rms_norm(world, 5, 3000, Type::bf16,
                                                                     {.eps = 1e-6f, .weight_type = Type::fp32});
        (*wide)(other.operands(), 5, stream);
        wide->finish();
        if (const std::string fault = other.fault(); !fault.empty()) t.add("weight of fp32: " + fault);
        world.barrier();
      });
  expect_none(code, trouble);
}

TEST(GpuRmsNorm, WaitsPastTheirLimitEnd) {
  NEEDS_GPUS(2);
  for (const ExactAlgorithm algorithm : {ExactAlgorithm::one_shot, ExactAlgorithm::two_shot}) {
    const auto ready = [=](World& world, CudaCollectives& collectives, cudaStream_t stream) {
      const auto rank = std::make_shared<Rank>(world, Case{{200, 4096, Type::bf16}, {algorithm}}, 1);
      rank->fill();
      return [=, &collectives] {
        rank->call(collectives, stream);
        // The next call says it, too.
        if (algorithm == ExactAlgorithm::two_shot) {
          cudaStreamSynchronize(stream);
          rank->call(collectives, stream);
        }
      };
    };
    test::expect_waits_end(ready, {});
  }
}

}  // namespace
}  // namespace imbrex
