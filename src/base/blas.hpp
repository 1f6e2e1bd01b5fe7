// The BLAS. It works in the threads that call it and starts none of its own: the ranks and their workers are the
// parallelism, its threads would wait for ever where the address space is limited, and a fork waits for them.
#pragma once

namespace imbrex::base {

/// Keeps memory for `threads` threads that multiply at once, in addition to those of other such objects. OpenBLAS asks
/// for its memory again and again, for ever, where it gets none, so every multiplication is made with one of these.
class BlasMemory {
 public:
  /// Throws Error(runtime_failure) where there is not enough.
  explicit BlasMemory(int threads);
  BlasMemory(const BlasMemory&) = delete;
  BlasMemory& operator=(const BlasMemory&) = delete;
  ~BlasMemory();

 private:
  int threads_;
};

}  // namespace imbrex::base
