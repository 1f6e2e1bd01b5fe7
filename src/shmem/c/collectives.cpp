// Barriers and collectives of hosts: puts between barriers of the team, so that they are the same in memory and on
// GPUs. Members' own puts need a barrier after them only; what reads others' sources needs one before it.
#include "shmem/c/process.hpp"

namespace imbrex::shmem::c {
namespace {

const std::byte* at(const void* address, std::size_t bytes) { return static_cast<const std::byte*>(address) + bytes; }
std::byte* at(void* address, std::size_t bytes) { return static_cast<std::byte*>(address) + bytes; }

int sync(const char* name, shmem_team_t team) {
  return call(name, [&](Process& p) {
    p.heap().barrier(p.team(team));
    return 0;
  });
}

/// To all members, this one last: members that do most for others go first.
template <typename Put>
void to_each(const Team& team, Put&& put) {
  for (std::uint32_t i = 1; i <= team.size; ++i) put((team.me + i) % team.size);
}

int broadcast(const char* name, shmem_team_t handle, void* dest, const void* source, std::size_t count,
              std::size_t size, int root) {
  return call(name, [&](Process& p) {
    const Team team = p.team(handle);
    const std::uint32_t root_pe = p.pe(team, root);
    p.expect_held("dest", dest, count, size);
    p.expect_held("source", source, count, size);
    if (team.pe(team.me) == root_pe)
      to_each(team, [&](std::uint32_t member) {
        if (member != team.me || dest != source) p.write(dest, source, count * size, team.pe(member));
      });
    p.heap().barrier(team);
    return 0;
  });
}

int all_gather(const char* name, shmem_team_t handle, void* dest, const void* source, std::size_t count,
               std::size_t size) {
  return call(name, [&](Process& p) {
    const Team team = p.team(handle);
    p.expect_held("source", source, count, size);
    p.expect_span_held("dest", dest, product_of(count, team.size), size);
    const std::size_t bytes = count * size;
    to_each(team, [&](std::uint32_t member) { p.write(at(dest, team.me * bytes), source, bytes, team.pe(member)); });
    p.heap().barrier(team);
    return 0;
  });
}

/// An all-gather with another count on each member.
int all_gather_unequal(const char* name, shmem_team_t handle, void* dest, const void* source, std::size_t count,
                       std::size_t size) {
  return call(name, [&](Process& p) {
    const Team team = p.team(handle);
    p.expect_held("source", source, count, size);
    p.notes(p.heap().pe()).count = count * size;
    p.heap().barrier(team);
    std::size_t before = 0, all = 0;
    for (std::uint32_t member = 0; member < team.size; ++member) {
      const std::size_t bytes = p.notes(static_cast<int>(team.pe(member))).count;
      if (member < team.me) before += bytes;
      all += bytes;
    }
    // Rounded up: members may disagree on the elements' size.
    p.expect_span_held("dest", dest, all / size + (all % size != 0 ? 1 : 0), size);
    to_each(team, [&](std::uint32_t member) { p.write(at(dest, before), source, count * size, team.pe(member)); });
    p.heap().barrier(team);
    return 0;
  });
}

/// Element e of the block for member m lies (m * count + e) * stride elements behind the first.
int all_to_all(const char* name, shmem_team_t handle, void* dest, const void* source, std::ptrdiff_t dst,
               std::ptrdiff_t sst, std::size_t count, std::size_t size) {
  return call(name, [&](Process& p) {
    const Team team = p.team(handle);
    IMBREX_EXPECTS(dst >= 1 && sst >= 1, "dst = {}, sst = {}: strides must be 1 or more", dst, sst);
    const auto to_stride = static_cast<std::size_t>(dst), from_stride = static_cast<std::size_t>(sst);
    const std::size_t all = product_of(count, team.size);
    p.expect_span_held("dest", dest, span_of(all, 1, to_stride), size);
    p.expect_span_held("source", source, span_of(all, 1, from_stride), size);
    const bool dense = dst == 1 && sst == 1;
    const std::size_t pieces = dense ? 1 : count, each = dense ? count : 1;
    to_each(team, [&](std::uint32_t member) {
      for (std::size_t i = 0; i < pieces; ++i)
        p.write(at(dest, (team.me * count + i) * to_stride * size),
                at(source, (member * count + i) * from_stride * size), each * size, team.pe(member));
    });
    p.heap().barrier(team);
    return 0;
  });
}

}  // namespace
}  // namespace imbrex::shmem::c

using namespace imbrex::shmem::c;

void shmem_barrier_all() { sync(__func__, SHMEM_TEAM_WORLD); }
void shmem_sync_all() { sync(__func__, SHMEM_TEAM_WORLD); }
int shmem_team_sync(shmem_team_t team) { return sync(__func__, team); }

#define MOVES(BROADCAST, COLLECT, FCOLLECT, ALLTOALL, ALLTOALLS, TYPE, SIZE)                                      \
  int BROADCAST(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nelems, int PE_root) {                  \
    return broadcast(__func__, team, dest, source, nelems, SIZE, PE_root);                                        \
  }                                                                                                               \
  int COLLECT(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nelems) {                                 \
    return all_gather_unequal(__func__, team, dest, source, nelems, SIZE);                                        \
  }                                                                                                               \
  int FCOLLECT(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nelems) {                                \
    return all_gather(__func__, team, dest, source, nelems, SIZE);                                                \
  }                                                                                                               \
  int ALLTOALL(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nelems) {                                \
    return all_to_all(__func__, team, dest, source, 1, 1, nelems, SIZE);                                          \
  }                                                                                                               \
  int ALLTOALLS(shmem_team_t team, TYPE* dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems) { \
    return all_to_all(__func__, team, dest, source, dst, sst, nelems, SIZE);                                      \
  }
#define TYPED_MOVES(TYPE, NAME, A)                                                                          \
  MOVES(shmem_##NAME##_broadcast, shmem_##NAME##_collect, shmem_##NAME##_fcollect, shmem_##NAME##_alltoall, \
        shmem_##NAME##_alltoalls, TYPE, sizeof(TYPE))
IMBREX_SHMEM_TYPES(TYPED_MOVES, )
MOVES(shmem_broadcastmem, shmem_collectmem, shmem_fcollectmem, shmem_alltoallmem, shmem_alltoallsmem, void, 1)
