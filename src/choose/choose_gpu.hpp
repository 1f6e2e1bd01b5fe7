// Which plan runs on GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "choose/choose.hpp"
#include "choose/reason.hpp"
#include "imbrex/gpu.hpp"

namespace imbrex::choose {

/// The GPUs that a plan is chosen for.
struct GpuKind {
  std::string name;  ///< name_of_all
  int major = 0;     ///< the least compute capability

  bool copies = true;     ///< copy engines bring operands from rank to rank: every rank has a GPU of its own
  bool libraries = true;  ///< library collectives run: every rank has a GPU or a process of its own
  bool nccl = true;       ///< NCCL's do: no rank's environment keeps Imbrex from it
  bool lanes = true;      ///< tiles run with library collectives, as those of signaled plans do
  bool fp8 = true;        ///< cuBLASLt multiplies e4m3: compute capability 8.9 or later
};

/// The name of GPUs of one kind; of several kinds all of them, each once: "NVIDIA H100 80GB HBM3 and NVIDIA H200". No
/// table and no machine file knows such a name, so that nothing is run there that was measured on one of them alone.
std::string name_of_all(std::span<const std::string> names);

/// The kind that a survey found, which found some, for ranks that are processes or threads, as many to a GPU.
GpuKind kind_of(const GpuSurvey& survey, int ranks_per_gpu, bool processes);

/// What to run on these GPUs: the plan recorded by their name for the problem where there is one, else that of a
/// problem of nearly its sizes, else, in this order, what is recorded of the GPUs that they are as fast as
/// (Machine::tuned_like), else the plan that the analytical cost model (`choose/quick_times.hpp`) predicts to be the
/// fastest on them. The library's sequence, where no machine file names them, or one whose products were not measured.
/// In tiles that a kernel on tensor cores computes; where none does, a library does. Where ranks share GPUs, the best
/// of the plans that run there. A given strategy is kept, and given knobs take the place of the choice's where a plan
/// can have them; a `codec`, which given knobs have, too, leaves the sequence and chunks, by the analytical cost model.
/// Without NCCL nothing that needs it is chosen, unless the strategy is given. The same on every rank and in every run.
/// `reason`: filled in where no strategy is given. Throws Error(invalid_input) where nothing takes the knobs, and for a
/// table or a machine file that breaks a rule.
plan::Candidate choose_gpu_candidate(const Problem& problem, std::optional<Strategy> strategy,
                                     const plan::GivenKnobs& knobs, const GpuKind& gpus,
                                     const std::optional<CodecPair>& codec = {}, Reason* reason = nullptr);

/// Knobs of a plan that leaves the output of a gemm_all_reduce packed, on these GPUs, or, without any, on this
/// machine's cores: the tiles and groups whose predicted time is least, with the given knobs. Throws
/// Error(invalid_input) where no tile's columns divide N.
Knobs packed_knobs(const Problem& problem, const GpuKind* gpus, const std::optional<CodecPair>& codec = {},
                   const plan::GivenKnobs& given = {});

/// A number that differs where the tuning tables or the constants do that a choice for these GPUs looks at, as this
/// process has read them.
std::uint64_t digest_of_tables(const GpuKind& gpus);

/// Adds the problem to the file of sizes without a tuning entry, where IMBREX_UNTUNED_SIZES names one, unless the
/// tables of these GPUs have one for it (records/untuned.hpp). Any thread may call it.
void note_untuned(const Problem& problem, const GpuKind& gpus);

/// Its plan.
Plan choose_gpu_plan(const Problem& problem, std::optional<Strategy> strategy, const plan::GivenKnobs& knobs,
                     const GpuKind& gpus, Reason* reason = nullptr);

/// A sequence with what is recorded of these GPUs and the problem's product; others as they are.
plan::Candidate with_product_record(plan::Candidate candidate, const Problem& problem, const GpuKind& gpus);

}  // namespace imbrex::choose
