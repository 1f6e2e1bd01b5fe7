#include "gpu/harness/lost_rank.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "execute/cuda/lanes/graph.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/stream.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"

namespace imbrex::test {
namespace {

using Clock = std::chrono::steady_clock;
using How = LossCase::How;
using When = LossCase::When;

constexpr int lost_rank = 1;
// Beside the limit: a host looks about every 10 ms, gives NCCL seconds to end what is under way, and prints.
constexpr double patience = 25;

[[noreturn]] void be_lost(How how) {
  if (how == How::ends) _exit(9);
  for (;;) raise(SIGSTOP);  // run_processes ends it
}

// One rank's operands, which are zero.
class Operands {
 public:
  explicit Operands(const Problem& problem) {
    std::size_t bytes = 256;
    for (const OperandInfo& info : operands_of(problem)) bytes = std::max(bytes, info.bytes());
    for (cuda::RawMemory* memory : {&a_, &b_, &out_}) {
      *memory = cuda::raw_memory(bytes);
      cuda::fill(memory->get(), 0, bytes);
    }
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  }
  Addresses addresses() const { return {a_.get(), b_.get(), out_.get()}; }

 private:
  cuda::RawMemory a_, b_, out_;
};

void replay(const cuda::Graph& graph, const Stream& stream, int times) {
  for (int i = 0; i < times; ++i) graph.launch(stream);
}

// What the ranks that are told say.
struct Told {
  explicit Told(int ranks) : seconds(static_cast<std::size_t>(ranks)) {}
  Trouble messages;
  SharedArray<double> seconds;  // by rank, from the loss on
};

// What all ranks do up to the loss, then the lost one's end, and what the others do after it.
void run_rank(World& world, const LossCase& c, Told& told) {
  CudaOptions options;
  options.heap_bytes = 1 << 26;
  const auto executor = make_cuda_executor(world, sharing(options));
  const auto execution = executor->prepare(c.plan);
  const Operands operands(c.plan.problem);
  const Addresses addresses = operands.addresses();
  const Stream stream(world);
  execution->run(addresses);
  std::optional<cuda::Graph> graph;
  if (c.when != When::before_a_call) graph.emplace(stream, 2, [&] { execution->enqueue(addresses, stream); });
  if (c.when == When::in_a_replay || c.when == When::between_replays) {
    replay(*graph, stream, 3);
    execution->synchronize(stream);
  }
  world.barrier();
  const bool lost = world.rank() == lost_rank;
  if (c.when == When::in_a_replay) {
    replay(*graph, stream, 40);
    if (lost) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const auto begin = Clock::now();
  if (lost) be_lost(c.how);
  try {
    if (c.when == When::before_a_call) execution->run(addresses);
    if (c.when == When::before_replays || c.when == When::between_replays) replay(*graph, stream, 2);
    execution->synchronize(stream);
  } catch (const Error& error) {  // here: what is left behind takes its time, and the process perhaps its end
    told.seconds[static_cast<std::size_t>(world.rank())] = std::chrono::duration<double>(Clock::now() - begin).count();
    told.messages.add(error.what());
    throw;
  }
}

}  // namespace

void expect_others_told(const LossCase& c) {
  const int ranks = c.plan.problem.ranks;
  Told told(ranks);
  if (c.may_end_untold) testing::internal::CaptureStderr();
  const int code = on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = c.wait_limit}, [&](World& world) {
    run_rank(world, c, told);
    return 0;
  });
  const std::string said = c.may_end_untold ? testing::internal::GetCapturedStderr() : "";
  EXPECT_EQ(code, 3) << said;
  const std::vector<std::string> list = told.messages.list();
  const std::string wanted = c.how == How::ends ? "rank " + std::to_string(lost_rank)
                                                : "waited longer than " + fmt::format("{}", c.wait_limit);
  if (c.may_end_untold && list.size() < static_cast<std::size_t>(ranks - 1))
    EXPECT_NE(said.find(wanted + " (pid "), std::string::npos) << said;
  else
    EXPECT_EQ(list.size(), static_cast<std::size_t>(ranks - 1));
  for (const std::string& text : list) EXPECT_NE(text.find(wanted), std::string::npos) << text;
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_LT(told.seconds[static_cast<std::size_t>(rank)], c.wait_limit + patience) << "rank " << rank;
}

}  // namespace imbrex::test
