// The calls of a world on GPUs: one order whatever their streams, and what some ranks refuse.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/stream.hpp"
#include "imbrex/collectives.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "runtime/calls.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::Random;
using test::Stream;

constexpr double limit = 20;

// Numbers in the memory of this rank's GPU.
class Numbers {
 public:
  explicit Numbers(std::size_t count, float value = 0)
      : count_(count), memory_(cuda::raw_memory(count * sizeof(float))) {
    const std::vector<float> all(count, value);
    cuda::upload(memory_.get(), all.data(), count * sizeof(float));
  }
  float* get() const { return static_cast<float*>(memory_.get()); }
  std::int64_t count() const { return static_cast<std::int64_t>(count_); }
  void poison(cudaStream_t stream) const {
    IMBREX_CUDA_TRY(cudaMemsetAsync(memory_.get(), 0xff, count_ * sizeof(float), stream));
  }
  // How many are not `value`. The stream is idle.
  std::size_t others(float value) const {
    std::vector<float> all(count_);
    IMBREX_CUDA_TRY(cudaMemcpy(all.data(), memory_.get(), count_ * sizeof(float), cudaMemcpyDeviceToHost));
    std::size_t wrong = 0;
    for (const float one : all) wrong += one == value ? 0 : 1;
    return wrong;
  }

 private:
  std::size_t count_;
  cuda::RawMemory memory_;
};

// The stream falls behind by up to a millisecond.
void delay(cudaStream_t stream, Random& random) {
  if (random.between(0, 2) != 0) return;
  auto* time = new std::chrono::microseconds(random.between(0, 1000));
  IMBREX_CUDA_TRY(cudaLaunchHostFunc(
      stream,
      [](void* given) {
        const std::unique_ptr<std::chrono::microseconds> own(static_cast<std::chrono::microseconds*>(given));
        std::this_thread::sleep_for(*own);
      },
      time));
}

OperatorOptions fused() {
  OperatorOptions options;
  options.device = Device::cuda;
  options.cuda.ranks_per_gpu = test::ranks_per_gpu();
  return options;
}

// Objects of a world. Operands of a call hold one number; so do results.
class Objects {
 public:
  static constexpr int kinds = 6;

  Objects(World& world, std::int64_t m)
      : world_(world),
        ranks_(world.size()),
        m_(m * ranks_),
        sum_(world, {.m = m_, .n = 256, .k = 64 * ranks_, .type = Type::fp32}, fused()),
        any_(world, {.m = m_, .n = 256, .k = 64 * ranks_, .type = Type::fp32, .any_m = true}, fused()),
        scatter_(world, {.m = m_, .n = 256, .k = 64 * ranks_, .type = Type::fp32}, fused()),
        reduce_(world, 1 << 24, Type::fp32, {}, Device::cuda),
        norm_(world, 512, 256, Type::fp32, {}, Device::cuda),
        exchange_(world, ExchangeKind::all_to_all, 1 << 16, Type::fp32, {}, Device::cuda) {}

  // What a call works on, until it is judged.
  struct Called {
    std::vector<std::shared_ptr<Numbers>> memory;
    std::shared_ptr<Numbers> out;
    float wanted = 0;
    std::string what;
  };

