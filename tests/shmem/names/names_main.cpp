#include "names.hpp"

int main() {
  shmem_init();
  names::check_memory();
  names::check_copies();
  names::check_atomics();
  names::check_waits();
#if IMBREX_TEST_SHMEM_15
  names::check_signals();
  names::check_teams();
  names::check_collectives();
  names::check_reductions();
#endif
  shmem_barrier_all();
  if (names::me() == 0) std::printf("%d cases by %d PEs\n", names::cases, names::size());
  shmem_finalize();
  return 0;
}
