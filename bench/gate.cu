#include "gate.hpp"

namespace imbrex::bench {
namespace {

__global__ void gate(const __grid_constant__ GateArgs args) {
  const int peer = threadIdx.x;
  if (peer >= args.ranks) return;
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(args.flags[peer] + args.rank), "r"(args.number) : "memory");
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  for (;;) {
    unsigned seen;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(args.flags[args.rank] + peer) : "memory");
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (static_cast<int>(seen - args.number) >= 0 || now - begin > 5000000000ull) return;
  }
}

}  // namespace

cudaError_t pass_gate(const GateArgs& args, cudaStream_t stream) {
  gate<<<1, max_gate_ranks, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace imbrex::bench
