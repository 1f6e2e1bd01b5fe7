#include "collectives/cuda/coded/coded_entries.hpp"
#include "collectives/cuda/coded/coded_one_shot.cuh"

namespace imbrex::cuda {

const void* coded_one_shot_fp16() { return reinterpret_cast<const void*>(&coded_one_shot<Type::fp16>); }

}  // namespace imbrex::cuda
