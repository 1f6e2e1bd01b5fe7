#include "collectives/cuda/coded/coded_entries.hpp"
#include "collectives/cuda/coded/coded_ring.cuh"

namespace imbrex::cuda {

const void* coded_ring_fp32() { return reinterpret_cast<const void*>(&coded_ring<Type::fp32>); }

}  // namespace imbrex::cuda
