// One put a kernel, for builders_test.py to read; and a kernel on the whole of the transport.
#include "apps/nic/transport.hpp"
#include "imbrex/device/shmem.cuh"
#include "shmem/mlx5/builders.hpp"

namespace imbrex::shmem::mlx5::test {

extern "C" __global__ void put_filled(Queue* queue, const Fixed* fixed, Moving moving) {
  issue<Builder::filled, Reach::gpu>(*queue, *fixed, moving);
}
extern "C" __global__ void put_whole(Queue* queue, const Fixed* fixed, Moving moving) {
  issue<Builder::whole, Reach::gpu>(*queue, *fixed, moving);
}
extern "C" __global__ void put_words(Queue* queue, const Fixed* fixed, Moving moving) {
  issue<Builder::words, Reach::gpu>(*queue, *fixed, moving);
}

// That it compiles for GPUs.
extern "C" __global__ void use_transport(Handle handle, std::uint64_t* data, Signal* signal, float* sum) {
  Context<Mlx5> context(handle);
  const Block block;
  const std::uint32_t next = (context.pe() + 1) % context.pes();
  context.put_signal(data, data + 64, 64, signal, 1, SignalOperation::add, next, block);
  if (!context.signal_wait_until(signal, Compare::greater_equal, 1, block)) return;
  if (!is_leader(block)) return;
  context.atomic_add(sum, 0.5f, next);
  data[0] = context.atomic_fetch_add(data, std::uint64_t{1}, next) + context.g(data + 1, next);
  context.quiet();
}

}  // namespace imbrex::shmem::mlx5::test
