// Running plans on GPUs, and comparing with the reference.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/harness/ranks.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

#define NEEDS_GPUS(count) \
  if (imbrex::test::gpus() < (count)) GTEST_SKIP() << (count) << " GPUs wanted, " << imbrex::test::gpus() << " found"

/// For what takes no ranks_per_gpu, or is not as said where ranks share a GPU.
#define NEEDS_OWN_GPUS(count) \
  NEEDS_GPUS(count);          \
  if (imbrex::test::ranks_per_gpu() > 1) GTEST_SKIP() << "ranks share a GPU"

/// For ranks that are processes and share a GPU.
#define NEEDS_SHARING(count)                                                                              \
  if (!imbrex::test::ranks_are_processes() || imbrex::test::ranks_per_gpu() == 1)                         \
    GTEST_SKIP() << "IMBREX_TEST_RANKS=processes and IMBREX_TEST_RANKS_PER_GPU, more than 1, are wanted"; \
  NEEDS_GPUS(count)

namespace imbrex::test {

/// Ranks that GPUs of this machine take: `ranks_per_gpu` each. Where ranks are processes, it leaves this one without
/// CUDA.
int gpus();

/// IMBREX_TEST_RANKS_PER_GPU, or 1.
int ranks_per_gpu();

/// Options of executors and collectives, for as many ranks a GPU.
template <typename Options>
Options sharing(Options options) {
  options.ranks_per_gpu = ranks_per_gpu();
  return options;
}

/// The calling rank's GPU. Collective.
int select_gpu(World& world);

/// Where ranks share a GPU, waits for all: memory is taken and given back, which waits for whatever runs there, before
/// anybody goes on.
void meet_if_sharing(World& world);

/// As many ranks as tests run that want many: a power of two, at most 8.
int most_ranks();

/// The numbers among 1, 2, 3, 4 and 8 ranks, from `least` on, that there are GPUs for.
std::vector<int> rank_counts(int least);

/// 2 ranks, and 4 where there are GPUs for them.
std::vector<int> two_and_four();

/// Processes that share a GPU by time slices: a wait for a peer takes milliseconds there.
bool by_time_slices();

/// Bytes of a workspace of collectives that leaves so many ranks few slots: as many for each as four have of the least
/// that is taken.
constexpr std::size_t small_workspace(int ranks) { return std::size_t(ranks > 4 ? ranks : 4) << 22; }

/// Random problems of each kind: IMBREX_TEST_GPU_CASES, or `usual`.
int cases(int usual);

/// What a run of a plan on every rank's GPU gave.
struct Outcome {
  int code = 0;
  double worst = 0;   ///< largest |result - reference| / bound of all ranks and repeats
  int differing = 0;  ///< repeats whose bits were not those of the first
  std::string kernel;
  std::string message;  ///< first error, or where the worst element lies
};

struct GpuCase {
  CudaOptions options;
  int repeats = 2;
  int queued = 1;              ///< epochs that are queued before the host waits
  int replays = 0;             ///< of a CUDA graph of two epochs, after the repeats; compared with them 20 times
  bool shared_out = false;     ///< outputs where peers can write them
  bool whole_numbers = false;  ///< as operands, whose products are exact; fused plans, or fp32
  bool exact = false;          ///< results are the exact ones, rounded once: integers, summed up in fp32
  double wait_limit = 20;      ///< seconds; of kernels that a sanitizer slows down, or that share their GPUs, too
  std::uint64_t seed = 1;
};

/// Ranks are what on_world makes them; operands are seeded; outputs start as NaN. Every repeat is compared.
Outcome run_on_gpus(const Plan& plan, const GpuCase& c);

/// Runs several plans of one number of ranks, each as its case says, one after another until one fails, on one executor
/// with the first case's options and limit: ranks that are processes take most of a second to start.
std::vector<Outcome> run_each_on_gpus(const std::vector<Plan>& plans, const std::vector<GpuCase>& cases);
std::vector<Outcome> run_on_gpus(const std::vector<Plan>& plans, const GpuCase& c);

/// Operands are integers, the heap has 128 MiB, and waits end after 30 s.
GpuCase exact_case();

/// Proves plans, runs them as run_on_gpus, and expects results within their bounds, of the same bits every time.
std::vector<Outcome> expect_each_right(const std::vector<Plan>& plans, const std::vector<GpuCase>& cases);
std::vector<Outcome> expect_right(const std::vector<Plan>& plans, const GpuCase& c);
void expect_right(const Plan& plan, const GpuCase& c, const std::string& what);

/// Results that are the reference's: operands are integers.
void expect_exact(const std::vector<Plan>& plans, const GpuCase& c);

}  // namespace imbrex::test
