#include "execute/cuda/libraries/shared_libraries.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

#include "execute/layout.hpp"
#include "runtime/bootstrap/nccl_hosts.hpp"
#include "runtime/cuda/device.hpp"

namespace imbrex::cuda {

SharedLibraries::SharedLibraries(World& world, StreamCalls& calls, int device, int ranks_per_gpu)
    : world_(world), calls_(calls), device_(device), ranks_per_gpu_(ranks_per_gpu) {
  cublasLtHandle_t made = nullptr;
  IMBREX_CUBLASLT_TRY(create, &made);
  handle_.reset(made);
}

SharedLibraries::~SharedLibraries() {
  // One communicator after another would take its time to find out.
  try {
    world_.throw_if_failed();
    if (std::uncaught_exceptions() > 0) abort();
  } catch (const std::exception&) {
    abort();
  }
}

// One after another, in one order on all ranks, so that none waits for a rank that waits for it.
void SharedLibraries::make_communicators(const std::set<std::vector<int>>& rank_sets, int most_sms) {
  if (!rank_sets.empty()) {
    why_no_captures_ = runtime::expect_nccl_environment(world_);
    if (ranks_per_gpu_ > 1) runtime::expect_own_nccl_hosts(world_, runtime::gpu_of(device_).uuid);
  }
  for (const std::vector<int>& ranks : rank_sets) {
    if (!made_.insert({most_sms, ranks}).second) continue;
    auto made = std::make_unique<runtime::Communicator>(world_, device_, ranks, most_sms);
    if (std::binary_search(ranks.begin(), ranks.end(), world_.rank()))
      communicators_[{most_sms, ranks}] = std::move(made);
  }
}

std::string SharedLibraries::lacks(const Plan& plan) const {
  for (const auto& [number, parts] : execute::collective_groups(plan)) {
    const std::vector<int> ranks = ranks_of(*parts.front(), plan);
    if (parts.front()->backend != Backend::nccl) {
      if (collectives_ == nullptr) return "Imbrex' own collectives, which no plan needed when they could be made";
    } else if (!made_.contains({0, ranks})) {
      return fmt::format("a communicator of ranks {}, which no plan needed when one could be made",
                         fmt::join(ranks, ", "));
    }
  }
  return {};
}

CudaCollectives& SharedLibraries::collectives() {
  if (!collectives_) collectives_ = collectives_of(world_, ranks_per_gpu_);
  return *collectives_;
}

void SharedLibraries::check() const {
  for (const auto& [key, communicator] : communicators_) communicator->check();
  if (collectives_) collectives_->look();
}

void SharedLibraries::abort() noexcept {
  // First: NCCL's abort waits for the device, where a kernel of theirs may wait for the rank that is lost.
  if (collectives_) collectives_->abort();
  std::vector<runtime::Communicator*> all;
  for (const auto& [key, communicator] : communicators_) all.push_back(communicator.get());
  runtime::Communicator::abort(all);
}

}  // namespace imbrex::cuda
