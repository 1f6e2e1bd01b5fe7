#include "ops/world_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "base/fixed_text.hpp"
#include "execute/cuda/refusal.hpp"
#include "plan/task_stream.hpp"
#include "runtime/attachment.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/cuda/survey.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::ops {
namespace {

// What a rank tells the others.
struct View {
  char refusal[1024] = {}, gpu[128] = {}, only_gpu[64] = {};  // each ends with a zero byte
  int major = 0;                                              // compute capability
};

View view_of(World& world, int ranks_per_gpu) {
  const bool shared = ranks_per_gpu > 1, processes = !runtime::one_process(world);
  const GpuSurvey survey = runtime::survey_gpus_here();
  const int wanted = shared ? static_cast<int>(base::ceil_div(world.size(), ranks_per_gpu)) : world.size();
  View view;
  if (shared && survey.gpus.size() < static_cast<std::size_t>(wanted) && !survey.gpus.empty())
    base::put_text(fmt::format("{} ranks, {} to a GPU, need {} GPUs, and this machine shows {}", world.size(),
                               ranks_per_gpu, wanted, survey.gpus.size()),
                   view.refusal);
  else
    base::put_text(cuda::refusal_of_gpus(survey, wanted, processes, !shared, true), view.refusal);
  if (survey.gpus.empty()) return view;
  const choose::GpuKind kind = choose::kind_of(survey);
  base::put_text(kind.name, view.gpu);
  view.major = kind.major;
  if (survey.gpus.size() == 1 && !shared) base::put_text(survey.gpus.front().uuid, view.only_gpu);
  return view;
}

std::string agree(World& world, int ranks_per_gpu, choose::GpuKind& gpus) {
  const View own = view_of(world, ranks_per_gpu);
  std::vector<View> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  gpus = {all.front().gpu, all.front().major};
  for (const View& view : all) gpus.major = std::min(gpus.major, view.major);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].refusal[0] != 0) return fmt::format("rank {}: {}", r, all[r].refusal);
  for (std::size_t r = 0; r < all.size(); ++r)
    for (std::size_t s = 0; s < r; ++s)
      if (all[r].only_gpu[0] != 0 && std::string_view(all[r].only_gpu) == all[s].only_gpu)
        return fmt::format("ranks {} and {} see one GPU only, the same one ({})", s, r, all[r].only_gpu);
  return {};
}

// A tuning table may have been replaced between two ranks' reading of it.
plan::Candidate of_rank_0(World& world, const plan::Candidate& own) {
  static_assert(std::is_trivially_copyable_v<plan::Candidate>);
  std::vector<plan::Candidate> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  return all.front();
}

}  // namespace

std::shared_ptr<GpuOperation> WorldGpus::operation(World& world, const Problem& problem,
                                                   std::optional<Strategy> strategy,
                                                   const std::optional<Knobs>& knobs) {
  std::erase_if(operations, [](const auto& o) { return o.expired(); });
  for (const auto& weak : operations)
    if (auto o = weak.lock(); o->problem == problem && o->strategy == strategy && o->knobs == knobs) return o;
  auto made = std::make_shared<GpuOperation>(GpuOperation{problem, strategy, knobs, {}, nullptr});
  made->chosen = of_rank_0(world, choose::choose_gpu_candidate(problem, strategy, knobs, gpus));
  made->execution = executor->prepare_tasks(
      [&] { return plan::make_rank_tasks(problem, made->chosen.strategy, made->chosen.knobs, world.rank()); });
  operations.push_back(made);
  return made;
}

std::string why_no_gpus(World& world) {
  if (const auto& kept = runtime::attachment(world)) return std::static_pointer_cast<WorldGpus>(kept)->refusal;
  choose::GpuKind gpus;
  return agree(world, 1, gpus);
}

std::shared_ptr<WorldGpus> gpus_of(World& world, const CudaOptions& options) {
  std::shared_ptr<void>& kept = runtime::attachment(world);
  if (kept == nullptr) {
    auto made = std::make_shared<WorldGpus>();
    made->refusal = agree(world, options.ranks_per_gpu, made->gpus);
    made->options = options;
    if (made->refusal.empty()) {
      made->executor = make_cuda_executor(world, options);
      made->own_gpu = runtime::current_gpu();
    }
    kept = std::move(made);
  }
  auto gpus = std::static_pointer_cast<WorldGpus>(kept);
  IMBREX_EXPECTS(options == CudaOptions{} || options == gpus->options,
                 "the CUDA options differ from those of the world's first operator, with which it shares an executor "
                 "of {} heap_bytes; give all operators the same, or later ones none",
                 gpus->options.heap_bytes);
  return gpus;
}

}  // namespace imbrex::ops
