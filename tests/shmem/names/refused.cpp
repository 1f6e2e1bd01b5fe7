// One wrong call, which the argument names, by PE 1; the others wait in a barrier. refused_test.py says what comes out.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "imbrex/shmem.h"

namespace {

int* ints;
std::uint64_t* signals;
int here[64];
shmem_team_t pair;  // of PEs 0 and 1

const std::map<std::string, void (*)()> calls = {
    {"put_pe", [] { shmem_int_put(ints, here, 1, 9); }},
    {"get_negative_pe", [] { shmem_int_get(here, ints, 1, -1); }},
    {"put_outside", [] { shmem_int_put(here, here, 1, 0); }},
    {"put_null", [] { shmem_int_put(nullptr, here, 1, 0); }},
    {"put_from_null", [] { shmem_int_put(ints, nullptr, 1, 0); }},
    {"put_too_long", [] { shmem_putmem(ints, here, std::size_t{1} << 40, 0); }},
    {"put_negative", [] { shmem_int_put(ints, here, static_cast<std::size_t>(-3), 0); }},
    {"ctx_put_pe", [] { shmem_ctx_double_put(SHMEM_CTX_DEFAULT, nullptr, nullptr, 0, 3); }},
    {"p_pe", [] { shmem_long_p(nullptr, 1, 4); }},
    {"g_misaligned", [] { shmem_int_g(reinterpret_cast<int*>(reinterpret_cast<char*>(ints) + 1), 0); }},
    {"iput_stride", [] { shmem_int_iput(ints, here, 0, 1, 2, 0); }},
    {"iget_stride", [] { shmem_int_iget(here, ints, -1, 1, 2, 0); }},
    {"iput_outside", [] { shmem_int_iput(ints, here, std::ptrdiff_t{1} << 40, 1, 2, 0); }},
    {"ibput_overlap", [] { shmem_int_ibput(ints, here, 2, 3, 3, 2, 0); }},
    {"context", [] { shmem_ctx_int_put(SHMEM_CTX_INVALID, ints, here, 1, 0); }},
    {"stale_context",
     [] {
       shmem_ctx_t ctx;
       shmem_ctx_create(0, &ctx);
       shmem_ctx_destroy(ctx);
       shmem_ctx_quiet(ctx);
     }},
    {"default_context", [] { shmem_ctx_destroy(SHMEM_CTX_DEFAULT); }},
    {"context_options",
     [] {
       shmem_ctx_t ctx;
       shmem_ctx_create(64, &ctx);
     }},
    {"pe_quiet", [] { shmem_pe_quiet(ints, 1); }},
    {"atomic_pe", [] { shmem_int_atomic_inc(ints, 3); }},
    {"atomic_outside", [] { shmem_int_atomic_add(here, 1, 0); }},
    {"atomic_fetch_null", [] { shmem_int_atomic_fetch_nbi(nullptr, ints, 0); }},
    {"wait_outside", [] { shmem_int_wait_until(here, SHMEM_CMP_EQ, 0); }},
    {"wait_comparison", [] { shmem_int_wait_until(ints, 12, 0); }},
    {"wait_values", [] { shmem_int_wait_until_all_vector(ints, 1, nullptr, SHMEM_CMP_EQ, nullptr); }},
    {"test_indices", [] { shmem_int_test_some(ints, 1, nullptr, nullptr, SHMEM_CMP_EQ, 1); }},
    {"wait_too_long", [] { shmem_int_wait_until(ints, SHMEM_CMP_EQ, 1); }},
    {"signal_operation", [] { shmem_int_put_signal(ints, here, 1, signals, 1, 5, 0); }},
    {"signal_outside", [] { shmem_int_put_signal(ints, here, 1, nullptr, 1, SHMEM_SIGNAL_SET, 0); }},
    {"align_odd", [] { shmem_align(24, 64); }},
    {"align_small", [] { shmem_align(4, 64); }},
    {"malloc_sizes", [] { shmem_malloc(100); }},
    {"malloc_hints", [] { shmem_malloc_with_hints(8, 256); }},
    {"free_stranger", [] { shmem_free(ints + 1); }},
    {"realloc_stranger", [] { shmem_realloc(here, 8); }},
    {"ptr_pe", [] { shmem_ptr(ints, 7); }},
    {"team", [] { shmem_team_sync(SHMEM_TEAM_INVALID); }},
    {"destroy_world", [] { shmem_team_destroy(SHMEM_TEAM_WORLD); }},
    {"team_pe",
     [] {
       shmem_ctx_t ctx;
       shmem_team_create_ctx(pair, 0, &ctx);
       shmem_ctx_int_put(ctx, ints, here, 1, 2);
     }},
    {"team_range",
     [] {
       shmem_team_t team;
       shmem_team_split_strided(SHMEM_TEAM_WORLD, 1, 2, 5, nullptr, 0, &team);
     }},
    {"team_config",
     [] {
       const shmem_team_config_t config = {-1};
       shmem_team_t team;
       shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 1, &config, SHMEM_TEAM_NUM_CONTEXTS, &team);
     }},
    {"team_xrange",
     [] {
       shmem_team_t x, y;
       shmem_team_split_2d(SHMEM_TEAM_WORLD, 0, nullptr, 0, &x, nullptr, 0, &y);
     }},
    {"broadcast_root", [] { shmem_int_broadcast(SHMEM_TEAM_WORLD, ints, ints, 1, 3); }},
    {"fcollect_outside", [] { shmem_fcollectmem(SHMEM_TEAM_WORLD, ints, ints, std::size_t{1} << 62); }},
    {"reduce_outside", [] { shmem_int_sum_reduce(SHMEM_TEAM_WORLD, here, ints, 1); }},
    {"alltoalls_stride", [] { shmem_int_alltoalls(SHMEM_TEAM_WORLD, ints, ints, 1, 0, 1); }},
    {"thread_level", [] { shmem_init_thread(9, here); }},
    // Ends of other kinds.
    {"exit", [] { shmem_global_exit(42); }},
    {"exit_well", [] { shmem_global_exit(0); }},
    {"leave", [] { std::exit(0); }},
    {"kill", [] { std::raise(SIGKILL); }},
    {"stuck", [] { std::this_thread::sleep_for(std::chrono::hours(1)); }},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const bool computes = argc > 2;  // the others make no call that could learn of the end
  if (what == "before_init") shmem_barrier_all();
  shmem_init();
  if (what == "after_finalize" || what == "init_again") {
    shmem_finalize();
    if (what == "init_again") shmem_init();
    shmem_my_pe();
    return 0;
  }
  ints = static_cast<int*>(shmem_calloc(64, sizeof(int)));
  signals = static_cast<std::uint64_t*>(shmem_calloc(1, sizeof(std::uint64_t)));
  ints[0] = 5;
  if (what == "fill") {
    void* all = shmem_malloc(std::size_t{3} << 19);
    std::printf("%s\n", all != nullptr && shmem_malloc(std::size_t{1} << 20) == nullptr ? "full" : "wrong");
    shmem_finalize();
    return 0;
  }
  shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 2, nullptr, 0, &pair);
  const int me = shmem_my_pe();
  std::printf("PE %d is there\n", me);  // is flushed in any case
  shmem_barrier_all();
  if (me == 1) {
    calls.at(what)();
    std::printf("%s came back\n", what.c_str());
  } else if (what == "malloc_sizes") {
    shmem_malloc(200);
  } else if (what == "free_stranger") {
    shmem_free(ints);
  }
  if (computes)
    for (std::atomic<int> turns = 0;; ++turns) {
    }
  if (what == "wait_too_long") std::this_thread::sleep_for(std::chrono::seconds(2));  // this wait is to end later
  shmem_barrier_all();
  shmem_finalize();
  return 0;
}
