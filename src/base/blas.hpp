// The BLAS. It works in the threads that call it and starts none of its own: the ranks and their workers are the
// parallelism, its threads would wait for ever where the address space is limited, and a fork waits for them.
#pragma once

namespace imbrex::base {

/// c = beta * c + a * b. Matrices lie by rows, from one to the next their leading dimension; b perhaps by columns.
template <typename T>
struct BlasProduct {
  int rows, cols, depth;
  const T* a;
  int lda;
  const T* b;
  int ldb;
  bool b_by_columns;
  T beta;
  T* c;
  int ldc;
};

/// Waits until there is memory for one more thread that multiplies; from any number of threads. OpenBLAS asks for
/// memory again and again, for ever, where it gets none, and where a process has more of its buffers than it counts on,
/// it writes into memory that is not its own. Throws as reserve_blas, only if nothing has been reserved before.
void multiply(const BlasProduct<float>& product);
void multiply(const BlasProduct<double>& product);

/// Makes memory with which so many threads can multiply at once, for this process. There may be less of it than asked
/// for: threads then wait for one another. Throws Error(runtime_failure) where there is none at all.
void reserve_blas(int threads);

}  // namespace imbrex::base
