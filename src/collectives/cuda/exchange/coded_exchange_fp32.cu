#include "collectives/cuda/coded/coded_entries.hpp"
#include "collectives/cuda/exchange/coded_exchange.cuh"

namespace imbrex::cuda {

const void* coded_exchange_fp32(ExchangeKind kind) { return coded_exchange_of<Type::fp32>(kind); }

}  // namespace imbrex::cuda
