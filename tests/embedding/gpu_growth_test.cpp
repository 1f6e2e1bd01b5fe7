// Updates on a GPU whose memory grows while graphs hold it, and what is told of calls whose operands are gone.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "base/convert.hpp"
#include "embedding/on_device.hpp"
#include "embedding/rows.hpp"
#include "embedding/update.hpp"
#include "execute/cuda/embedding/table_update.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex::embedding {
namespace {

using test::from_device, test::to_device;

#define NEEDS_A_GPU() \
  if (test::devices() == 0) GTEST_SKIP() << "a GPU wanted, none found"

constexpr std::int64_t batch = 64, pitch = 96;
constexpr std::int64_t table_rows[] = {300, 5000};
constexpr std::int32_t dims[] = {32, 64};

/// Bags of so many indices, on the host and on the GPU.
struct BagSet {
  BagSet(std::mt19937_64& random, std::int64_t count) {
    std::vector<std::int32_t> ends(2 * batch + 1);
    for (std::int32_t& end : ends) end = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(count + 1));
    ends.front() = 0, ends.back() = static_cast<std::int32_t>(count);
    std::sort(ends.begin(), ends.end());
    std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
    for (std::size_t k = 0; k < rows.size(); ++k)
      rows[k] = static_cast<std::int32_t>(
          random() % static_cast<std::uint64_t>(table_rows[std::cmp_less(k, ends[batch]) ? 0 : 1]));
    set(rows, ends);
  }

  void set(const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& ends) {
    indices = rows, offsets = ends;
    indices_there = to_device(indices), offsets_there = to_device(offsets);
    here = {indices.data(), offsets.data(), nullptr, std::ssize(indices), batch, IndexType::int32, Pooling::sum};
    there = here;
    there.indices = indices_there.get(), there.offsets = offsets_there.get();
  }

  std::vector<std::int32_t> indices, offsets;
  cuda::RawMemory indices_there, offsets_there;
  Bags here{}, there{};
};

/// Two tables here and on the GPU, which are to stay the same.
class Twins {
 public:
  Twins(std::mt19937_64& random, TableRows type, Optimizer optimizer) : type_(type), optimizer_(optimizer) {
    std::vector<float> values(static_cast<std::size_t>(batch * pitch));
    const auto draw = [&] {
      for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random);
    };
    draw();
    gradients_.resize(values.size() * sizeof(float));
    std::memcpy(gradients_.data(), values.data(), gradients_.size());
    gradients_there_ = to_device(gradients_);
    std::int32_t column = 0;
    for (std::size_t t = 0; t < 2; ++t) {
      const std::int64_t row_bytes = dims[t] * size_of(type);
      values.resize(static_cast<std::size_t>(table_rows[t] * dims[t]));
      draw();
      rows_.emplace_back(static_cast<std::size_t>(table_rows[t] * row_bytes));
      base::from_float(type_of(type), values.data(), rows_.back().data(), std::ssize(values));
      states_.emplace_back(static_cast<std::size_t>(table_rows[t]), 0.125f);
      rows_there_.push_back(to_device(rows_.back()));
      states_there_.push_back(to_device(states_.back()));
      here_.push_back({rows_[t].data(), table_rows[t], row_bytes, 0, dims[t], column});
      there_.push_back(here_.back());
      there_.back().rows = rows_there_.back().get();
      column += dims[t];
    }
    for (std::size_t t = 0; t < 2; ++t) {
      state_.push_back(states_[t].data());
      state_there_.push_back(static_cast<float*>(states_there_[t].get()));
    }
  }

  Tables tables() const { return {here_.data(), 2, type_}; }

  std::unique_ptr<cuda::TableUpdate> make(std::int64_t most) const {
    return cuda::make_table_update({there_.data(), 2, type_}, {optimizer_, rate, 1e-6f, state_there_.data()}, batch,
                                   most);
  }
  void launch(cuda::TableUpdate& update, const BagSet& bags, cudaStream_t stream) const {
    void* part = gradients_there_.get();
    update.launch({{there_.data(), 2, type_}, bags.there}, {&part, 1, Type::fp32, pitch},
                  {optimizer_, rate, 1e-6f, state_there_.data()}, stream);
  }
  void update_here(const BagSet& bags) {
    void* part = gradients_.data();
    update(tables(), bags.here, {&part, 1, Type::fp32, pitch}, {optimizer_, rate, 1e-6f, state_.data()});
  }
  /// Its stream is idle.
  void expect_the_same(int round) const {
    for (std::size_t t = 0; t < 2; ++t) {
      auto rows = rows_[t];
      auto states = states_[t];
      from_device(rows, there_[t].rows);
      from_device(states, state_there_[t]);
      ASSERT_EQ(rows, rows_[t]) << "round " << round << ", table " << t;
      ASSERT_EQ(states, states_[t]) << "round " << round << ", table " << t;
    }
  }

 private:
  static constexpr float rate = 1.0f / 1024;
  TableRows type_;
  Optimizer optimizer_;
  std::vector<std::vector<std::byte>> rows_;
  std::vector<std::vector<float>> states_;
  std::vector<std::byte> gradients_;
  cuda::RawMemory gradients_there_;
  std::vector<cuda::RawMemory> rows_there_, states_there_;
  std::vector<Table> here_, there_;
  std::vector<float*> state_, state_there_;
};

