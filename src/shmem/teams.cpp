#include <cstddef>

#include "base/check.hpp"
#include "runtime/failure.hpp"
#include "runtime/host_world.hpp"
#include "shmem/parts.hpp"

namespace imbrex::shmem {
namespace {

std::uint32_t number_of(const TeamStates& states, const Team& team) {
  return static_cast<std::uint32_t>(team.state - states.state);
}

// Carries hosts' own calls, which are words alone: to PEs of other hosts by the world.
class OverHosts : public LoadStore {
 public:
  World* world = nullptr;

  static bool reaches(const Handle&, std::uint32_t) { return true; }
  void signal(const Handle& handle, Signal* to, Signal value, SignalOperation operation, std::uint32_t pe) {
    if (LoadStore::reaches(handle, pe)) return LoadStore::signal(handle, to, value, operation, pe);
    const HeapHandle heap = world->heap().handle();
    runtime::put_word(*world, static_cast<int>(pe),
                      static_cast<std::size_t>(reinterpret_cast<std::byte*>(to) - heap.at(heap.rank, 0)), value);
  }
};

Context<OverHosts> context_of(Heap& heap) {
  Context<OverHosts> context(heap.host_handle());
  context.transport().world = &heap.world();
  return context;
}

}  // namespace

Team Heap::world_team() const {
  return {0, 1, static_cast<std::uint32_t>(pes()), static_cast<std::uint32_t>(pe()), parts_->memory().teams()->state};
}

Team Heap::on_host(const Team& team) const {
  Team host = team;
  host.state = parts_->control->teams()->state + number_of(*parts_->memory().teams(), team);
  return host;
}

std::optional<Team> Heap::split_strided(const Team& parent, int start, int stride, int size) {
  const auto members = static_cast<int>(parent.size);
  IMBREX_EXPECTS(size >= 1 && start >= 0 && start < members,
                 "a team of {} members from {} on: its parent has members 0 to {}", size, start, members - 1);
  const std::int64_t last = start + std::int64_t{stride} * (size - 1);
  IMBREX_EXPECTS((stride != 0 || size == 1) && last >= 0 && last < members,
                 "a team of {} members from {} on by {}: its parent has members 0 to {}", size, start, stride,
                 members - 1);
  // A number that is free on all members of the parent. What a PE thinks of one that it has no part in is of no use.
  Team host = on_host(parent);
  Context context = context_of(*this);
  TeamStates& states = *parts_->control->teams();
  for (std::uint32_t m = 0; m < parent.size; ++m)
    context.signal_set(&states.wish[pe()], ~parts_->teams.to_ullong(), parent.pe(m));
  if (!shmem::barrier(context, host)) parts_->throw_failure();
  std::uint64_t free = ~std::uint64_t{0};
  for (std::uint32_t m = 0; m < parent.size; ++m) free &= words::load(&states.wish[parent.pe(m)]);
  if (!shmem::barrier(context, host)) parts_->throw_failure();
  if (free == 0)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("{} teams exist already: there can be no more", TeamStates::teams));
  const auto number = static_cast<std::uint32_t>(__builtin_ctzll(free));

  Team team{parent.pe(static_cast<std::uint32_t>(start)), static_cast<std::uint32_t>(stride) * parent.stride,
            static_cast<std::uint32_t>(size), 0, parts_->memory().teams()->state + number};
  bool member = false;
  for (std::uint32_t m = 0; m < team.size; ++m)
    if (team.pe(m) == static_cast<std::uint32_t>(pe())) team.me = m, member = true;
  if (member) {
    parts_->teams.set(number);
    parts_->memory().zero(reinterpret_cast<std::byte*>(team.state), sizeof(TeamState));
    parts_->control->zero(reinterpret_cast<std::byte*>(&states.state[number]), sizeof(TeamState));
  }
  if (!shmem::barrier(context, host)) parts_->throw_failure();  // no member is told whose state is not cleared yet
  if (!member) return std::nullopt;
  return team;
}

void Heap::release(const Team& team) {
  const std::uint32_t number = number_of(*parts_->memory().teams(), team);
  IMBREX_EXPECTS(number < TeamStates::teams && number != 0 && parts_->teams.test(number),
                 "release of team {}: it is the world's, or none", number);
  barrier(team);
  parts_->teams.reset(number);
}

void Heap::barrier(const Team& team) {
  if (team.size == static_cast<std::uint32_t>(pes()) && team.state == parts_->memory().teams()->state) {
    words::full_fence();
    return parts_->world.barrier();
  }
  Context context = context_of(*this);
  if (!shmem::barrier(context, on_host(team))) parts_->throw_failure();
}

}  // namespace imbrex::shmem