  // `wrong`: an operand is null.
  Called call(int kind, float value, std::int64_t size, cudaStream_t stream, bool wrong) {
    const auto r = static_cast<float>(ranks_);
    Called c;
    c.what = "kind " + std::to_string(kind) + " of size " + std::to_string(size);
    const auto in = [&](std::int64_t count, float of) {
      c.memory.push_back(std::make_shared<Numbers>(static_cast<std::size_t>(count), of));
      return c.memory.back()->get();
    };
    const auto out = [&](std::int64_t count) {
      c.out = std::make_shared<Numbers>(static_cast<std::size_t>(count));
      c.out->poison(stream);
      return c.out->get();
    };
    const auto product = [&](GemmOperator& op, std::int64_t m, std::int64_t rows) {
      float *a = in(m * 64, value), *b = in(64 * 256, 1), *y = out(rows * 256);
      op.run({{"a", View::matrix(wrong ? nullptr : a, Type::fp32, m, 64)},
              {"b", View::matrix(b, Type::fp32, 64, 256)},
              {"out", View::matrix(y, Type::fp32, rows, 256)}},
             stream);
      c.wanted = 64 * r * value;
    };
    switch (kind) {
      case 0: product(sum_, m_, m_); break;
      case 1: product(any_, 1 + size % m_, 1 + size % m_); break;
      case 2: product(scatter_, m_, m_ / ranks_); break;
      case 3: {
        const std::int64_t count = 1 + size % reduce_most;
        float *x = in(count, value), *y = out(count);
        reduce_.run(
            {{"in", View::vector(wrong ? nullptr : x, Type::fp32, count)}, {"out", View::vector(y, Type::fp32, count)}},
            stream);
        c.wanted = r * value;
        break;
      }
      case 4: {
        const std::int64_t rows = 1 + size % 512;
        float *x = in(rows * 256, value), *w = in(256, 1), *y = in(rows * 256, 0), *s = out(rows * 256);
        norm_.run({{"in", View::vector(x, Type::fp32, rows * 256)},
                   {"weight", View::vector(w, Type::fp32, wrong ? 255 : 256)},
                   {"residual_out", View::vector(s, Type::fp32, rows * 256)},
                   {"out", View::vector(y, Type::fp32, rows * 256)}},
                  stream);
        c.wanted = r * value;
        break;
      }
      default: {
        const std::int64_t count = 1 + size % (1 << 16);
        float *x = in(count * ranks_, value), *y = out(count * ranks_);
        exchange_.run({{"in", View::vector(x, Type::fp32, count * ranks_)},
                       {"out", View::vector(wrong ? nullptr : y, Type::fp32, count * ranks_)}},
                      stream);
        c.wanted = value;
      }
    }
    return c;
  }

  void check() { runtime::calls_of(world_).expect_none_refused(); }

 private:
  static constexpr std::int64_t reduce_most = 1 << 24;

  World& world_;
  int ranks_;
  std::int64_t m_;
  GemmAllReduce sum_, any_;
  GemmReduceScatter scatter_;
  AllReduce reduce_;
  AllReduceRmsNorm norm_;
  Exchange exchange_;
};

bool judge(const Objects::Called& c, const World& world, int call) {
  const std::size_t wrong = c.out->others(c.wanted);
  EXPECT_EQ(wrong, 0u) << "rank " << world.rank() << ", call " << call << ", " << c.what << ": elements that are not "
                       << c.wanted;
  return wrong == 0;
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_input ? error.what() : std::string("failed: ") + error.what();
  }
  return "";
}

int calls_of_all_kinds(World& world, std::uint64_t seed, int calls, int first_kind, int kinds) {
  Objects objects(world, 128);
  const Stream s0(world), s1(world), s2(world);
  const cudaStream_t streams[] = {s0, s1, s2};
  Random random(seed), own(seed + 100 + static_cast<std::uint64_t>(world.rank()));
  std::deque<std::pair<int, Objects::Called>> under_way;
  for (int i = 0; i < calls; ++i) {
    const int kind = first_kind + static_cast<int>(random.between(0, kinds - 1));
    const cudaStream_t stream = streams[random.between(0, 2)];
    const std::int64_t size = random.between(0, 3) == 0 ? random.between(0, 1 << 24) : random.between(0, 1 << 12);
    const auto value = static_cast<float>(random.between(1, 9));
    delay(stream, own);
    under_way.emplace_back(i, objects.call(kind, value, size, stream, false));
    if (i % 8 != 7) continue;
    for (const cudaStream_t one : streams) IMBREX_CUDA_TRY(cudaStreamSynchronize(one));
    world.throw_if_failed();
    for (const auto& [call, c] : under_way)
      if (!judge(c, world, call)) return 1;
    under_way.clear();
  }
  for (const cudaStream_t one : streams) IMBREX_CUDA_TRY(cudaStreamSynchronize(one));
  world.barrier();
  return 0;
}

