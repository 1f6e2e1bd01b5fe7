// Lookups on a GPU: the CPU's bits, whatever the numbers are that they are given; and posts after all stores.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "embedding/cuda/cuda_look_up.hpp"
#include "embedding/lookup.hpp"
#include "embedding/on_device.hpp"
#include "embedding/reader.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex::embedding {
namespace {

using test::OnDevice, test::RandomBags;

#define NEEDS_A_GPU() \
  if (test::devices() == 0) GTEST_SKIP() << "a GPU wanted, none found"

LookUpShape shape_of(const RandomBags& c, std::int32_t slices = 1) {
  return {c.bags.batch, c.out, c.pitch, c.ranks, 0, slices};
}

template <typename Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(GpuLookUp, GivesTheCpusBits) {
  NEEDS_A_GPU();
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < test::gpu_cases(500); ++i) {
    std::mt19937_64 random(seed + i);
    RandomBags c = test::random_bags(random, {.rows = 200, .part_rows = i % 5 == 0 ? 40 : 8, .misfits = i % 3 == 0});
    SCOPED_TRACE(fmt::format("case {}: {}", i, c.text()));
    const OnDevice on(c);
    // Items of few and of many bytes, few blocks and many.
    const LookUpTuning tuning{i % 2 == 0 ? 0u : 2048u << i % 5, 0, i % 4 == 0 ? 3u : 0u};
    CudaLookUp look_up_there(on.tables(), shape_of(c, 1 + static_cast<std::int32_t>(i % 3 % (c.bags.batch / c.ranks))),
                             tuning);
    look_up_there.launch(on.bags, on.parts.data(), nullptr);
    ASSERT_EQ(look_up_there.findings(nullptr, Misfits::ignored), c.misfits);
    const auto first = on.output(c);
    on.clear_output(c);
    look_up_there.launch(on.bags, on.parts.data(), nullptr);
    if (c.misfits > 0) {
      ASSERT_EQ(refusal([&] { look_up_there.findings(nullptr, Misfits::refused); }),
                refusal([&] { check_bags(c.tables(), c.bags, Misfits::refused); }));
    } else {
      ASSERT_EQ(look_up_there.findings(nullptr, Misfits::refused), 0);
    }
    ASSERT_EQ(on.output(c), first);
    ASSERT_EQ(look_up(c.tables(), c.bags, c.output(), whole(c.tables(), c.bags)), c.misfits);
    ASSERT_EQ(first, c.part);
  }
}

TEST(GpuLookUp, NoNumberFaults) {
  NEEDS_A_GPU();
  for (std::uint64_t i = 0; i < test::gpu_cases(200); ++i) {
    std::mt19937_64 random(i);
    RandomBags c = test::random_bags(random);
    SCOPED_TRACE(fmt::format("case {}: {}", i, c.text()));
    const auto any = [&](std::int64_t usual) {
      const std::int64_t wide[] = {-1, std::int64_t{1} << 31, -(std::int64_t{1} << 62), 0, c.bags.count + 1};
      return random() % 3 == 0 ? static_cast<std::int64_t>(random()) : random() % 2 == 0 ? usual : wide[random() % 5];
    };
    const std::int64_t all = c.tables().count * c.bags.batch;
    const std::uint64_t part = i % 3 == 0 ? 1 : 20;  // of the numbers that are hostile
    for (std::int64_t k = 0; k < c.bags.count; ++k)
      if (random() % part == 0) test::put_number(c.indices, c.bags.type, k, any(k));
    if (i % 4 != 0)
      for (std::int64_t k = 0; k <= all; ++k)
        if (random() % part == 0) test::put_number(c.offsets, c.bags.type, k, any(k));
    const OnDevice on(c);
    CudaLookUp look_up_there(on.tables(), shape_of(c));
    look_up_there.launch(on.bags, on.parts.data(), nullptr);
    ASSERT_EQ(refusal([&] { look_up_there.findings(nullptr, Misfits::refused); }),
              refusal([&] { check_bags(c.tables(), c.bags, Misfits::refused); }));
    ASSERT_EQ(look_up_there.findings(nullptr, Misfits::refused), 0);  // found things are told once
  }
}

TEST(GpuLookUp, OtherShapesAreRefused) {
  NEEDS_A_GPU();
  std::mt19937_64 random(3);
  RandomBags c = test::random_bags(random);
  OnDevice on(c);
  LookUpShape shape = shape_of(c);
  shape.slices = 65;
  EXPECT_NE(refusal([&] { CudaLookUp(on.tables(), shape); }).find("slices = 65: from 1 to "), std::string::npos);
  shape = shape_of(c), shape.ranks = 65;
  EXPECT_EQ(refusal([&] { CudaLookUp(on.tables(), shape); }), "rank 0 of 65: at most 64 ranks");
  CudaLookUp look_up_there(on.tables(), shape_of(c));
  on.bags.batch += 1;
  EXPECT_EQ(refusal([&] { look_up_there.launch(on.bags, on.parts.data(), nullptr); }),
            fmt::format("batch = {}: it was made for {}", c.bags.batch + 1, c.bags.batch));
}

