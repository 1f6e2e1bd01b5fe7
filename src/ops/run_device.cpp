#include "ops/run_device.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "execute/cuda/refusal.hpp"
#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/survey.hpp"

namespace imbrex {
namespace {

// What keeps the request from GPUs, whatever its plan; empty if nothing does.
std::string refusal_of_request(const RunRequest& request, const Problem& problem) {
  if (request.timeline) return "the CUDA executor records no timeline";
  const bool launched = World::launched(), processes = launched || !request.threads;
  const GpuSurvey survey = processes && !launched ? survey_gpus() : runtime::survey_gpus_here();
  // That a rank of a launcher sees one GPU may mean that all ranks see the same one: not to be taken unasked.
  const bool own = launched && request.device == Device::cuda;
  return cuda::refusal_of_gpus(survey, problem.ranks, processes, own);
}

Plan host_plan(const RunRequest& request, const Problem& problem) {
  return choose_plan(problem, nominal_host_machine(), {request.strategy, request.knobs, request.cpu});
}

// The machine that GPU plans are chosen by: constants, so that every rank and every run chooses the same plan.
Plan gpu_plan(const RunRequest& request, const Problem& problem) {
  Machine machine = load_machine("4xh200");
  machine.devices = std::max(machine.devices, problem.ranks);
  return choose_plan(problem, machine, {request.strategy, request.knobs, {}});
}

}  // namespace

std::string_view name_of(Device device) {
  switch (device) {
    case Device::automatic: return "auto";
    case Device::cpu: return "cpu";
    case Device::cuda: return "cuda";
  }
  return "auto";
}

Device parse_device(std::string_view name) {
  for (const Device device : {Device::automatic, Device::cpu, Device::cuda})
    if (name_of(device) == name) return device;
  throw Error(ErrorCode::invalid_input, fmt::format("device '{}': it must be auto, cpu or cuda", name));
}

Choice choose_device(const RunRequest& request, const Problem& problem) {
  std::string refusal;
  if (request.device != Device::cpu) {
    refusal = refusal_of_request(request, problem);
    if (refusal.empty()) {
      Plan plan = request.plan ? *request.plan : gpu_plan(request, problem);
      refusal = cuda::refusal_of_plan(plan);
      if (refusal.empty()) return {Device::cuda, std::move(plan)};
    }
    if (request.device == Device::cuda) throw Error(ErrorCode::invalid_input, fmt::format("device cuda: {}", refusal));
  }
  return {Device::cpu, request.plan ? *request.plan : host_plan(request, problem)};
}

}  // namespace imbrex
