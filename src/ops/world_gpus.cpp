#include "ops/world_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <type_traits>
#include <vector>

#include "base/check.hpp"
#include "base/fixed_text.hpp"
#include "choose/card.hpp"
#include "execute/cuda/refusal.hpp"
#include "plan/problem.hpp"
#include "plan/task_stream.hpp"
#include "runtime/agreement.hpp"
#include "runtime/attachment.hpp"
#include "runtime/bootstrap/nccl_hosts.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/cuda/seats.hpp"
#include "runtime/cuda/survey.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::ops {
namespace {

// What a rank tells the others.
struct View {
  char refusal[1024] = {}, gpu[128] = {}, own_gpu[64] = {};  // each ends with a zero byte; own_gpu: where it is known
  bool given = false;                                        // by the world's options
  int major = 0;                                             // compute capability
  bool nccl = false;                                         // its environment lets NCCL be used
  bool processes = false;                                    // ranks are
  bool fp8 = false;                                          // cuBLASLt multiplies e4m3 there
};

View view_of(World& world, int ranks_per_gpu) {
  GpuSurvey survey = runtime::survey_gpus_here();
  View view;
  view.processes = !runtime::one_process(world);
  view.nccl = runtime::refusal_of_nccl(base::environment_now()).empty();
  if (const auto given = world.options().gpu; given && !survey.gpus.empty()) {
    const std::string refusal = cuda::refusal_of_given_gpu(survey, *given, view.processes);
    base::put_text(refusal, view.refusal);
    if (!refusal.empty()) return view;
    view.given = true;
    // This rank ignores the others; how GPUs reach each other, the ranks find out when they take them.
    survey.gpus = {survey.gpus[static_cast<std::size_t>(*given)]};
    survey.links = {GpuLink::nvlink};
  } else {
    const bool own = ranks_per_gpu == 1 || view.processes;
    base::put_text(cuda::refusal_of_gpus(survey, world.size(), view.processes, own, true, ranks_per_gpu), view.refusal);
  }
  if (survey.gpus.empty()) return view;
  const choose::GpuKind kind = choose::kind_of(survey, ranks_per_gpu, view.processes);
  base::put_text(kind.name, view.gpu);
  view.major = kind.major;
  view.fp8 = kind.fp8;
  if (survey.gpus.size() == 1) base::put_text(survey.gpus.front().uuid, view.own_gpu);
  return view;
}

// More ranks than may share a GPU, that see one only, or were given one, the same one; empty if there are none.
std::string too_many_on_one(const std::vector<View>& all, int ranks_per_gpu) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].own_gpu[0] == 0) continue;
    std::vector<std::size_t> same;
    for (std::size_t s = 0; s <= r; ++s)
      if (std::string_view(all[r].own_gpu) == all[s].own_gpu) same.push_back(s);
    if (same.size() <= static_cast<std::size_t>(ranks_per_gpu)) continue;
    const std::size_t last = same.back();
    same.pop_back();
    return fmt::format("ranks {} and {} {}, the same one ({}){}", fmt::join(same, ", "), last,
                       all[r].given ? "were given one GPU" : "see one GPU only", all[r].own_gpu,
                       ranks_per_gpu > 1 ? fmt::format(", which {} may share", ranks_per_gpu) : std::string());
  }
  return {};
}

std::string agree(World& world, int ranks_per_gpu, choose::GpuKind& gpus) {
  IMBREX_EXPECTS(ranks_per_gpu >= 1, "ranks_per_gpu = {}: it must be 1, or more where ranks share GPUs", ranks_per_gpu);
  const View own = view_of(world, ranks_per_gpu);
  std::vector<View> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  gpus = {{}, all.front().major, ranks_per_gpu == 1, ranks_per_gpu == 1 || own.processes};
  std::vector<std::string> names;
  for (const View& view : all) {
    names.emplace_back(view.gpu);
    gpus.major = std::min(gpus.major, view.major);
    gpus.nccl = gpus.nccl && view.nccl;
    gpus.fp8 = gpus.fp8 && view.fp8;
  }
  gpus.name = choose::name_of_all(names);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].refusal[0] != 0) return fmt::format("rank {}: {}", r, all[r].refusal);
  return too_many_on_one(all, ranks_per_gpu);
}

// A tuning table may have been replaced between two ranks' reading of it.
plan::Candidate of_rank_0(World& world, const plan::Candidate& own) {
  static_assert(std::is_trivially_copyable_v<plan::Candidate>);
  std::vector<plan::Candidate> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  return all.front();
}

// What an operator does here no table and no machine file says: people hear of it once, in each process.
void say_unknown(const choose::GpuKind& gpus) {
  static std::once_flag once;
  const choose::Knowledge known = choose::knowledge_of(gpus.name, gpus.major);
  if (!known.measured)
    std::call_once(
        once, [&] { std::fprintf(stderr, "imbrex: %s; `imbrex tune --card` measures them\n", known.words.c_str()); });
}

}  // namespace