TEST(GpuCalls, RunInOneOrderOnWhateverStreams) {
  NEEDS_OWN_GPUS(2);
  const std::uint64_t seed = test::seed_from_environment();
  for (const int ranks : test::rank_counts(2))
    EXPECT_EQ(test::on_world(ranks, {.heap_bytes = 1 << 22, .wait_limit = limit},
                             [&](World& world) { return calls_of_all_kinds(world, seed, 1000, 0, Objects::kinds); }),
              0)
        << ranks << " ranks, seed " << seed;
}

// Two calls of one object on two streams.
TEST(GpuCalls, OfOneObjectOnSeveralStreams) {
  NEEDS_OWN_GPUS(2);
  for (int kind = 3; kind < Objects::kinds; ++kind)
    EXPECT_EQ(test::on_world(2, {.heap_bytes = 1 << 22, .wait_limit = limit},
                             [&](World& world) { return calls_of_all_kinds(world, 5, 500, kind, 1); }),
              0)
        << kind;
}

int random_refusals(World& world, std::uint64_t seed, int calls) {
  Objects objects(world, 128);
  const Stream s0(world), s1(world);
  const cudaStream_t streams[] = {s0, s1};
  Random random(seed), own(seed + 100 + static_cast<std::uint64_t>(world.rank()));
  for (int i = 0; i < calls; ++i) {
    const int kind = static_cast<int>(random.between(0, Objects::kinds - 1));
    const cudaStream_t stream = streams[random.between(0, 1)];
    const std::int64_t size = random.between(0, 1 << 14), among = random.between(0, 5);
    const auto value = static_cast<float>(random.between(1, 9));
    std::vector<int> how;
    bool refused = false;
    for (int r = 0; r < world.size(); ++r) {
      how.push_back(among < 3 ? 0 : among == 5 ? 1 : static_cast<int>(random.between(0, 3) % 3));
      refused = refused || how.back() != 0;
    }
    delay(stream, own);
    if (own.between(0, 3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(own.between(0, 500)));
    const int mine = how[static_cast<std::size_t>(world.rank())];
    Objects::Called c;
    const std::string told = refusal_of([&] {
      if (mine == 2) {
        runtime::calls_of(world).refuse("what its front refuses");
        throw Error(ErrorCode::invalid_input, "what its front refuses");
      }
      c = objects.call(kind, value, size, stream, mine == 1);
      IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
      objects.check();
    });
    if (refused ? !told.empty() && !told.starts_with("failed") : told.empty() && judge(c, world, i)) continue;
    ADD_FAILURE() << "rank " << world.rank() << ", seed " << seed << ", call " << i
                  << (refused ? " that some refuse" : "") << ", kind " << kind << ": "
                  << (told.empty() ? "nothing was said" : told);
    world.fail("a call went wrong");
    return 1;
  }
  world.barrier();
  return 0;
}

TEST(GpuCalls, ThatSomeRanksRefuseFailOnAllAndTheNextIsRight) {
  NEEDS_OWN_GPUS(2);
  const std::uint64_t seed = test::seed_from_environment();
  for (const int ranks : test::rank_counts(2))
    EXPECT_EQ(test::on_world(ranks, {.heap_bytes = 1 << 22, .wait_limit = limit},
                             [&](World& world) { return random_refusals(world, seed, 300); }),
              0)
        << ranks << " ranks, seed " << seed;
}

// A rank that is ahead hears of it behind its next call.
TEST(GpuCalls, ThatWereRefusedAreToldLater) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(test::on_world(2, {.heap_bytes = 1 << 22, .wait_limit = limit},
                           [&](World& world) {
                             Objects objects(world, 128);
                             const Stream stream(world);
                             world.barrier();
                             std::vector<Objects::Called> calls;
                             std::vector<std::string> told;
                             for (int i = 0; i < 12; ++i) {
                               if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
                               calls.emplace_back();
                               told.push_back(refusal_of([&] {
                                 calls.back() =
                                     objects.call(i % Objects::kinds, 2, 64, stream, world.rank() == 1 && i == 3);
                               }));
                             }
                             told.push_back(refusal_of([&] {
                               IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
                               objects.check();
                             }));
                             int times = 0;
                             for (const std::string& text : told) {
                               EXPECT_FALSE(text.starts_with("failed")) << text;
                               times += text.empty() ? 0 : 1;
                             }
                             EXPECT_EQ(times, 1);
                             for (std::size_t i = 0; i < calls.size(); ++i)
                               if (i != 3 && calls[i].out) judge(calls[i], world, static_cast<int>(i));
                             world.barrier();
                             return testing::Test::HasFailure() ? 1 : 0;
                           }),
            0);
}

