// Embeddings over ranks on GPUs, as their tests make them and look at them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "embedding/on_device.hpp"
#include "embedding/sharded.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/stream.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex::test {

inline OperatorOptions on_gpus(std::optional<Strategy> strategy, std::uint64_t delays = 0) {
  OperatorOptions options;
  options.device = Device::cuda;
  options.strategy = strategy;
  options.cuda.heap_bytes = std::size_t{1} << 26;
  options.cuda.testing.delays = delays;
  options.cuda = test::sharing(options.cuda);
  return options;
}

inline Sharded drawn(std::mt19937_64& random, int ranks, const BagLimits& limits, bool everywhere) {
  RandomBags bags;
  do bags = random_bags(random, limits);
  while (bags.ranks != ranks || bags.bags.count == 0);
  return deal(random, std::move(bags), everywhere);
}

// What one rank holds, on its GPU.
class OnGpu {
 public:
  OnGpu(const Sharded& c, int rank) : c_(c), rank_(rank), out_(c.part_bytes() + 256) {
    const RankBags& own = c.ranks[static_cast<std::size_t>(rank)];
    const auto put = [&](const auto& values) {
      cuda::RawMemory there = to_device(values);
      there_[values.data()] = there.get();
      memory_.push_back(std::move(there));
    };
    for (const auto& rows : own.rows) put(rows);
    for (const auto& states : own.states) put(states);
    put(own.indices), put(own.offsets), put(own.weights);
    clear();
  }

  std::vector<Operand> operands(const EmbeddingAllToAll& op, bool update, void* matrix = nullptr) const {
    return c_.operands(op, rank_, matrix != nullptr ? matrix : out_.get(), update,
                       [&](const void* p) { return p == nullptr ? nullptr : there_.at(p); });
  }
  /// Somebody else has the memory of indices and offsets from here on in the stream.
  void forget(cudaStream_t stream) const {
    const RankBags& own = c_.ranks[static_cast<std::size_t>(rank_)];
    for (const auto* numbers : {&own.indices, &own.offsets})
      IMBREX_CUDA_TRY(cudaMemsetAsync(there_.at(numbers->data()), 0, numbers->size(), stream));
  }
  void clear() { cuda::fill(out_.get(), 0x5a, c_.part_bytes()); }
  void give(const std::vector<std::byte>& part) { cuda::upload(out_.get(), part.data(), part.size()); }
  std::vector<std::byte> out(const void* from = nullptr) const {
    std::vector<std::byte> bytes(c_.part_bytes());
    from_device(bytes, from != nullptr ? from : out_.get());
    return bytes;
  }
  template <typename T>
  std::vector<T> now(const std::vector<T>& values) const {
    std::vector<T> bytes(values.size());
    from_device(bytes, there_.at(values.data()));
    return bytes;
  }

 private:
  const Sharded& c_;
  int rank_;
  runtime::DeviceMemory out_;
  std::map<const void*, void*> there_;
  std::vector<cuda::RawMemory> memory_;
};

inline void expect(bool sound, const std::string& what) {
  if (!sound) throw Error(ErrorCode::unsound, what);
}

/// What the two ranks are told where rank 0 alone makes the second call of a lookup that `make` gave.
inline std::vector<std::string> told_where_rank_0_is_alone(
    const std::function<std::unique_ptr<EmbeddingAllToAll>(World&, const Sharded&)>& make) {
  Trouble told;
  const int code = on_world(2, {.heap_bytes = 1 << 20, .wait_limit = 3}, [&](World& world) {
    std::mt19937_64 random(23);
    const Sharded c = drawn(random, 2, {.rows = 50, .part_rows = 20}, true);
    const std::unique_ptr<EmbeddingAllToAll> op = make(world, c);
    OnGpu there(c, world.rank());
    const Stream stream(world);
    op->run(there.operands(*op, false), stream);
    op->synchronize(stream);
    world.barrier();
    try {
      if (world.rank() == 0) op->run(there.operands(*op, false), stream);
      if (world.rank() == 0) op->synchronize(stream);
      for (;;) op->check();  // rank 1, until it is told
    } catch (const Error& error) {
      told.add(error.what());
      throw;
    }
    return 0;
  });
  EXPECT_EQ(code, 3);
  return told.list();
}

// Collectives, which bring gradients, take what the world says.
inline const WorldOptions roomy{.heap_bytes = 1 << 20, .wait_limit = 30, .ranks_per_gpu = ranks_per_gpu()};

}  // namespace imbrex::test
