#include "program/run_device.hpp"

#include <fmt/format.h>

#include "execute/cuda/refusal.hpp"
#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/world.hpp"
#include "program/explain.hpp"
#include "runtime/cuda/survey.hpp"

namespace imbrex::program {
namespace {

Choice host_choice(const RunRequest& request, const Problem& problem) {
  if (request.plan) return {Device::cpu, *request.plan, {}};
  Explained made = choose_explained(problem, request.strategy, request.knobs, nominal_host_machine(),
                                    "estimated with a generic CPU model");
  return {Device::cpu, std::move(made.plan), std::move(made.reason)};
}

}  // namespace

std::string refusal_of_ranks(int ranks, bool threads, bool own, choose::GpuKind& gpus, bool others, int ranks_per_gpu) {
  const bool launched = World::launched(), processes = launched || !threads;
  const GpuSurvey survey = processes && !launched ? survey_gpus() : runtime::survey_gpus_here();
  if (!survey.gpus.empty()) gpus = choose::kind_of(survey, ranks_per_gpu, processes);
  return cuda::refusal_of_gpus(survey, ranks, processes, own, others, ranks_per_gpu);
}

Device device_of_ranks(Device asked, int ranks, bool threads, int ranks_per_gpu) {
  if (asked == Device::cpu) return Device::cpu;
  choose::GpuKind gpus;
  const bool own = World::launched() && asked == Device::cuda;
  const std::string refusal = refusal_of_ranks(ranks, threads, own, gpus, true, ranks_per_gpu);
  if (refusal.empty()) return Device::cuda;
  if (asked == Device::cuda) throw Error(ErrorCode::invalid_input, fmt::format("device cuda: {}", refusal));
  return Device::cpu;
}

Choice choose_device(const RunRequest& request, const Problem& problem) {
  std::string refusal;
  choose::GpuKind gpus;
  if (request.device != Device::cpu) {
    // That a rank of a launcher sees one GPU may mean that all ranks see the same one: not to be taken unasked.
    const bool own = World::launched() && request.device == Device::cuda;
    refusal = refusal_of_ranks(problem.ranks, request.threads, own, gpus, true, request.ranks_per_gpu);
    if (refusal.empty()) {
      choose::Reason reason;
      Plan plan = request.plan ? *request.plan
                               : choose::choose_gpu_plan(problem, request.strategy, request.knobs, gpus, &reason);
      refusal = cuda::refusal_of_plan(plan);
      if (refusal.empty()) refusal = cuda::refusal_of_sharing(plan, request.ranks_per_gpu, gpus.libraries);
      if (refusal.empty()) return {Device::cuda, std::move(plan), std::move(reason)};
    }
    if (request.device == Device::cuda) throw Error(ErrorCode::invalid_input, fmt::format("device cuda: {}", refusal));
  }
  return host_choice(request, problem);
}

}  // namespace imbrex::program
