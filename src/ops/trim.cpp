#include "ops/trim.hpp"

#include <functional>

#include "base/check.hpp"
#include "collectives/backend.hpp"
#include "imbrex/ops.hpp"
#include "ops/world_gpus.hpp"
#include "runtime/agreement.hpp"
#include "runtime/attachment.hpp"
#include "runtime/calls.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/cuda/seats.hpp"

namespace imbrex {
namespace {

// Null before the world's first operator.
const ops::WorldGpus* gpus_there(World& world) {
  return static_cast<const ops::WorldGpus*>(runtime::attachment(world).get());
}

// Null where the world's operators have no GPUs.
cuda::WorldExecutor* executor_there(World& world) {
  const auto* gpus = gpus_there(world);
  return gpus != nullptr ? gpus->executor.get() : nullptr;
}

// What the world was made with, or its operators.
int sharing_one_gpu(World& world) {
  const auto* gpus = gpus_there(world);
  return runtime::ranks_per_gpu_of(world, gpus != nullptr ? gpus->options.ranks_per_gpu : 1);
}

// A peer may make its next call instead, and refuses that. This rank refuses its own, too: the ranks' calls stay in
// step.
void agree_in_step(World& world, const std::function<runtime::Terms()>& ask) {
  try {
    runtime::agree(world, ask);
  } catch (const Error& error) {
    runtime::Calls& calls = runtime::calls_of(world);
    if (error.code() == ErrorCode::invalid_input && calls.next_was_refused()) calls.refuse(error);
    throw;
  }
}

// What is there already stays as it is.
void restore_parts(World& world) {
  if (cuda::WorldExecutor* executor = executor_there(world)) executor->restore();
  collectives::restore_gpus(world);
}

}  // namespace

void ops::expect_restored(const runtime::Calls& calls, CudaStream stream, int gpu) {
  if (!calls.has_prelude()) [[likely]]
    return;
  IMBREX_EXPECTS(!runtime::is_captured(stream, gpu),
                 "the stream is being captured, and this world's GPU memory was trimmed: call restore before the "
                 "capture");
}

void trim(World& world) {
  cuda::WorldExecutor* const executor = executor_there(world);
  const bool collectives_there = collectives::are_on_gpus(world);
  agree_in_step(world, [&] {
    const int sharing = executor != nullptr || collectives_there ? sharing_one_gpu(world) : 1;
    IMBREX_EXPECTS(sharing == 1, "trim: {} ranks share each GPU; it takes a GPU for each rank", sharing);
    if (executor != nullptr) executor->await_calls();
    return runtime::Terms("a trim").add("operators on GPUs", executor != nullptr).add("collectives", collectives_there);
  });
  if (executor == nullptr && !collectives_there) return;
  // First: where only a part can be trimmed, that one comes back.
  runtime::calls_of(world).set_prelude([&world] { restore_parts(world); });
  if (executor != nullptr) executor->trim();
  collectives::trim_gpus(world);
}

void restore(World& world) {
  runtime::Calls& calls = runtime::calls_of(world);
  agree_in_step(world, [&] { return runtime::Terms("a restore").add("trimmed", calls.has_prelude()); });
  calls.run_prelude();
}

}  // namespace imbrex
