// The heap: what it gives, and where.
#include <cstdint>

#include "names.hpp"

namespace names {

void check_memory() {
  const char* name = "memory";
  NAMES_EXPECT(me() >= 0 && me() < size());
  int major = 0, minor = -1;
  shmem_info_get_version(&major, &minor);
  NAMES_EXPECT(major == SHMEM_MAJOR_VERSION && minor == SHMEM_MINOR_VERSION);
  char vendor[SHMEM_MAX_NAME_LEN];
  shmem_info_get_name(vendor);
  NAMES_EXPECT(std::strlen(vendor) > 0);
  NAMES_EXPECT(shmem_pe_accessible(next()) == 1 && shmem_pe_accessible(size()) == 0 && shmem_pe_accessible(-1) == 0);

  name = "shmem_malloc and shmem_free";
  auto* first = static_cast<int*>(shmem_malloc(100 * sizeof(int)));
  auto* second = static_cast<char*>(shmem_malloc(1));
  NAMES_EXPECT(first != nullptr && second != nullptr);
  NAMES_EXPECT(second >= reinterpret_cast<char*>(first + 100) || second < reinterpret_cast<char*>(first));
  NAMES_EXPECT(reinterpret_cast<std::uintptr_t>(first) % 8 == 0);
  NAMES_EXPECT(shmem_addr_accessible(first, next()) == 1 && shmem_addr_accessible(&major, next()) == 0);
  for (int i = 0; i < 100; ++i) first[i] = me() * 1000 + i;
  shmem_barrier_all();

  name = "shmem_ptr";
  NAMES_EXPECT(shmem_ptr(first, me()) == first);
#if IMBREX_TEST_SHMEM_15  // Open MPI 4.1 aborts
  NAMES_EXPECT(shmem_ptr(&major, me()) == nullptr);
#endif
  if (const auto* there = static_cast<const int*>(shmem_ptr(first + 3, next())))
    NAMES_EXPECT(*there == next() * 1000 + 3);
  shmem_barrier_all();

  name = "shmem_realloc";
  first = static_cast<int*>(shmem_realloc(first, 5000 * sizeof(int)));
  NAMES_EXPECT(first != nullptr);
  for (int i = 0; i < 100; ++i) NAMES_EXPECT(first[i] == me() * 1000 + i);
  first[4999] = me();
  shmem_barrier_all();
  NAMES_EXPECT(shmem_int_g(first + 4999, next()) == next());
  NAMES_EXPECT(shmem_int_g(first + 99, next()) == next() * 1000 + 99);
  shmem_barrier_all();
  first = static_cast<int*>(shmem_realloc(first, 10 * sizeof(int)));
  NAMES_EXPECT(first != nullptr && first[9] == me() * 1000 + 9);
  auto* third = static_cast<int*>(shmem_realloc(nullptr, 64));
  NAMES_EXPECT(third != nullptr);
  shmem_free(third);
  shmem_free(second);
  shmem_free(first);
  shmem_free(nullptr);

  name = "shmem_calloc";
  for (int turn = 0; turn < 3; ++turn) {
    auto* zeros = static_cast<unsigned char*>(shmem_calloc(33, 7));
    NAMES_EXPECT(zeros != nullptr);
    for (int i = 0; i < 33 * 7; ++i) NAMES_EXPECT(zeros[i] == 0);
    shmem_barrier_all();
    std::memset(zeros, 0xff, 33 * 7);
    shmem_free(zeros);
  }

  name = "shmem_align";
  for (std::size_t alignment = 8; alignment <= 4096; alignment *= 2) {
    void* aligned = shmem_align(alignment, 24);
    NAMES_EXPECT(aligned != nullptr && reinterpret_cast<std::uintptr_t>(aligned) % alignment == 0);
    // It is the same place on all PEs.
    shmem_int_p(static_cast<int*>(aligned), me(), next());
    shmem_barrier_all();
    NAMES_EXPECT(*static_cast<int*>(aligned) == before());
    shmem_free(aligned);
    ++cases;
  }
#if IMBREX_TEST_SHMEM_15
  name = "no bytes, and too many";
  NAMES_EXPECT(shmem_malloc(0) == nullptr);  // Open MPI 4.1 gives some
  NAMES_EXPECT(shmem_malloc(std::size_t{1} << 45) == nullptr && shmem_calloc(SIZE_MAX, 2) == nullptr);
  void* hinted = shmem_malloc_with_hints(64, SHMEM_MALLOC_ATOMICS_REMOTE | SHMEM_MALLOC_SIGNAL_REMOTE);
  NAMES_EXPECT(hinted != nullptr && shmem_realloc(hinted, std::size_t{1} << 45) == nullptr);
  NAMES_EXPECT(shmem_realloc(hinted, 0) == nullptr);
  int initialized = 0, provided = -1;
  shmem_query_initialized(&initialized);
  NAMES_EXPECT(initialized == 1);
  NAMES_EXPECT(shmem_init_thread(SHMEM_THREAD_SINGLE, &provided) == 0 && provided == SHMEM_THREAD_SINGLE);
  shmem_finalize();  // the second beginning's
  shmem_query_thread(&provided);
  NAMES_EXPECT(provided == SHMEM_THREAD_SINGLE);
#endif
  cases += 8;
}

}  // namespace names