// Memory of allocate_output on some ranks, or of two calls of it crosswise: peers would store into what is not the
// output.
int outputs_apart(World& world, std::uint64_t seed, int calls) {
  OperatorOptions options = fused();
  // A rank's tiles go to the outputs of all ranks.
  options.strategy = Strategy::fused;
  options.knobs.emplace().transport = Transport::store;
  const std::int64_t m = 256, n = 512, k = 64;
  GemmAllReduce op(world, {.m = m, .n = n, .k = k * world.size(), .type = Type::bf16}, options);
  const Stream stream(world);
  const std::size_t count = static_cast<std::size_t>(m * n), bytes = count * 2;
  const std::shared_ptr<void> first = op.allocate_output(), second = op.allocate_output();
  const cuda::RawMemory own = cuda::raw_memory(bytes), a = cuda::raw_memory(static_cast<std::size_t>(m * k) * 2),
                        b = cuda::raw_memory(static_cast<std::size_t>(k * n) * 2);
  const auto fill = [&](void* to, std::size_t elements, std::uint16_t with) {
    const std::vector<std::uint16_t> all(elements, with);
    cuda::upload(to, all.data(), elements * 2);
  };
  constexpr std::uint16_t one = 0x3f80;  // as bf16
  fill(a.get(), static_cast<std::size_t>(m * k), one);
  fill(b.get(), static_cast<std::size_t>(k * n), one);
  world.barrier();
  Random random(seed);
  void* const places[] = {own.get(), first.get(), second.get()};
  const std::uint16_t sum = static_cast<std::uint16_t>(0x3f80 + ((world.size() == 2   ? 7
                                                                  : world.size() == 4 ? 8
                                                                                      : 6)
                                                                 << 7));  // 64 R
  for (int i = 0; i < calls; ++i) {
    std::vector<std::int64_t> place;
    const bool alike = random.between(0, 1) == 0;
    for (int r = 0; r < world.size(); ++r) place.push_back(alike && r > 0 ? place[0] : random.between(0, 2));
    bool same = true;
    for (const std::int64_t each : place) same = same && each == place[0];
    for (void* const each : places) fill(each, count, static_cast<std::uint16_t>(7 + i));
    world.barrier();
    void* const out = places[place[static_cast<std::size_t>(world.rank())]];
    const std::string told = refusal_of([&] {
      op.run({op.operand("a", a.get()), op.operand("b", b.get()), op.operand("out", out)}, stream);
      op.synchronize(stream);
    });
    world.barrier();
    bool right = same == told.empty() && !told.starts_with("failed");
    for (void* const each : places) {
      std::vector<std::uint16_t> got(count);
      IMBREX_CUDA_TRY(cudaMemcpy(got.data(), each, bytes, cudaMemcpyDeviceToHost));
      // A call that failed left what is not its own output.
      const bool is_out = each == out;
      const std::uint16_t wanted = is_out ? sum : static_cast<std::uint16_t>(7 + i);
      if (is_out && !same) continue;
      for (const std::uint16_t element : got) right = right && element == wanted;
    }
    EXPECT_TRUE(right) << "rank " << world.rank() << ", call " << i << (same ? ", one place" : ", places apart") << ": "
                       << (told.empty() ? "nothing was said" : told);
    if (!right) {
      world.fail("an output went wrong");
      return 1;
    }
    world.barrier();
  }
  return 0;
}

TEST(GpuCalls, OutputsInTheHeapLieAtOnePlace) {
  NEEDS_OWN_GPUS(2);
  EXPECT_EQ(test::on_world(2, {.heap_bytes = 1 << 22, .wait_limit = limit},
                           [&](World& world) { return outputs_apart(world, test::seed_from_environment(), 1000); }),
            0);
}

}  // namespace
}  // namespace imbrex
