// Broadcasts, collects and all-to-alls: every type, on the world and on a team in the opposite order.
#include "names.hpp"

#if IMBREX_TEST_SHMEM_15
namespace names {
namespace {

/// U: what the functions take.
template <typename U>
struct Moves {
  const char* name;
  int (*broadcast)(shmem_team_t, U*, const U*, std::size_t, int);
  int (*collect)(shmem_team_t, U*, const U*, std::size_t);
  int (*fcollect)(shmem_team_t, U*, const U*, std::size_t);
  int (*alltoall)(shmem_team_t, U*, const U*, std::size_t);
  int (*alltoalls)(shmem_team_t, U*, const U*, std::ptrdiff_t, std::ptrdiff_t, std::size_t);
};

template <typename T, typename U>
void check_moves(const Moves<U>& f, shmem_team_t team) {
  const char* const name = f.name;
  constexpr std::size_t each = 6;
  const int own = shmem_team_my_pe(team), members = shmem_team_n_pes(team);
  const auto all = static_cast<std::size_t>(members);
  Shared<T> from(3 * each * all), to(3 * each * all + 1), same(each);
  const auto clear = [&] {
    for (std::size_t i = 0; i <= 3 * each * all; ++i) to[i] = T{};
    shmem_team_sync(team);
  };
  for (std::size_t i = 0; i < 3 * each * all; ++i) from[i] = value<T>(own, i);
  for (int root = 0; root < members; ++root) {
    clear();
    NAMES_EXPECT(f.broadcast(team, to.get(), from.get(), each, root) == 0);
    for (std::size_t i = 0; i < each; ++i) NAMES_EXPECT(to[i] == value<T>(root, i));
    NAMES_EXPECT(to[each] == T{});
    // In place.
    for (std::size_t i = 0; i < each; ++i) same[i] = value<T>(own + 1, i);
    shmem_team_sync(team);
    NAMES_EXPECT(f.broadcast(team, same.get(), same.get(), each, root) == 0);
    for (std::size_t i = 0; i < each; ++i) NAMES_EXPECT(same[i] == value<T>(root + 1, i));
  }
  clear();
  NAMES_EXPECT(f.fcollect(team, to.get(), from.get(), each) == 0);
  for (std::size_t i = 0; i < each * all; ++i) NAMES_EXPECT(to[i] == value<T>(static_cast<int>(i / each), i % each));
  NAMES_EXPECT(to[each * all] == T{});
  // Member m gives m elements.
  clear();
  NAMES_EXPECT(f.collect(team, to.get(), from.get(), static_cast<std::size_t>(own)) == 0);
  std::size_t place = 0;
  for (int member = 0; member < members; ++member)
    for (std::size_t i = 0; i < static_cast<std::size_t>(member); ++i) NAMES_EXPECT(to[place++] == value<T>(member, i));
  NAMES_EXPECT(to[place] == T{});
  clear();
  NAMES_EXPECT(f.alltoall(team, to.get(), from.get(), each) == 0);
  for (std::size_t i = 0; i < each * all; ++i)
    NAMES_EXPECT(to[i] == value<T>(static_cast<int>(i / each), static_cast<std::size_t>(own) * each + i % each));
  NAMES_EXPECT(to[each * all] == T{});
  clear();
  NAMES_EXPECT(f.alltoalls(team, to.get(), from.get(), 2, 3, each) == 0);
  for (std::size_t i = 0; i < each * all; ++i) {
    NAMES_EXPECT(to[2 * i] ==
                 value<T>(static_cast<int>(i / each), 3 * (static_cast<std::size_t>(own) * each + i % each)));
    NAMES_EXPECT(to[2 * i + 1] == T{});
  }
  NAMES_EXPECT(f.alltoall(team, nullptr, nullptr, 0) == 0 && f.fcollect(team, nullptr, nullptr, 0) == 0);
  cases += 5;
}

#define CASES(T, U, BROADCAST, COLLECT, FCOLLECT, ALLTOALL, ALLTOALLS) \
  for (const shmem_team_t team : {SHMEM_TEAM_WORLD, back})             \
    check_moves<T, U>({#BROADCAST " and the like", BROADCAST, COLLECT, FCOLLECT, ALLTOALL, ALLTOALLS}, team);
#define TYPE_CASES(TYPE, NAME)                                                                 \
  CASES(TYPE, TYPE, shmem_##NAME##_broadcast, shmem_##NAME##_collect, shmem_##NAME##_fcollect, \
        shmem_##NAME##_alltoall, shmem_##NAME##_alltoalls)

}  // namespace

void check_collectives() {
  shmem_team_t back = SHMEM_TEAM_INVALID;
  if (shmem_team_split_strided(SHMEM_TEAM_WORLD, size() - 1, -1, size(), nullptr, 0, &back) != 0) std::abort();
  NAMES_OF_TYPES(TYPE_CASES)
  CASES(std::uint8_t, void, shmem_broadcastmem, shmem_collectmem, shmem_fcollectmem, shmem_alltoallmem,
        shmem_alltoallsmem)
  shmem_team_destroy(back);
}

}  // namespace names
#endif
