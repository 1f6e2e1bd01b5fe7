// The kernels that know their codecs, of one pair of forms.
#pragma once

#include "collectives/cuda/quantized/quantized_entries.hpp"
#include "collectives/cuda/quantized/quantized_packets.cuh"
#include "collectives/cuda/quantized/quantized_staged.cuh"

namespace imbrex::cuda {

template <Type type, typename FormOfParts, typename FormOfSums>
QuantizedEntry quantized_entry() {
  return {{FormOfParts::of({}), FormOfSums::of({})},
          {staged_kernel<type, 2, FormOfParts, FormOfSums>(), staged_kernel<type, 4, FormOfParts, FormOfSums>(),
           staged_kernel<type, 8, FormOfParts, FormOfSums>()},
          {packets_kernel<type, 2, FormOfParts, FormOfSums>(), packets_kernel<type, 4, FormOfParts, FormOfSums>(),
           packets_kernel<type, 8, FormOfParts, FormOfSums>()}};
}

}  // namespace imbrex::cuda
