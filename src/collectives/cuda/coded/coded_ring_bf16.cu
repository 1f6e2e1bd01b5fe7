#include "collectives/cuda/coded/coded_entries.hpp"
#include "collectives/cuda/coded/coded_ring.cuh"

namespace imbrex::cuda {

const void* coded_ring_bf16() { return reinterpret_cast<const void*>(&coded_ring<Type::bf16>); }

}  // namespace imbrex::cuda
