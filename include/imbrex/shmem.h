/* OpenSHMEM 1.6's C names, for C11 and C++, over a symmetric heap in this host's memory or on GPUs. docs/shmem-names.md
   tells what is left out. Link imbrex::shmem, and start PEs by `imbrex launch` or another launcher that Imbrex knows.

   A call that cannot be done right ends all PEs. This one prints which call broke which rule, as in "imbrex: PE 2:
   shmem_int_put: PE 9: PEs are 0 to 3". It exits with 2 if an argument was wrong, else with 3. The others name the
   first failure and exit with 3. Waits last as long as IMBREX_WAIT_LIMIT says. One thread of a PE calls at a time.

   In this file TYPE and NAME are a type and its name in functions: float and float, long long and longlong. Functions
   of BOTH are there twice: shmem_int_put(...), and shmem_ctx_int_put(ctx, ...) on a context. PEs of a context are
   those of its team. Lengths count elements, bytes where a name ends in `mem`, and N bits where it ends in N. */
#ifndef IMBREX_SHMEM_H
#define IMBREX_SHMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <complex>
#define IMBREX_SHMEM_COMPLEX(TYPE) std::complex<TYPE>
#define IMBREX_SHMEM_HANDLE(TYPE, number) reinterpret_cast<TYPE>(static_cast<uintptr_t>(number))
extern "C" {
#else
#define IMBREX_SHMEM_COMPLEX(TYPE) TYPE _Complex
#define IMBREX_SHMEM_HANDLE(TYPE, number) ((TYPE)(uintptr_t)(number))
#endif

#define SHMEM_MAJOR_VERSION 1
#define SHMEM_MINOR_VERSION 6
#define SHMEM_MAX_NAME_LEN 64
#define SHMEM_VENDOR_STRING "Imbrex"

enum { SHMEM_THREAD_SINGLE, SHMEM_THREAD_FUNNELED, SHMEM_THREAD_SERIALIZED, SHMEM_THREAD_MULTIPLE };
enum { SHMEM_CMP_EQ = 1, SHMEM_CMP_NE, SHMEM_CMP_GT, SHMEM_CMP_GE, SHMEM_CMP_LT, SHMEM_CMP_LE };
enum { SHMEM_SIGNAL_SET = 1, SHMEM_SIGNAL_ADD };

/* Options and masks: bits. */
enum { SHMEM_CTX_SERIALIZED = 1, SHMEM_CTX_PRIVATE = 2, SHMEM_CTX_NOSTORE = 4 };
enum { SHMEM_CTX_SESSION_BATCH = 1, SHMEM_CTX_SESSION_TOTAL_OPS = 1 };
enum { SHMEM_TEAM_NUM_CONTEXTS = 1 };
enum { SHMEM_MALLOC_ATOMICS_REMOTE = 1, SHMEM_MALLOC_SIGNAL_REMOTE = 2 };

typedef struct imbrex_shmem_team* shmem_team_t;
typedef struct imbrex_shmem_ctx* shmem_ctx_t;
typedef struct {
  int num_contexts;
} shmem_team_config_t;
typedef struct {
  size_t total_ops;
} shmem_ctx_session_config_t;

#define SHMEM_TEAM_INVALID IMBREX_SHMEM_HANDLE(shmem_team_t, 0)
#define SHMEM_TEAM_WORLD IMBREX_SHMEM_HANDLE(shmem_team_t, 1)
#define SHMEM_TEAM_SHARED IMBREX_SHMEM_HANDLE(shmem_team_t, 2)
#define SHMEM_CTX_INVALID IMBREX_SHMEM_HANDLE(shmem_ctx_t, 0)
#define SHMEM_CTX_DEFAULT IMBREX_SHMEM_HANDLE(shmem_ctx_t, 1)

/* ------------------------------------------------------------------------------------------------------ types */
/* Lists for X(TYPE, NAME, A), with A as it was given. C's own types come first: generic names choose among them. */

#define IMBREX_SHMEM_NATIVE_INTEGERS(X, A) \
  X(int, int, A)                           \
  X(long, long, A)                         \
  X(long long, longlong, A) X(unsigned int, uint, A) X(unsigned long, ulong, A) X(unsigned long long, ulonglong, A)
#define IMBREX_SHMEM_NATIVE_FLOATS(X, A) X(float, float, A) X(double, double, A)
#define IMBREX_SHMEM_NATIVE_TYPES(X, A) \
  IMBREX_SHMEM_NATIVE_FLOATS(X, A)      \
  IMBREX_SHMEM_NATIVE_INTEGERS(X, A)    \
  X(long double, longdouble, A)         \
  X(char, char, A) X(signed char, schar, A) X(unsigned char, uchar, A) X(short, short, A) X(unsigned short, ushort, A)
#define IMBREX_SHMEM_SIZED_INTEGERS(X, A) \
  X(int32_t, int32, A) X(int64_t, int64, A) X(uint32_t, uint32, A) X(uint64_t, uint64, A) X(size_t, size, A)
#define IMBREX_SHMEM_SMALL_INTEGERS(X, A) \
  X(int8_t, int8, A) X(int16_t, int16, A) X(uint8_t, uint8, A) X(uint16_t, uint16, A)

/* Puts, gets and what copies. */
#define IMBREX_SHMEM_TYPES(X, A)  \
  IMBREX_SHMEM_NATIVE_TYPES(X, A) \
  IMBREX_SHMEM_SIZED_INTEGERS(X, A) IMBREX_SHMEM_SMALL_INTEGERS(X, A) X(ptrdiff_t, ptrdiff, A)
/* Sizes of elements, for X(BITS, A). */
#define IMBREX_SHMEM_SIZES(X, A) X(8, A) X(16, A) X(32, A) X(64, A) X(128, A)
/* Atomic arithmetic; waits and tests. */
#define IMBREX_SHMEM_ATOMIC_TYPES(X, A) \
  IMBREX_SHMEM_NATIVE_INTEGERS(X, A) IMBREX_SHMEM_SIZED_INTEGERS(X, A) X(ptrdiff_t, ptrdiff, A)
/* Atomic and, or, xor. */
#define IMBREX_SHMEM_ATOMIC_BIT_TYPES(X, A) \
  X(unsigned int, uint, A)                  \
  X(unsigned long, ulong, A)                \
  X(unsigned long long, ulonglong, A)       \
  X(int32_t, int32, A) X(int64_t, int64, A) X(uint32_t, uint32, A) X(uint64_t, uint64, A)
/* Reductions by and, or, xor; and the types that sums and products have besides. */
#define IMBREX_SHMEM_BIT_TYPES(X, A) \
  X(unsigned char, uchar, A)         \
  X(unsigned short, ushort, A)       \
  X(unsigned int, uint, A)           \
  X(unsigned long, ulong, A)         \
  X(unsigned long long, ulonglong, A) IMBREX_SHMEM_SIZED_INTEGERS(X, A) IMBREX_SHMEM_SMALL_INTEGERS(X, A)
#define IMBREX_SHMEM_COMPLEX_TYPES(X, A) \
  X(IMBREX_SHMEM_COMPLEX(double), complexd, A) X(IMBREX_SHMEM_COMPLEX(float), complexf, A)

#define IMBREX_SHMEM_ARGUMENTS(...) __VA_ARGS__
#define IMBREX_SHMEM_BOTH(RESULT, NAME, PARAMETERS) \
  RESULT shmem_##NAME PARAMETERS;                   \
  RESULT shmem_ctx_##NAME(shmem_ctx_t ctx, IMBREX_SHMEM_ARGUMENTS PARAMETERS);

/* ----------------------------------------------------------------------------------------- beginning and end */

/* Collective. May be called again; each call needs a shmem_finalize, and none comes after the last of those. */
void shmem_init(void);
int shmem_init_thread(int requested, int* provided);
void shmem_finalize(void);
/* Ends all PEs, which exit with `status`. */
#ifdef __cplusplus
[[noreturn]]
#else
_Noreturn
#endif
void shmem_global_exit(int status);
void shmem_query_thread(int* provided);
void shmem_query_initialized(int* initialized);

int shmem_my_pe(void);
int shmem_n_pes(void);
void shmem_info_get_version(int* major, int* minor);
void shmem_info_get_name(char* name);
/* 1 or 0. */
int shmem_pe_accessible(int pe);
int shmem_addr_accessible(const void* addr, int pe);

/* ---------------------------------------------------------------------------------------------------- memory */
/* Collective, with the same arguments. Null for no bytes, and where the heap is full. All of it is 0 at first. Each
   alignment is a power of two from 8 to 4096. */

void* shmem_malloc(size_t size);
void* shmem_malloc_with_hints(size_t size, long hints);
void* shmem_calloc(size_t count, size_t size);
void* shmem_align(size_t alignment, size_t size);
void* shmem_realloc(void* ptr, size_t size);
void shmem_free(void* ptr);
/* The place of `dest` on a PE, for loads and stores: this host's, or its GPU's where the heap lies there. */
void* shmem_ptr(const void* dest, int pe);
void* shmem_team_ptr(shmem_team_t team, const void* dest, int pe);

/* ----------------------------------------------------------------------------------------- teams and contexts */
/* They return 0, or another number where there are as many teams as there can be. -1: no PE of the team. */

int shmem_team_my_pe(shmem_team_t team);
int shmem_team_n_pes(shmem_team_t team);
int shmem_team_translate_pe(shmem_team_t src_team, int src_pe, shmem_team_t dest_team);
int shmem_team_get_config(shmem_team_t team, long config_mask, shmem_team_config_t* config);
int shmem_team_split_strided(shmem_team_t parent, int start, int stride, int size, const shmem_team_config_t* config,
                             long config_mask, shmem_team_t* new_team);
int shmem_team_split_2d(shmem_team_t parent, int xrange, const shmem_team_config_t* xaxis_config, long xaxis_mask,
                        shmem_team_t* xaxis_team, const shmem_team_config_t* yaxis_config, long yaxis_mask,
                        shmem_team_t* yaxis_team);
void shmem_team_destroy(shmem_team_t team);

int shmem_ctx_create(long options, shmem_ctx_t* ctx);
int shmem_team_create_ctx(shmem_team_t team, long options, shmem_ctx_t* ctx);
int shmem_ctx_get_team(shmem_ctx_t ctx, shmem_team_t* team);
void shmem_ctx_destroy(shmem_ctx_t ctx);
/* Hints, which change nothing. */
void shmem_ctx_session_start(shmem_ctx_t ctx, long options, const shmem_ctx_session_config_t* config, long config_mask);
void shmem_ctx_session_stop(shmem_ctx_t ctx);

/* ---------------------------------------------------------------------------------------------- puts and gets */

#define IMBREX_SHMEM_COPIES(PUT, GET, TYPE)                                                    \
  IMBREX_SHMEM_BOTH(void, PUT, (TYPE * dest, const TYPE* source, size_t nelems, int pe))       \
  IMBREX_SHMEM_BOTH(void, GET, (TYPE * dest, const TYPE* source, size_t nelems, int pe))       \
  IMBREX_SHMEM_BOTH(void, PUT##_nbi, (TYPE * dest, const TYPE* source, size_t nelems, int pe)) \
  IMBREX_SHMEM_BOTH(void, GET##_nbi, (TYPE * dest, const TYPE* source, size_t nelems, int pe))
/* Element i, or block i of `bsize` elements, lies i * dst elements after dest, and i * sst after source. */
#define IMBREX_SHMEM_STRIDED(IPUT, IBPUT, TYPE)                                                             \
  IMBREX_SHMEM_BOTH(void, IPUT,                                                                             \
                    (TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe)) \
  IMBREX_SHMEM_BOTH(                                                                                        \
      void, IBPUT,                                                                                          \
      (TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, int pe))
/* A put, and after its data the signal. */
#define IMBREX_SHMEM_PUT_SIGNAL(PUT, TYPE)                                                                       \
  IMBREX_SHMEM_BOTH(                                                                                             \
      void, PUT,                                                                                                 \
      (TYPE * dest, const TYPE* source, size_t nelems, uint64_t* sig_addr, uint64_t signal, int sig_op, int pe)) \
  IMBREX_SHMEM_BOTH(                                                                                             \
      void, PUT##_nbi,                                                                                           \
      (TYPE * dest, const TYPE* source, size_t nelems, uint64_t* sig_addr, uint64_t signal, int sig_op, int pe))

#define IMBREX_SHMEM_RMA(TYPE, NAME, A)                                \
  IMBREX_SHMEM_BOTH(void, NAME##_p, (TYPE * dest, TYPE value, int pe)) \
  IMBREX_SHMEM_BOTH(TYPE, NAME##_g, (const TYPE* source, int pe))      \
  IMBREX_SHMEM_COPIES(NAME##_put, NAME##_get, TYPE)                    \
  IMBREX_SHMEM_STRIDED(NAME##_iput, NAME##_ibput, TYPE)                \
  IMBREX_SHMEM_STRIDED(NAME##_iget, NAME##_ibget, TYPE)                \
  IMBREX_SHMEM_PUT_SIGNAL(NAME##_put_signal, TYPE)
#define IMBREX_SHMEM_RMA_OF_SIZE(BITS, A)             \
  IMBREX_SHMEM_COPIES(put##BITS, get##BITS, void)     \
  IMBREX_SHMEM_STRIDED(iput##BITS, ibput##BITS, void) \
  IMBREX_SHMEM_STRIDED(iget##BITS, ibget##BITS, void) \
  IMBREX_SHMEM_PUT_SIGNAL(put##BITS##_signal, void)

IMBREX_SHMEM_TYPES(IMBREX_SHMEM_RMA, )
IMBREX_SHMEM_SIZES(IMBREX_SHMEM_RMA_OF_SIZE, )
IMBREX_SHMEM_COPIES(putmem, getmem, void)
IMBREX_SHMEM_PUT_SIGNAL(putmem_signal, void)

/* ------------------------------------------------------------------------------------------ atomic operations */
/* NAME_atomic_fetch_add returns what was there; NAME_atomic_fetch_add_nbi stores it to `fetch`, by the next quiet. */

#define IMBREX_SHMEM_FETCHING(TYPE, NAME, PARAMETERS) \
  IMBREX_SHMEM_BOTH(TYPE, NAME, (PARAMETERS, int pe)) \
  IMBREX_SHMEM_BOTH(void, NAME##_nbi, (TYPE * fetch, PARAMETERS, int pe))
#define IMBREX_SHMEM_AMO_PLAIN(TYPE, NAME, A)                                                     \
  IMBREX_SHMEM_FETCHING(TYPE, NAME##_atomic_fetch, const TYPE* source)                            \
  IMBREX_SHMEM_FETCHING(TYPE, NAME##_atomic_swap, IMBREX_SHMEM_ARGUMENTS(TYPE* dest, TYPE value)) \
  IMBREX_SHMEM_BOTH(void, NAME##_atomic_set, (TYPE * dest, TYPE value, int pe))
#define IMBREX_SHMEM_AMO(TYPE, NAME, A)                                                                              \
  IMBREX_SHMEM_AMO_PLAIN(TYPE, NAME, A)                                                                              \
  IMBREX_SHMEM_FETCHING(TYPE, NAME##_atomic_compare_swap, IMBREX_SHMEM_ARGUMENTS(TYPE* dest, TYPE cond, TYPE value)) \
  IMBREX_SHMEM_FETCHING(TYPE, NAME##_atomic_fetch_inc, TYPE* dest)                                                   \
  IMBREX_SHMEM_BOTH(void, NAME##_atomic_inc, (TYPE * dest, int pe))                                                  \
  IMBREX_SHMEM_AMO_CHANGE(TYPE, NAME, add)
#define IMBREX_SHMEM_AMO_CHANGE(TYPE, NAME, OPERATION)                                                         \
  IMBREX_SHMEM_FETCHING(TYPE, NAME##_atomic_fetch_##OPERATION, IMBREX_SHMEM_ARGUMENTS(TYPE* dest, TYPE value)) \
  IMBREX_SHMEM_BOTH(void, NAME##_atomic_##OPERATION, (TYPE * dest, TYPE value, int pe))
#define IMBREX_SHMEM_AMO_BITS(TYPE, NAME, A) \
  IMBREX_SHMEM_AMO_CHANGE(TYPE, NAME, and)   \
  IMBREX_SHMEM_AMO_CHANGE(TYPE, NAME, or)    \
  IMBREX_SHMEM_AMO_CHANGE(TYPE, NAME, xor)

IMBREX_SHMEM_NATIVE_FLOATS(IMBREX_SHMEM_AMO_PLAIN, )
IMBREX_SHMEM_ATOMIC_TYPES(IMBREX_SHMEM_AMO, )
IMBREX_SHMEM_ATOMIC_BIT_TYPES(IMBREX_SHMEM_AMO_BITS, )

/* ----------------------------------------------------------------------------------- signals, waits and tests */
/* Waits and tests are about this PE's own memory. `status`, where it is not null, leaves out those elements for which
   it is not 0. SIZE_MAX is the number of none. */

uint64_t shmem_signal_fetch(const uint64_t* sig_addr);
uint64_t shmem_signal_wait_until(uint64_t* sig_addr, int cmp, uint64_t cmp_value);
IMBREX_SHMEM_BOTH(void, signal_set, (uint64_t * sig_addr, uint64_t signal, int pe))
IMBREX_SHMEM_BOTH(void, signal_add, (uint64_t * sig_addr, uint64_t signal, int pe))

/* VALUE(S): one for all elements, or an array with one for each. */
#define IMBREX_SHMEM_WAIT_FOR_SEVERAL(TYPE, NAME, VECTOR, VALUE)                                                   \
  void shmem_##NAME##_wait_until_all##VECTOR(TYPE* ivars, size_t nelems, const int* status, int cmp, VALUE);       \
  size_t shmem_##NAME##_wait_until_any##VECTOR(TYPE* ivars, size_t nelems, const int* status, int cmp, VALUE);     \
  size_t shmem_##NAME##_wait_until_some##VECTOR(TYPE* ivars, size_t nelems, size_t* indices, const int* status,    \
                                                int cmp, VALUE);                                                   \
  int shmem_##NAME##_test_all##VECTOR(TYPE* ivars, size_t nelems, const int* status, int cmp, VALUE);              \
  size_t shmem_##NAME##_test_any##VECTOR(TYPE* ivars, size_t nelems, const int* status, int cmp, VALUE);           \
  size_t shmem_##NAME##_test_some##VECTOR(TYPE* ivars, size_t nelems, size_t* indices, const int* status, int cmp, \
                                          VALUE);
#define IMBREX_SHMEM_WAITS(TYPE, NAME, A)                              \
  void shmem_##NAME##_wait_until(TYPE* ivar, int cmp, TYPE cmp_value); \
  int shmem_##NAME##_test(TYPE* ivar, int cmp, TYPE cmp_value);        \
  IMBREX_SHMEM_WAIT_FOR_SEVERAL(TYPE, NAME, , TYPE cmp_value)          \
  IMBREX_SHMEM_WAIT_FOR_SEVERAL(TYPE, NAME, _vector, TYPE* cmp_values)
IMBREX_SHMEM_ATOMIC_TYPES(IMBREX_SHMEM_WAITS, )

/* --------------------------------------------------------------------------------------------- order and sync */

void shmem_fence(void);
void shmem_ctx_fence(shmem_ctx_t ctx);
void shmem_quiet(void);
void shmem_ctx_quiet(shmem_ctx_t ctx);
IMBREX_SHMEM_BOTH(void, pe_quiet, (const int* target_pes, size_t npes))
void shmem_barrier_all(void);
void shmem_sync_all(void);
int shmem_team_sync(shmem_team_t team);

/* ------------------------------------------------------------------------------------------------ collectives */
/* By all members of the team, in the same order. They return 0. `dest` and `source` lie in the heap; only those of a
   broadcast and a reduction may be the same. */

#define IMBREX_SHMEM_MOVES(BROADCAST, COLLECT, FCOLLECT, ALLTOALL, ALLTOALLS, TYPE)             \
  int BROADCAST(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nelems, int PE_root); \
  int COLLECT(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nelems);                \
  int FCOLLECT(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nelems);               \
  int ALLTOALL(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nelems);               \
  int ALLTOALLS(shmem_team_t team, TYPE* dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems);
#define IMBREX_SHMEM_TYPED_MOVES(TYPE, NAME, A)                                                 \
  IMBREX_SHMEM_MOVES(shmem_##NAME##_broadcast, shmem_##NAME##_collect, shmem_##NAME##_fcollect, \
                     shmem_##NAME##_alltoall, shmem_##NAME##_alltoalls, TYPE)
IMBREX_SHMEM_TYPES(IMBREX_SHMEM_TYPED_MOVES, )
IMBREX_SHMEM_MOVES(shmem_broadcastmem, shmem_collectmem, shmem_fcollectmem, shmem_alltoallmem, shmem_alltoallsmem, void)

#define IMBREX_SHMEM_REDUCE(TYPE, NAME, OPERATION) \
  int shmem_##NAME##_##OPERATION(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nreduce);
IMBREX_SHMEM_BIT_TYPES(IMBREX_SHMEM_REDUCE, and_reduce)
IMBREX_SHMEM_BIT_TYPES(IMBREX_SHMEM_REDUCE, or_reduce)
IMBREX_SHMEM_BIT_TYPES(IMBREX_SHMEM_REDUCE, xor_reduce)
IMBREX_SHMEM_TYPES(IMBREX_SHMEM_REDUCE, max_reduce)
IMBREX_SHMEM_TYPES(IMBREX_SHMEM_REDUCE, min_reduce)
IMBREX_SHMEM_TYPES(IMBREX_SHMEM_REDUCE, sum_reduce)
IMBREX_SHMEM_COMPLEX_TYPES(IMBREX_SHMEM_REDUCE, sum_reduce)
IMBREX_SHMEM_TYPES(IMBREX_SHMEM_REDUCE, prod_reduce)
IMBREX_SHMEM_COMPLEX_TYPES(IMBREX_SHMEM_REDUCE, prod_reduce)
/* Sums of the members up to this one, or of those before it. */
IMBREX_SHMEM_TYPES(IMBREX_SHMEM_REDUCE, sum_inscan)
IMBREX_SHMEM_COMPLEX_TYPES(IMBREX_SHMEM_REDUCE, sum_inscan)
IMBREX_SHMEM_TYPES(IMBREX_SHMEM_REDUCE, sum_exscan)
IMBREX_SHMEM_COMPLEX_TYPES(IMBREX_SHMEM_REDUCE, sum_exscan)

#ifdef __cplusplus
}

namespace imbrex::shmem {
class Heap;
/// The heap behind these names, for kernels and what else imbrex/shmem.hpp has. Throws Error(invalid_input) before
/// shmem_init and after the last shmem_finalize.
Heap& heap();
}  // namespace imbrex::shmem
#endif

/* --------------------------------------------------------------------------------------------- generic names (C11) */
/* shmem_put(dest, ...) and shmem_put(ctx, dest, ...): the function for the type that `dest`, or what else comes first,
   points to. */
#if !defined(__cplusplus) && __STDC_VERSION__ >= 201112L

void imbrex_shmem_has_no_such_type(void); /* there is no such function, either */
#define IMBREX_SHMEM_CASE(TYPE, NAME, OPERATION) \
  TYPE* : shmem_##NAME##_##OPERATION, const TYPE* : shmem_##NAME##_##OPERATION,
#define IMBREX_SHMEM_CTX_CASE(TYPE, NAME, OPERATION) \
  TYPE* : shmem_ctx_##NAME##_##OPERATION, const TYPE* : shmem_ctx_##NAME##_##OPERATION,
#define IMBREX_SHMEM_FIRST(first, ...) (first)
#define IMBREX_SHMEM_SECOND(first, second, ...) (second)
#define IMBREX_SHMEM_CHOOSE(TYPES, CASE, OPERATION, pointer) \
  _Generic(pointer, TYPES(CASE, OPERATION) default : imbrex_shmem_has_no_such_type)
/* By the first argument, or after a context by the second. */
#define IMBREX_SHMEM_GENERIC(TYPES, OPERATION, ...)                                                             \
  _Generic(IMBREX_SHMEM_FIRST(__VA_ARGS__, 0), shmem_ctx_t                                                      \
           : IMBREX_SHMEM_CHOOSE(TYPES, IMBREX_SHMEM_CTX_CASE, OPERATION, IMBREX_SHMEM_SECOND(__VA_ARGS__, 0)), \
             TYPES(IMBREX_SHMEM_CASE, OPERATION) default                                                        \
           : imbrex_shmem_has_no_such_type)(__VA_ARGS__)
#define IMBREX_SHMEM_GENERIC_FIRST(TYPES, OPERATION, ...)                                      \
  IMBREX_SHMEM_CHOOSE(TYPES, IMBREX_SHMEM_CASE, OPERATION, IMBREX_SHMEM_FIRST(__VA_ARGS__, 0)) \
  (__VA_ARGS__)
#define IMBREX_SHMEM_GENERIC_SECOND(TYPES, OPERATION, ...)                                      \
  IMBREX_SHMEM_CHOOSE(TYPES, IMBREX_SHMEM_CASE, OPERATION, IMBREX_SHMEM_SECOND(__VA_ARGS__, 0)) \
  (__VA_ARGS__)
#define IMBREX_SHMEM_NATIVE_AMO_TYPES(X, A) IMBREX_SHMEM_NATIVE_FLOATS(X, A) IMBREX_SHMEM_NATIVE_INTEGERS(X, A)
#define IMBREX_SHMEM_NATIVE_BIT_TYPES(X, A) \
  X(unsigned int, uint, A)                  \
  X(unsigned long, ulong, A) X(unsigned long long, ulonglong, A) X(int32_t, int32, A) X(int64_t, int64, A)
#define IMBREX_SHMEM_NATIVE_REDUCED_BIT_TYPES(X, A) \
  IMBREX_SHMEM_NATIVE_BIT_TYPES(X, A)               \
  X(unsigned char, uchar, A) X(unsigned short, ushort, A) X(int8_t, int8, A) X(int16_t, int16, A)
#define IMBREX_SHMEM_NUMBERS(X, A) IMBREX_SHMEM_NATIVE_TYPES(X, A) IMBREX_SHMEM_COMPLEX_TYPES(X, A)

#define shmem_p(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, p, __VA_ARGS__)
#define shmem_g(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, g, __VA_ARGS__)
#define shmem_put(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, put, __VA_ARGS__)
#define shmem_get(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, get, __VA_ARGS__)
#define shmem_put_nbi(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, put_nbi, __VA_ARGS__)
#define shmem_get_nbi(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, get_nbi, __VA_ARGS__)
#define shmem_iput(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, iput, __VA_ARGS__)
#define shmem_iget(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, iget, __VA_ARGS__)
#define shmem_ibput(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, ibput, __VA_ARGS__)
#define shmem_ibget(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, ibget, __VA_ARGS__)
#define shmem_put_signal(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, put_signal, __VA_ARGS__)
#define shmem_put_signal_nbi(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_TYPES, put_signal_nbi, __VA_ARGS__)

#define shmem_atomic_fetch(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_AMO_TYPES, atomic_fetch, __VA_ARGS__)
#define shmem_atomic_fetch_nbi(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_AMO_TYPES, atomic_fetch_nbi, __VA_ARGS__)
#define shmem_atomic_swap(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_AMO_TYPES, atomic_swap, __VA_ARGS__)
#define shmem_atomic_swap_nbi(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_AMO_TYPES, atomic_swap_nbi, __VA_ARGS__)
#define shmem_atomic_set(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_AMO_TYPES, atomic_set, __VA_ARGS__)
#define shmem_atomic_compare_swap(...) \
  IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_INTEGERS, atomic_compare_swap, __VA_ARGS__)
#define shmem_atomic_compare_swap_nbi(...) \
  IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_INTEGERS, atomic_compare_swap_nbi, __VA_ARGS__)
#define shmem_atomic_fetch_inc(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_INTEGERS, atomic_fetch_inc, __VA_ARGS__)
#define shmem_atomic_fetch_inc_nbi(...) \
  IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_INTEGERS, atomic_fetch_inc_nbi, __VA_ARGS__)
#define shmem_atomic_inc(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_INTEGERS, atomic_inc, __VA_ARGS__)
#define shmem_atomic_fetch_add(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_INTEGERS, atomic_fetch_add, __VA_ARGS__)
#define shmem_atomic_fetch_add_nbi(...) \
  IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_INTEGERS, atomic_fetch_add_nbi, __VA_ARGS__)
#define shmem_atomic_add(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_INTEGERS, atomic_add, __VA_ARGS__)
#define shmem_atomic_fetch_and(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_BIT_TYPES, atomic_fetch_and, __VA_ARGS__)
#define shmem_atomic_fetch_and_nbi(...) \
  IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_BIT_TYPES, atomic_fetch_and_nbi, __VA_ARGS__)
#define shmem_atomic_and(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_BIT_TYPES, atomic_and, __VA_ARGS__)
#define shmem_atomic_fetch_or(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_BIT_TYPES, atomic_fetch_or, __VA_ARGS__)
#define shmem_atomic_fetch_or_nbi(...) \
  IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_BIT_TYPES, atomic_fetch_or_nbi, __VA_ARGS__)
#define shmem_atomic_or(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_BIT_TYPES, atomic_or, __VA_ARGS__)
#define shmem_atomic_fetch_xor(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_BIT_TYPES, atomic_fetch_xor, __VA_ARGS__)
#define shmem_atomic_fetch_xor_nbi(...) \
  IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_BIT_TYPES, atomic_fetch_xor_nbi, __VA_ARGS__)
#define shmem_atomic_xor(...) IMBREX_SHMEM_GENERIC(IMBREX_SHMEM_NATIVE_BIT_TYPES, atomic_xor, __VA_ARGS__)

#define shmem_wait_until(...) IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, wait_until, __VA_ARGS__)
#define shmem_test(...) IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, test, __VA_ARGS__)
#define shmem_wait_until_all(...) IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, wait_until_all, __VA_ARGS__)
#define shmem_wait_until_all_vector(...) \
  IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, wait_until_all_vector, __VA_ARGS__)
#define shmem_wait_until_any(...) IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, wait_until_any, __VA_ARGS__)
#define shmem_wait_until_any_vector(...) \
  IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, wait_until_any_vector, __VA_ARGS__)
#define shmem_wait_until_some(...) \
  IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, wait_until_some, __VA_ARGS__)
#define shmem_wait_until_some_vector(...) \
  IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, wait_until_some_vector, __VA_ARGS__)
#define shmem_test_all(...) IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, test_all, __VA_ARGS__)
#define shmem_test_all_vector(...) \
  IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, test_all_vector, __VA_ARGS__)
#define shmem_test_any(...) IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, test_any, __VA_ARGS__)
#define shmem_test_any_vector(...) \
  IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, test_any_vector, __VA_ARGS__)
#define shmem_test_some(...) IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, test_some, __VA_ARGS__)
#define shmem_test_some_vector(...) \
  IMBREX_SHMEM_GENERIC_FIRST(IMBREX_SHMEM_NATIVE_INTEGERS, test_some_vector, __VA_ARGS__)

#define shmem_sync(team) shmem_team_sync(team)
#define shmem_broadcast(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_TYPES, broadcast, __VA_ARGS__)
#define shmem_collect(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_TYPES, collect, __VA_ARGS__)
#define shmem_fcollect(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_TYPES, fcollect, __VA_ARGS__)
#define shmem_alltoall(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_TYPES, alltoall, __VA_ARGS__)
#define shmem_alltoalls(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_TYPES, alltoalls, __VA_ARGS__)
#define shmem_and_reduce(...) \
  IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_REDUCED_BIT_TYPES, and_reduce, __VA_ARGS__)
#define shmem_or_reduce(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_REDUCED_BIT_TYPES, or_reduce, __VA_ARGS__)
#define shmem_xor_reduce(...) \
  IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_REDUCED_BIT_TYPES, xor_reduce, __VA_ARGS__)
#define shmem_max_reduce(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_TYPES, max_reduce, __VA_ARGS__)
#define shmem_min_reduce(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NATIVE_TYPES, min_reduce, __VA_ARGS__)
#define shmem_sum_reduce(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NUMBERS, sum_reduce, __VA_ARGS__)
#define shmem_prod_reduce(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NUMBERS, prod_reduce, __VA_ARGS__)
#define shmem_sum_inscan(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NUMBERS, sum_inscan, __VA_ARGS__)
#define shmem_sum_exscan(...) IMBREX_SHMEM_GENERIC_SECOND(IMBREX_SHMEM_NUMBERS, sum_exscan, __VA_ARGS__)

#endif

#endif
