// What hosts may call wherever the heap lies: in memory or, by IMBREX_SHMEM_DEVICE=cuda, on GPUs. Nothing here loads
// from the heap or stores to it but by the library. With an argument, PE 0 makes a call that hosts cannot make on GPUs.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "imbrex/shmem.h"
#include "imbrex/shmem.hpp"

namespace {

int me, size, next, before;

void expect(bool holds, const char* what, int line) {
  if (holds) return;
  std::fprintf(stderr, "PE %d, line %d: %s does not hold\n", me, line, what);
  std::_Exit(1);
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

constexpr std::size_t length = 3000;

std::vector<int> of(int pe, std::size_t count = length) {
  std::vector<int> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = pe * 10000 + static_cast<int>(i);
  return values;
}

/// This PE's own, copied.
std::vector<int> read(const int* own, std::size_t count) {
  std::vector<int> values(count);
  shmem_int_get(values.data(), own, count, me);
  return values;
}

void copies() {
  auto* box = static_cast<int*>(shmem_calloc(2 * length, sizeof(int)));
  EXPECT(box != nullptr && read(box, 2 * length) == std::vector<int>(2 * length));
  EXPECT(shmem_ptr(box, next) != nullptr && shmem_addr_accessible(box, next) == 1);
  shmem_barrier_all();
  shmem_int_put(box, of(me).data(), length, next);
  shmem_barrier_all();
  EXPECT(read(box, length) == of(before));
  // From the heap to the heap.
  shmem_putmem(box + length, box, length * sizeof(int), next);
  shmem_barrier_all();
  EXPECT(read(box + length, length) == of((before + size - 1) % size));
  shmem_get32(box + length, box, length, next);
  EXPECT(read(box + length, length) == of(me));
  shmem_barrier_all();
  shmem_int_p(box, me + 7, next);
  shmem_int_iput(box + 1, of(me).data(), 3, 2, 100, next);
  shmem_quiet();
  shmem_barrier_all();
  EXPECT(shmem_int_g(box, next) == me + 7);
  int every[100];
  shmem_int_iget(every, box + 1, 1, 3, 100, next);
  for (int i = 0; i < 100; ++i) EXPECT(every[i] == me * 10000 + 2 * i);
  shmem_barrier_all();
  box = static_cast<int*>(shmem_realloc(box, 4 * length * sizeof(int)));
  EXPECT(box != nullptr && shmem_int_g(box, next) == me + 7);
  shmem_free(box);
}

void collectives() {
  const auto members = static_cast<std::size_t>(size);
  auto* from = static_cast<int*>(shmem_malloc(length * members * sizeof(int)));
  auto* to = static_cast<int*>(shmem_malloc(length * members * sizeof(int)));
  const std::vector<int> own = of(me, length * members);
  shmem_int_put(from, own.data(), own.size(), me);
  shmem_team_t back = SHMEM_TEAM_INVALID;
  EXPECT(shmem_team_split_strided(SHMEM_TEAM_WORLD, size - 1, -1, size, nullptr, 0, &back) == 0);
  EXPECT(shmem_int_broadcast(back, to, from, length, 0) == 0 && read(to, length) == of(size - 1));
  shmem_team_sync(back);
  EXPECT(shmem_int_fcollect(SHMEM_TEAM_WORLD, to, from, length) == 0);
  std::vector<int> seen = read(to, length * members);
  for (std::size_t i = 0; i < seen.size(); ++i)
    EXPECT(seen[i] == static_cast<int>(i / length) * 10000 + static_cast<int>(i % length));
  shmem_team_sync(back);
  EXPECT(shmem_int_alltoall(back, to, from, length) == 0);
  seen = read(to, length * members);
  for (std::size_t i = 0; i < seen.size(); ++i)
    EXPECT(seen[i] == (size - 1 - static_cast<int>(i / length)) * 10000 + (size - 1 - me) * static_cast<int>(length) +
                          static_cast<int>(i % length));
  shmem_team_sync(back);
  EXPECT(shmem_int_sum_reduce(back, from, from, length) == 0);
  seen = read(from, length);
  for (std::size_t i = 0; i < length; ++i)
    EXPECT(seen[i] == size * (size - 1) / 2 * 10000 + size * static_cast<int>(i));
  shmem_int_p(from, me + 1, me);
  EXPECT(shmem_int_sum_inscan(SHMEM_TEAM_WORLD, to, from, 1) == 0 && shmem_int_g(to, me) == (me + 1) * (me + 2) / 2);
  shmem_team_destroy(back);
  shmem_free(to);
  shmem_free(from);
}

/// A kernel on the same heap, of as many blocks as there are words; on the CPU, as this source is compiled for it.
IMBREX_KERNEL ring(imbrex::shmem::Handle handle, std::uint64_t* words, std::uint64_t* signals) {
  imbrex::shmem::Context context(handle);
  const std::uint32_t block = imbrex::shmem::block_index(), to = (context.pe() + 1) % context.pes();
  const std::uint64_t word = context.pe() * 100 + block;
  context.put_signal(words + block, &word, 1, signals + block, 1, imbrex::shmem::SignalOperation::set, to);
  context.signal_wait_until(signals + block, imbrex::shmem::Compare::equal, 1);
}

void kernels() {
  imbrex::shmem::Heap& heap = imbrex::shmem::heap();
  EXPECT(heap.pe() == me && heap.pes() == size);
  if (heap.device() != imbrex::Device::cpu) return;
  constexpr std::uint32_t blocks = 3;
  auto* words = static_cast<std::uint64_t*>(shmem_calloc(blocks, sizeof(std::uint64_t)));
  auto* signals = static_cast<std::uint64_t*>(shmem_calloc(blocks, sizeof(std::uint64_t)));
  launch(heap, {.blocks = blocks}, ring, heap.handle(), words, signals);
  for (std::uint32_t block = 0; block < blocks; ++block)
    EXPECT(words[block] == static_cast<std::uint64_t>(before) * 100 + block);
  shmem_free(signals);
  shmem_free(words);
}

}  // namespace

int main(int argc, char**) {
  shmem_init();
  me = shmem_my_pe(), size = shmem_n_pes(), next = (me + 1) % size, before = (me + size - 1) % size;
  copies();
  collectives();
  kernels();
  auto* word = static_cast<int*>(shmem_calloc(1, sizeof(int)));
  if (argc > 1 && me == 0) shmem_int_atomic_inc(word, next);
  shmem_barrier_all();
  if (me == 0) std::printf("%d PEs are right\n", size);
  shmem_finalize();
  return 0;
}
