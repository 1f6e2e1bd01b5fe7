// Which plan runs on GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "choose/choose.hpp"
#include "choose/reason.hpp"
#include "imbrex/gpu.hpp"

namespace imbrex::choose {

/// The GPUs that a plan is chosen for.
struct GpuKind {
  std::string name;  ///< of the first one
  int major = 0;     ///< the least compute capability

  bool copies = true;     ///< copy engines bring operands from rank to rank: every rank has a GPU of its own
  bool libraries = true;  ///< library collectives run: every rank has a GPU or a process of its own
  bool nccl = true;       ///< NCCL's do: no rank's environment keeps Imbrex from it
  bool lanes = true;      ///< tiles run with library collectives, as those of signaled plans do
};

/// The kind that a survey found, which found some, for ranks that are processes or threads, as many to a GPU.
GpuKind kind_of(const GpuSurvey& survey, int ranks_per_gpu, bool processes);

/// What to run on these GPUs: the plan recorded by their name for the problem where there is one, else that of a
/// problem of nearly its sizes, on other Hopper GPUs else the H200's, else the one that the analytical cost model of
/// four H200s (`choose/quick_times.hpp`) predicts to be the fastest. In tiles that a kernel on tensor cores computes;
/// where none does, a library does. Where ranks share GPUs, the best of the plans that run there. A given strategy is
/// kept, and given knobs take the place of the choice's where a plan can have them; a `codec`, which given knobs have,
/// too, leaves the sequence and chunks, by the analytical cost model. Without NCCL nothing that needs it is chosen,
/// unless the strategy is given. The same on every rank and in every run. `reason`: filled in where no strategy is
/// given.
plan::Candidate choose_gpu_candidate(const Problem& problem, std::optional<Strategy> strategy,
                                     const plan::GivenKnobs& knobs, const GpuKind& gpus,
                                     const std::optional<CodecPair>& codec = {}, Reason* reason = nullptr);

/// Knobs of a plan that leaves the output of a gemm_all_reduce packed, on these GPUs, or, without any, on this
/// machine's cores: the tiles and groups whose predicted time is least, with the given knobs. Throws
/// Error(invalid_input) where no tile's columns divide N.
Knobs packed_knobs(const Problem& problem, const GpuKind* gpus, const std::optional<CodecPair>& codec = {},
                   const plan::GivenKnobs& given = {});

/// A number that differs where the tuning tables do that a choice for these GPUs looks at, as this process has read
/// them.
std::uint64_t digest_of_tables(const GpuKind& gpus);

/// Its plan.
Plan choose_gpu_plan(const Problem& problem, std::optional<Strategy> strategy, const plan::GivenKnobs& knobs,
                     const GpuKind& gpus, Reason* reason = nullptr);

/// A sequence with what is recorded of these GPUs and the problem's product; others as they are.
plan::Candidate with_product_record(plan::Candidate candidate, const Problem& problem, const GpuKind& gpus);

}  // namespace imbrex::choose
