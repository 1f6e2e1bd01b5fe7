#include "collectives/cuda/coded/coded_any.cuh"
#include "collectives/cuda/coded/coded_entries.hpp"

namespace imbrex::cuda {

const void* coded_any_fp32() { return reinterpret_cast<const void*>(&coded_all_reduce<Type::fp32>); }

}  // namespace imbrex::cuda
