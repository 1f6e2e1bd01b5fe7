// How the host looks after epochs with library steps: nothing of Imbrex' own waits in a collective of a library.
#include "base/clock.hpp"
#include "base/narrow.hpp"
#include "execute/circumstances.hpp"
#include "execute/cuda/lanes/lane_execution.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::cuda {

std::string LaneExecution::name_of_step(std::size_t step) const {
  const LibraryStep& s = lanes_.program.steps[step];
  return task_name(plan(), world_.rank(), s.queue, s.task);
}

std::string LaneExecution::late(const std::string& what, double limit) {
  return fmt::format("{} waited longer than {} s for the other ranks", what, limit);
}

std::string LaneExecution::late_in(const std::string& what, double limit, std::uint64_t epoch) const {
  return fmt::format("{} in epoch {}{}", late(what, limit), epoch,
                     execute::circumstances(world_, plan().problem, "this rank's last call"));
}

// Names the first collective that is not known to have ended.
std::string LaneExecution::late_epoch(double limit) const {
  std::string where = fmt::format("rank {}", world_.rank());
  for (std::size_t i = 0; i < lanes_.program.steps.size(); ++i) {
    if (!std::holds_alternative<Collective>(lanes_.program.steps[i].work)) continue;
    if (ended_[i] != nullptr && cudaEventQuery(ended_[i]) == cudaSuccess) continue;
    where = name_of_step(i);
    break;
  }
  cudaGetLastError();
  return late_in(where, limit, options_.testing.first_epoch + queue_->finished);
}

void LaneExecution::look() noexcept {
  if (dead_) return;
  try {
    world_.throw_if_failed();
    libraries_->check();
    if (kernel_ == nullptr) {
      look_at_epochs();
      return look_at_replays();
    }
    kernel_->look();
    world_.throw_if_failed();
    if (record_ != nullptr) look_at_record();
  } catch (const std::exception& error) {
    end(error.what());
  }
}

// Ranks count the epochs of libraries that have begun on their GPUs, as far as their hosts have seen: all in one order.
template <typename Tell, typename Message>
void LaneExecution::judge(runtime::BoundedWait& wait, Tell&& tell, Message&& message) {
  std::vector<int> late;
  const auto look = [&] { return !(late = runtime::late_ranks(world_, runtime::Counted::libraries)).empty(); };
  using enum runtime::BoundedWait::Verdict;
  switch (wait.judge(base::monotonic_seconds(), look)) {
    case going_on: return;
    case tell_of_late: return tell(late);
    case late_rank: return end(message(world_.options().entry_limit));
    case lost: return end(message(world_.options().wait_limit));
  }
}

runtime::BoundedWait LaneExecution::new_wait() const {
  return {runtime::limits_of(world_.options()), base::monotonic_seconds()};
}

void LaneExecution::finish_epoch() {
  if (kernel_ == nullptr && !queue_->oldest_wait) runtime::enter(world_, runtime::Counted::libraries);
  queue_->finish_oldest();
}

// An epoch's time counts from its beginning, which may be long after it was queued.
void LaneExecution::look_at_epochs() {
  while (queue_ != nullptr && queue_->finished < queue_->queued) {
    const EpochQueue<LaneExecution>::Place& oldest = queue_->oldest();
    const cudaError_t status = cudaEventQuery(oldest.done);
    if (status == cudaErrorNotReady) {
      std::optional<runtime::BoundedWait>& wait = queue_->oldest_wait;
      if (!wait && cudaEventQuery(oldest.begun) == cudaSuccess) {
        wait = new_wait();
        runtime::enter(world_, runtime::Counted::libraries);
      }
      if (wait)
        judge(
            *wait,
            [&](const std::vector<int>& late) {
              tell_late(late, options_.testing.first_epoch + queue_->finished, oldest.whose->plan().problem);
            },
            [&](double limit) { return oldest.whose->late_epoch(limit); });
      cudaGetLastError();
      return;
    }
    IMBREX_CUDA_TRY(status);
    finish_epoch();
  }
}

void LaneExecution::look_at_replays() {
  if (dead_ || replays_ == nullptr) return;
  const ReplayMarks::Seen seen = replays_->look();
  if (seen.begun > 0) runtime::enter(world_, runtime::Counted::libraries, base::wrapped<std::uint32_t>(seen.begun));
  if (!seen.under_way) return replay_wait_.reset();
  if (seen.begun > 0 || !replay_wait_) replay_wait_ = new_wait();
  judge(
      *replay_wait_,
      [&](const std::vector<int>& late) {
        runtime::tell_late(world_, late, "a replay of " + execute::call_text(world_, plan().problem));
      },
      [&](double limit) {
        return late(fmt::format("a replay on rank {}", world_.rank()), limit) +
               execute::circumstances(world_, plan().problem, "this rank's last call");
      });
}

void LaneExecution::look_at_record() {
  const std::uint64_t word = record_->under_way;
  const auto step = static_cast<std::size_t>(word & 0xffffff);
  const std::uint64_t epoch = word >> 24;
  if (std::exchange(seen_, word) != word) {
    // Epochs that came and went between two looks count, too; their number has fewer bits here.
    const auto begun = base::wrapped<std::uint32_t>(epoch + 1 - options_.testing.first_epoch);
    runtime::enter(world_, runtime::Counted::libraries, begun - std::exchange(begun_, begun));
    record_wait_.reset();
  }
  if (step == 0) return;
  if (!record_wait_) record_wait_ = new_wait();
  judge(
      *record_wait_, [&](const std::vector<int>& late) { tell_late(late, epoch, plan().problem); },
      [&](double limit) { return late_in(name_of_step(step - 1), limit, epoch); });
}

void LaneExecution::tell_late(const std::vector<int>& late, std::uint64_t epoch, const Problem& problem) {
  runtime::tell_late(world_, late, execute::epoch_text(world_, problem, epoch, late.front()));
}

}  // namespace imbrex::cuda
