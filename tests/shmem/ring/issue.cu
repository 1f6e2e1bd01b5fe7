// One put a kernel, for issue_test.py to read; and kernels on the whole of the transport.
#include "imbrex/device/shmem.cuh"
#include "shmem/ring/issue.hpp"

namespace imbrex::shmem::ring::test {

extern "C" __global__ void put_descriptor(Queue* queue, const Fields* fields, std::uint32_t number, std::uint32_t pe,
                                          std::uint64_t there, std::uint64_t here, std::uint32_t bytes,
                                          std::uint64_t value) {
  issue<Way::descriptor>(*queue, fields, number, pe, there, here, bytes, value);
}
extern "C" __global__ void put_fields(Queue* queue, const Fields* fields, std::uint32_t number, std::uint32_t pe,
                                      std::uint64_t there, std::uint64_t here, std::uint32_t bytes,
                                      std::uint64_t value) {
  issue<Way::fields>(*queue, fields, number, pe, there, here, bytes, value);
}

// What a kernel pays for puts by a transport.
extern "C" __global__ void use_own_ring(Handle handle, std::uint64_t* data, std::uint32_t number) {
  Context<OwnRing> context(handle);
  context.put_nbi(data, data + 64, 64, 1);
  context.transport().put_registered(handle, number, 7, 1);
}
extern "C" __global__ void put_registered(Handle handle, std::uint32_t number) {
  Context<OwnRing> context(handle);
  context.transport().put_registered(handle, number, 7, 1);
}
extern "C" __global__ void use_ring(Handle handle, std::uint64_t* data, Signal* signal) {
  Context<Ring> context(handle);
  context.put_signal_nbi(data, data + 64, 64, signal, 1, SignalOperation::add, 1);
}

}  // namespace imbrex::shmem::ring::test