/// Memory of the sizes that an update takes, which nothing else may write.
class Guards {
 public:
  void take(std::int64_t indices) {
    const auto words = static_cast<std::size_t>(indices) * 4;
    for (const std::size_t bytes : {words, words, words, words, words, 2 * words, words / 128 * 512, std::size_t{4096}})
      for (int i = 0; i < 2; ++i) {
        const std::size_t all = std::max<std::size_t>(bytes, 512);
        memory_.push_back({cuda::raw_memory(all), all});
        cuda::fill(memory_.back().first.get(), 0xa5, all);
      }
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  }
  void expect_untouched(int round) const {
    for (const auto& [memory, bytes] : memory_) {
      std::vector<unsigned char> now(bytes);
      from_device(now, memory.get());
      ASSERT_TRUE(std::all_of(now.begin(), now.end(), [](unsigned char byte) { return byte == 0xa5; }))
          << "round " << round << ": " << bytes << " bytes of somebody else were written";
    }
  }

 private:
  std::vector<std::pair<cuda::RawMemory, std::size_t>> memory_;
};

class OwnStream {
 public:
  OwnStream() { IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void hold_back(std::uint64_t microseconds) const {
    IMBREX_CUDA_TRY(cudaLaunchHostFunc(
        stream_,
        [](void* time) {
          std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<std::uintptr_t>(time)));
        },
        reinterpret_cast<void*>(microseconds)));
  }

 private:
  cudaStream_t stream_ = nullptr;
};

struct Kind {
  TableRows rows;
  Optimizer optimizer;
};

class GpuUpdateGrowth : public testing::TestWithParam<Kind> {};