std::shared_ptr<GpuOperation> WorldGpus::find(const Problem& problem, const PlanRequest& request, bool any_m) {
  std::erase_if(operations, [](const auto& o) { return o.expired(); });
  for (const auto& weak : operations)
    if (auto o = weak.lock(); o->problem == problem && o->request == request && o->any_m == any_m) return o;
  return nullptr;
}

std::shared_ptr<GpuOperation> WorldGpus::operation(World& world, const Problem& problem, const PlanRequest& request) {
  if (auto kept = find(problem, request, false)) return kept;
  auto made = std::make_shared<GpuOperation>(GpuOperation{problem, request});
  if (request.plan != nullptr) {
    made->chosen = {request.plan->strategy, request.plan->knobs};
    made->own = executor->prepare(request.plan);
  } else {
    made->chosen =
        of_rank_0(world, choose::choose_gpu_candidate(problem, request.strategy, request.knobs, gpus, request.codec));
    note(problem, request);
    made->own = executor->prepare_tasks(
        [&] { return plan::make_rank_tasks(problem, made->chosen.strategy, made->chosen.knobs, world.rank()); });
  }
  operations.push_back(made);
  return made;
}

// What was asked for, no table would change.
void WorldGpus::note(const Problem& problem, const PlanRequest& request) const {
  if (leads && !request.strategy && !request.knobs && !request.codec) choose::note_untuned(problem, gpus);
}

void* GpuOperation::memory_aside(std::size_t bytes, CudaStream stream, int gpu) {
  if (aside == nullptr) {
    IMBREX_EXPECTS(!runtime::is_captured(stream, gpu),
                   "operand a lies in an output, the stream is being captured, and this operator has no memory yet for "
                   "a copy of a; call it so once before the capture");
    aside = runtime::DeviceMemory::beside_captures(bytes);
  }
  return aside->get();
}

// Without copy engines, and tiles with library collectives, which plans that take turns do not run.
cuda::PlanToRun WorldGpus::plan_of(const Problem& largest, const PlanRequest& request, std::int64_t m) const {
  choose::GpuKind kind = gpus;
  kind.copies = kind.lanes = false;
  cuda::PlanToRun plan{largest, {}};
  plan.problem.m = m;
  plan.candidate = choose::choose_gpu_candidate(plan.problem, request.strategy, request.knobs, kind, request.codec);
  return plan;
}

// Where the choice for an M between those that were surveyed needs what was not made, the other way to run it.
cuda::PlanToRun WorldGpus::plan_in_turn(const GpuOperation& operation, std::int64_t m) const {
  const cuda::PlanToRun first = plan_of(operation.problem, operation.request, m);
  if (operation.request.strategy || operation.plans->lacks(first).empty()) return first;
  for (const Strategy strategy : {Strategy::fused, Strategy::sequential}) {
    PlanRequest request = operation.request;
    request.strategy = strategy;
    if (request.codec && strategy == Strategy::fused) continue;
    if (cuda::PlanToRun other = plan_of(operation.problem, request, m); operation.plans->lacks(other).empty())
      return other;
  }
  return first;
}

// Where the choice for an M between those that were surveyed takes more memory than these: the choice of a larger M.
std::shared_ptr<Execution> WorldGpus::prepare_in_turn(const GpuOperation& operation, std::int64_t m) {
  cuda::PlanToRun plan = plan_in_turn(operation, m);
  note(plan.problem, operation.request);
  make_room(operation.problem, m);
  if (auto made = operation.plans->prepare(plan)) return made;
  const std::vector<std::int64_t> sizes = sizes_to_survey(operation.problem);
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    if (*size <= m) continue;
    cuda::PlanToRun other = plan_of(operation.problem, operation.request, *size);
    other.problem.m = m;
    if (!operation.plans->lacks(other).empty()) continue;
    if (auto made = operation.plans->prepare(other)) return made;
  }
  return operation.plans->prepare(plan, true);
}

void WorldGpus::prepare_any_m(World& world, GpuOperation& operation) {
  const Problem& largest = operation.problem;
  runtime::agree(world, [&] {
    // Each rank chooses for itself, and all have to choose alike.
    return runtime::Terms("an operator of any M").add("tuning tables", choose::digest_of_tables(gpus));
  });
  const auto survey = [&] {
    std::vector<cuda::PlanToRun> plans;
    for (const std::int64_t m : sizes_to_survey(largest)) plans.push_back(plan_of(largest, operation.request, m));
    return plans;
  };
  const auto drop = [this] {
    for (const auto& weak : operations)
      if (const auto other = weak.lock(); other != nullptr && other->by_size) other->by_size->clear();
  };
  operation.plans = executor->pool(survey, table_bytes(), drop);
  operation.by_size.emplace(
      [this, &operation](std::int64_t m) {
        try {
          return prepare_in_turn(operation, m);
        } catch (const Error& error) {
          throw Error(error.code(), fmt::format("M = {}: {}", m, error.what()));
        }
      },
      PlansBySize::most_kept, &clock_);
}

