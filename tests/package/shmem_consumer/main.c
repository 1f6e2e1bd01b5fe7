/* PEs in a ring, by OpenSHMEM's names and by the generic ones of C11, which choose a function by type. */
#include <imbrex/shmem.h>
#include <stdio.h>
#include <stdlib.h>

static int me, size, next, before;

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "PE %d, line %d: %s does not hold\n", me, line, what);
  shmem_global_exit(1);
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

/* Puts to the next, by type: on the default context, on another, and with a signal. */
#define RING(TYPE)                                                        \
  do {                                                                    \
    TYPE* box = shmem_calloc(4, sizeof(TYPE));                            \
    const TYPE from[2] = {(TYPE)(me + 1), (TYPE)(me + 2)};                \
    shmem_put(box, from, 2, next);                                        \
    shmem_put_nbi(ctx, box + 2, from, 1, next);                           \
    shmem_p(ctx, box + 3, (TYPE)9, next);                                 \
    shmem_quiet();                                                        \
    shmem_ctx_quiet(ctx);                                                 \
    shmem_barrier_all();                                                  \
    EXPECT(box[0] == (TYPE)(before + 1) && box[1] == (TYPE)(before + 2)); \
    EXPECT(box[2] == (TYPE)(before + 1) && box[3] == (TYPE)9);            \
    EXPECT(shmem_g(box, next) == (TYPE)(me + 1));                         \
    TYPE got[2];                                                          \
    shmem_get(got, (const TYPE*)box, 2, next);                            \
    EXPECT(got[1] == (TYPE)(me + 2));                                     \
    shmem_iget(ctx, got, box, 1, 3, 2, next);                             \
    EXPECT(got[1] == (TYPE)9);                                            \
    shmem_put_signal(box, from, 1, signal, 1, SHMEM_SIGNAL_ADD, next);    \
    shmem_signal_wait_until(signal, SHMEM_CMP_GE, ++signals);             \
    EXPECT(box[0] == (TYPE)(before + 1));                                 \
    shmem_barrier_all(); /* all are done with what they had */            \
    EXPECT(shmem_broadcast(SHMEM_TEAM_WORLD, box + 2, box, 1, 0) == 0);   \
    EXPECT(box[2] == (TYPE)(size - 1 + 1));                               \
    EXPECT(shmem_max_reduce(SHMEM_TEAM_WORLD, box + 3, box, 1) == 0);     \
    EXPECT(box[3] == (TYPE)size);                                         \
    shmem_free(box);                                                      \
  } while (0)

#define COUNT(TYPE)                                                                       \
  do {                                                                                    \
    TYPE* counter = shmem_calloc(2, sizeof(TYPE));                                        \
    shmem_atomic_inc(counter, 0);                                                         \
    shmem_atomic_add(ctx, counter, (TYPE)2, 0);                                           \
    EXPECT(shmem_atomic_fetch_add(counter + 1, (TYPE)3, me) == (TYPE)0);                  \
    EXPECT(shmem_atomic_compare_swap(ctx, counter + 1, (TYPE)3, (TYPE)7, me) == (TYPE)3); \
    EXPECT(shmem_atomic_swap(counter + 1, (TYPE)8, me) == (TYPE)7);                       \
    if (me == 0) shmem_wait_until(counter, SHMEM_CMP_EQ, (TYPE)(3 * size));               \
    EXPECT(shmem_test(counter + 1, SHMEM_CMP_EQ, (TYPE)8) == 1);                          \
    EXPECT(shmem_test_any(counter + 1, 1, NULL, SHMEM_CMP_EQ, (TYPE)8) == 0);             \
    EXPECT(shmem_sum_reduce(SHMEM_TEAM_WORLD, counter, counter + 1, 1) == 0);             \
    EXPECT(counter[0] == (TYPE)(8 * size));                                               \
    shmem_free(counter);                                                                  \
  } while (0)

int main(void) {
  shmem_init();
  me = shmem_my_pe();
  size = shmem_n_pes();
  next = (me + 1) % size;
  before = (me + size - 1) % size;
  uint64_t signals = 0, *signal = shmem_calloc(1, sizeof *signal);
  shmem_ctx_t ctx;
  EXPECT(shmem_ctx_create(SHMEM_CTX_PRIVATE, &ctx) == 0);
  RING(float);
  RING(double);
  RING(long double);
  RING(char);
  RING(signed char);
  RING(unsigned char);
  RING(short);
  RING(unsigned short);
  RING(int);
  RING(unsigned int);
  RING(long);
  RING(unsigned long);
  RING(long long);
  RING(unsigned long long);
  COUNT(int);
  COUNT(long);
  COUNT(long long);
  COUNT(unsigned int);
  COUNT(unsigned long);
  COUNT(unsigned long long);
  unsigned int* bits = shmem_calloc(1, sizeof *bits);
  EXPECT(shmem_atomic_fetch_or(bits, 6u, me) == 0 && shmem_atomic_fetch_xor(ctx, bits, 2u, me) == 6);
  shmem_atomic_and(bits, 4u, me);
  EXPECT(shmem_and_reduce(SHMEM_TEAM_WORLD, bits, bits, 1) == 0 && *bits == 4);
  double _Complex* sums = shmem_calloc(1, sizeof *sums);
  *sums = 2;
  EXPECT(shmem_prod_reduce(SHMEM_TEAM_WORLD, sums, sums, 1) == 0 && *sums == (double)(1 << size));
  EXPECT(shmem_sync(SHMEM_TEAM_WORLD) == 0);
  shmem_ctx_destroy(ctx);
  shmem_barrier_all();
  if (me == 0) printf("%d PEs are right\n", size);
  shmem_finalize();
  return 0;
}
