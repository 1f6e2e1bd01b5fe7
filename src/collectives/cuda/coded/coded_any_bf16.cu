#include "collectives/cuda/coded/coded_any.cuh"
#include "collectives/cuda/coded/coded_entries.hpp"

namespace imbrex::cuda {

const void* coded_any_bf16() { return reinterpret_cast<const void*>(&coded_all_reduce<Type::bf16>); }

}  // namespace imbrex::cuda