// Graphs of updates of several sizes, replayed between updates that need more memory than any before.
TEST_P(GpuUpdateGrowth, LeavesGraphsTheirMemory) {
  NEEDS_A_GPU();
  std::mt19937_64 random(test::seed_from_environment());
  constexpr std::int64_t sizes[] = {1'000, 3'000, 9'000, 30'000, 100'000};
  Twins twins(random, GetParam().rows, GetParam().optimizer);
  const auto update = twins.make(sizes[0]);
  const OwnStream stream;
  std::vector<BagSet> bags;
  std::vector<std::unique_ptr<cuda::Graph>> graphs;
  Guards guards;
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    if (round % 50 == 0 && round / 50 < std::ssize(sizes)) {
      bags.emplace_back(random, sizes[round / 50]);
      twins.launch(*update, bags.back(), stream);
      twins.update_here(bags.back());
      IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
      guards.take(round == 0 ? sizes[0] : sizes[round / 50 - 1]);
      graphs.push_back(std::make_unique<cuda::Graph>(stream, 1, [&] { twins.launch(*update, bags.back(), stream); }));
    }
    // Small ones more often.
    const std::size_t which = std::min<std::size_t>(
        {random() % bags.size(), random() % bags.size(), random() % bags.size(), random() % bags.size()});
    if (random() % 16 == 0) stream.hold_back(random() % 300);
    if (random() % 3 == 0)
      twins.launch(*update, bags[which], stream);
    else
      graphs[which]->launch(stream);
    twins.update_here(bags[which]);
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    if (round % 50 == 49) {
      IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
      ASSERT_EQ(update->take_misfits(Misfits::refused), 0);
      twins.expect_the_same(round);
      guards.expect_untouched(round);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuUpdateGrowth,
                         testing::Values(Kind{TableRows::fp32, Optimizer::sgd},
                                         Kind{TableRows::fp16, Optimizer::row_wise_adagrad},
                                         Kind{TableRows::bf16, Optimizer::sgd}),
                         [](const auto& kind) {
                           return fmt::format("{}_{}", name_of(kind.param.rows), name_of(kind.param.optimizer));
                         });

std::string told_of(cuda::TableUpdate& update) {
  try {
    update.take_misfits(Misfits::refused);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

std::string wanted_of(const Twins& twins, const BagSet& bags) {
  try {
    check_bags(twins.tables(), bags.here, Misfits::refused);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

// A replay that is under way on another stream than was captured, whose operands are somebody else's afterwards.
TEST(GpuUpdate, ReplaysAreAwaitedAndNamed) {
  NEEDS_A_GPU();
  std::mt19937_64 random(test::seed_from_environment());
  Twins twins(random, TableRows::fp32, Optimizer::sgd);
  const auto update = twins.make(1000);
  const OwnStream stream, other;
  BagSet good(random, 700);
  twins.launch(*update, good, stream);
  ASSERT_EQ(told_of(*update), "nothing");
  for (const bool offset : {false, true})
    for (const bool frees : {false, true}) {
      SCOPED_TRACE(fmt::format("offset {}, frees {}", offset, frees));
      BagSet bad(random, 900);
      auto indices = bad.indices, offsets = bad.offsets;
      indices[10] = -7, indices[850] = 123456;
      if (offset) offsets[batch + 5] = 901, offsets[batch + 6] = -3;
      bad.set(indices, offsets);
      const std::string wanted = wanted_of(twins, bad);
      ASSERT_NE(wanted, "nothing");
      const cuda::Graph graph(stream, 1, [&] { twins.launch(*update, bad, stream); });
      other.hold_back(100'000);
      graph.launch(other);
      IMBREX_CUDA_TRY(cudaMemsetAsync(bad.indices_there.get(), 0, indices.size() * 4, other));
      IMBREX_CUDA_TRY(cudaMemsetAsync(bad.offsets_there.get(), 0, offsets.size() * 4, other));
      if (frees) {
        IMBREX_CUDA_TRY(cudaStreamSynchronize(other));
        bad.indices_there.reset(), bad.offsets_there.reset();
      }
      EXPECT_EQ(told_of(*update), wanted);
      EXPECT_EQ(told_of(*update), "nothing");
    }
}

// One of several calls that did not fit is named, whichever they were; growing forgets none.
TEST(GpuUpdate, EarlierCallsAreNamed) {
  NEEDS_A_GPU();
  std::mt19937_64 random(test::seed_from_environment());
  Twins twins(random, TableRows::bf16, Optimizer::row_wise_adagrad);
  const auto update = twins.make(1000);
  const OwnStream stream;
  BagSet good(random, 700), more(random, 5000), bad(random, 900);
  auto indices = bad.indices;
  indices[899] = static_cast<std::int32_t>(table_rows[1]);
  bad.set(indices, bad.offsets);
  twins.launch(*update, bad, stream);
  twins.launch(*update, good, stream);
  EXPECT_EQ(told_of(*update), wanted_of(twins, bad));
  twins.launch(*update, bad, stream);
  twins.launch(*update, more, stream);
  EXPECT_EQ(told_of(*update), wanted_of(twins, bad));
  for (int i = 0; i < 3; ++i) twins.launch(*update, bad, stream);
  EXPECT_EQ(update->take_misfits(Misfits::ignored), 3);
  EXPECT_EQ(told_of(*update), "nothing");
}

}  // namespace
}  // namespace imbrex::embedding