// What the tables of all plans may take.
std::size_t WorldGpus::table_bytes() const {
  std::size_t all = spare_table_bytes;
  for (const auto& weak : operations)
    if (const auto one = weak.lock(); one != nullptr && one->any_m)
      all += 2 * table_bytes_of(one->problem, one->problem.m);
  return all;
}

// Drops plans whose last calls are longest ago, of whatever operation, where the tables of all that are kept would take
// more than they may.
void WorldGpus::make_room(const Problem& problem, std::int64_t m) {
  const std::size_t most = table_bytes();
  std::size_t all = table_bytes_of(problem, m);
  for (const auto& weak : operations)
    if (const auto one = weak.lock(); one != nullptr && one->by_size)
      one->by_size->for_each([&](std::int64_t kept) { all += table_bytes_of(one->problem, kept); });
  while (all > most) {
    std::shared_ptr<GpuOperation> of_oldest;
    PlansBySize::Oldest oldest;
    for (const auto& weak : operations) {
      const auto one = weak.lock();
      if (one == nullptr || !one->by_size) continue;
      const auto its = one->by_size->oldest();
      if (!its || (of_oldest != nullptr && its->called >= oldest.called)) continue;
      of_oldest = one;
      oldest = *its;
    }
    if (of_oldest == nullptr) return;
    all -= table_bytes_of(of_oldest->problem, oldest.m);
    of_oldest->by_size->drop_oldest();
  }
}

// The largest M is often the one that is called: where the best plan for it takes no turns, it has memory of its own.
void WorldGpus::prepare_largest(World& world, GpuOperation& operation, bool own_memory) {
  const Problem& largest = operation.problem;
  const PlanRequest& request = operation.request;
  const auto tasks_of_chosen = [&] {
    return plan::make_rank_tasks(largest, operation.chosen.strategy, operation.chosen.knobs, world.rank());
  };
  bool own = false;
  runtime::agree(world, [&] {
    if (own_memory) {
      operation.chosen = choose::choose_gpu_candidate(largest, request.strategy, request.knobs, gpus, request.codec);
      own = !cuda::refusal_of_turns(tasks_of_chosen()->frame()).empty();
    }
    if (!own) {
      operation.chosen = plan_of(largest, request, largest.m).candidate;
      operation.by_size->at(largest.m);
    }
    return runtime::Terms("the plan of the largest M").add("strategy", name_of(operation.chosen.strategy));
  });
  if (own) operation.own = executor->prepare_tasks(tasks_of_chosen);
}

std::shared_ptr<GpuOperation> WorldGpus::operation_of_any_m(World& world, const Problem& problem,
                                                            const PlanRequest& request, bool own_memory) {
  if (auto kept = find(problem, request, true)) return kept;
  auto made = std::make_shared<GpuOperation>(GpuOperation{problem, request, true});
  operations.push_back(made);  // its tables count from now on; where it cannot be made, it ends here
  prepare_any_m(world, *made);
  prepare_largest(world, *made, own_memory);
  return made;
}

LentOutput::LentOutput(WorldGpus& gpus, std::uint64_t place, std::size_t bytes) {
  if (place == 0) return;
  const std::shared_ptr<void> there(std::shared_ptr<void>(), gpus.executor->output_at(place));
  memory_ = std::make_unique<runtime::DeviceMemory>(bytes, there);
  before_.resize(bytes);
  memory_->download(before_.data());
}

LentOutput::~LentOutput() {
  if (memory_ == nullptr) return;
  try {
    memory_->upload(before_.data());
  } catch (const Error&) {  // the GPU has failed, and with it the world
  }
}

std::string why_no_gpus(World& world) {
  if (const auto& kept = runtime::attachment(world)) return std::static_pointer_cast<WorldGpus>(kept)->refusal;
  choose::GpuKind gpus;
  return agree(world, runtime::ranks_per_gpu_of(world), gpus);
}

std::shared_ptr<WorldGpus> gpus_of(World& world, const CudaOptions& options) {
  std::shared_ptr<void>& kept = runtime::attachment(world);
  if (kept == nullptr) {
    auto made = std::make_shared<WorldGpus>();
    made->refusal = agree(world, runtime::ranks_per_gpu_of(world, options.ranks_per_gpu), made->gpus);
    made->options = options;
    made->leads = world.rank() == 0;
    if (made->leads && made->refusal.empty()) say_unknown(made->gpus);
    if (made->refusal.empty()) {
      made->executor = cuda::make_world_executor(world, options);
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