/// Ranks on one GPU, each with tables of its own, that store into each other's outputs epoch for epoch.
class Together {
 public:
  Together(std::uint64_t seed, std::int32_t ranks, std::int32_t slices, std::uint32_t max_pause_ns)
      : ranks_(static_cast<std::size_t>(ranks)), slices_(slices) {
    // One problem whose tables are dealt out: what it gives is what all ranks give together.
    std::mt19937_64 random(seed);
    do c_ = test::random_bags(random, {.part_rows = 30});
    while (c_.ranks != ranks || c_.tables().count < ranks || c_.bags.batch / ranks < slices);
    on_ = std::make_unique<OnDevice>(c_);
    look_up(c_.tables(), c_.bags, c_.output(), whole(c_.tables(), c_.bags));
    states_ = zeros(2 * ranks_ * sizeof(device::State));
    counters_ = zeros(ranks_ * (static_cast<std::size_t>(slices) + ranks_) * sizeof(std::uint32_t));
    faults_ = zeros(sizeof(unsigned long long));
    void* fault = nullptr;
    IMBREX_CUDA_TRY(cudaHostAlloc(&fault, sizeof *fault_, cudaHostAllocMapped));
    fault_ = static_cast<device::Fault*>(std::memset(fault, 0, sizeof *fault_));
    const auto offset = [&](std::size_t table) {
      return static_cast<const std::byte*>(on_->bags.offsets) +
             static_cast<std::int64_t>(table) * c_.bags.batch * size_of(c_.bags.type);
    };
    for (std::size_t r = 0; r < ranks_; ++r) {
      const std::size_t tables = on_->table.size(), begin = r * tables / ranks_, end = (r + 1) * tables / ranks_;
      wanted_.push_back(test::to_device(c_.part[r]));
      LookUpShape shape = shape_of(c_, slices);
      shape.rank = static_cast<std::int32_t>(r);
      const Tables own{on_->table.data() + begin, static_cast<std::int32_t>(end - begin), c_.type};
      look_ups_.push_back(std::make_unique<CudaLookUp>(own, shape, LookUpTuning{2048, 0, 24}));
      bags_.push_back(on_->bags);
      bags_.back().offsets = offset(begin);
      LookUpPeers peers{group(0, r, look_ups_.back()->blocks(), max_pause_ns), {}, 4, 1};
      for (std::size_t d = 0; d < ranks_; ++d)
        peers.to.push_back({nullptr, done(d), entered(r, d), 0, static_cast<std::uint32_t>(slices)});
      peers_.push_back(peers);
      test::Reader reader{group(1, r, static_cast<std::uint32_t>(slices), max_pause_ns),
                          static_cast<std::byte*>(on_->parts[r]),
                          static_cast<const std::byte*>(wanted_.back().get()),
                          static_cast<std::uint32_t>(c_.bags.batch / ranks),
                          static_cast<std::uint32_t>((c_.bags.batch / ranks + slices - 1) / slices),
                          static_cast<std::uint32_t>(c_.pitch) * static_cast<std::uint32_t>(imbrex::size_of(c_.out)),
                          done(r),
                          static_cast<std::uint32_t>(ranks),
                          {},
                          static_cast<std::uint32_t>(ranks),
                          static_cast<unsigned long long*>(faults_.get())};
      for (std::size_t s = 0; s < ranks_; ++s) reader.entered[s] = entered(s, r);
      readers_.push_back(reader);
      streams_.emplace_back();
      IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&streams_.back(), cudaStreamNonBlocking));
    }
    on_->clear_output(clean());
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  }
  ~Together() {
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    cudaFreeHost(fault_);
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

  std::size_t ranks() const { return ranks_; }
  cudaStream_t stream(std::size_t r) const { return streams_[r]; }
  std::string text() const { return c_.text(); }

  /// One rank's epoch. `reads`: what it got is looked at, and given back.
  void epoch(std::size_t r, bool reads = true) {
    look_ups_[r]->launch(bags_[r], on_->parts.data(), streams_[r], &peers_[r]);
    if (reads) IMBREX_CUDA_TRY(test::launch_reader(readers_[r], streams_[r]));
  }
  /// Bytes that were wrong, all streams at rest.
  unsigned long long faults() {
    for (const cudaStream_t stream : streams_) IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
    std::vector<unsigned long long> count(1);
    test::from_device(count, faults_.get());
    return count[0];
  }
  const device::Fault& fault() const { return *fault_; }
  void limit(std::uint64_t ns) {
    for (auto& peers : peers_) peers.group.limit = peers.group.look_after = device::ticks_of(ns);
    for (auto& reader : readers_) reader.group.limit = reader.group.look_after = device::ticks_of(ns);
  }

 private:
  static cuda::RawMemory zeros(std::size_t bytes) {
    cuda::RawMemory memory = cuda::raw_memory(bytes);
    cuda::fill(memory.get(), 0, bytes);
    return memory;
  }
  RandomBags clean() const {
    RandomBags c = c_;
    c.clear_output();
    return c;
  }
  std::uint32_t* done(std::size_t d) const {
    return static_cast<std::uint32_t*>(counters_.get()) + d * static_cast<std::size_t>(slices_);
  }
  std::uint32_t* entered(std::size_t r, std::size_t d) const { return done(ranks_) + r * ranks_ + d; }
  device::Group group(std::size_t which, std::size_t r, std::uint32_t readers, std::uint32_t max_pause_ns) const {
    auto* states = static_cast<device::State*>(states_.get()) + which * ranks_;
    constexpr std::uint32_t limit = device::ticks_of(20'000'000'000);
    return {.own = states + r,
            .states = reinterpret_cast<std::byte*>(states),
            .stride = sizeof(device::State),
            .limit = limit,
            .look_after = limit,
            .fault = fault_,
            .rank = static_cast<std::uint32_t>(r),
            .ranks = static_cast<std::uint32_t>(ranks_),
            .readers = readers,
            .pause_seed = 17,
            .max_pause_ns = max_pause_ns,
            .entry_limit = 0};
  }

  std::size_t ranks_;
  std::int32_t slices_;
  RandomBags c_;
  std::unique_ptr<OnDevice> on_;
  cuda::RawMemory states_, counters_, faults_;
  device::Fault* fault_ = nullptr;
  std::vector<cuda::RawMemory> wanted_;
  std::vector<std::unique_ptr<CudaLookUp>> look_ups_;
  std::vector<Bags> bags_;
  std::vector<LookUpPeers> peers_;
  std::vector<test::Reader> readers_;
  std::vector<cudaStream_t> streams_;
};

void run_together(std::int32_t ranks, std::int32_t slices, int epochs) {
  Together together(static_cast<std::uint64_t>(ranks), ranks, slices, 20'000);
  SCOPED_TRACE(together.text());
  for (int e = 0; e < epochs; ++e)
    for (std::size_t r = 0; r < together.ranks(); ++r) together.epoch(r);
  ASSERT_EQ(together.faults(), 0u);
  ASSERT_EQ(together.fault().state, 0u);
}

// No two kernels need each other.
TEST(GpuLookUp, OneRankPosts) {
  NEEDS_A_GPU();
  for (const std::int32_t slices : {1, 3}) run_together(1, slices, 10);
}

TEST(GpuLookUp, PostsFollowTheirStores) {
  NEEDS_A_GPU();
  for (const std::int32_t ranks : {2, 3, 4})
    for (const std::int32_t slices : {1, 3}) run_together(ranks, slices, 50);
}

TEST(GpuLookUp, TenThousandEpochsReplay) {
  NEEDS_A_GPU();
  Together together(5, 4, 2, 3'000);
  std::vector<cudaGraphExec_t> graphs(together.ranks());
  for (std::size_t r = 0; r < together.ranks(); ++r) {
    IMBREX_CUDA_TRY(cudaStreamBeginCapture(together.stream(r), cudaStreamCaptureModeRelaxed));
    for (int e = 0; e < 10; ++e) together.epoch(r);
    cudaGraph_t graph = nullptr;
    IMBREX_CUDA_TRY(cudaStreamEndCapture(together.stream(r), &graph));
    IMBREX_CUDA_TRY(cudaGraphInstantiate(&graphs[r], graph, 0));
    IMBREX_CUDA_TRY(cudaGraphDestroy(graph));
    IMBREX_CUDA_TRY(cudaGraphUpload(graphs[r], together.stream(r)));
  }
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  for (int i = 0; i < 1000; ++i)
    for (std::size_t r = 0; r < together.ranks(); ++r) IMBREX_CUDA_TRY(cudaGraphLaunch(graphs[r], together.stream(r)));
  EXPECT_EQ(together.faults(), 0u);
  EXPECT_EQ(together.fault().state, 0u);
  for (const cudaGraphExec_t graph : graphs) IMBREX_CUDA_TRY(cudaGraphExecDestroy(graph));
}

TEST(GpuLookUp, AWaitThatNobodyMeetsEnds) {
  NEEDS_A_GPU();
  Together together(6, 2, 1, 0);
  together.limit(200'000'000);
  for (std::size_t r = 0; r < 2; ++r) together.epoch(r, false);
  EXPECT_EQ(together.faults(), 0u);
  EXPECT_EQ(together.fault().state, 0u);
  together.epoch(0, false);  // no kernel has read the last epoch's
  EXPECT_EQ(together.faults(), 0u);
  EXPECT_EQ(together.fault().state, device::Fault::timed_out);
  EXPECT_EQ(together.fault().expected, 1u);
  EXPECT_EQ(together.fault().seen, 0u);
  EXPECT_EQ(together.fault().epoch, 1u);
}

}  // namespace
}  // namespace imbrex::embedding
