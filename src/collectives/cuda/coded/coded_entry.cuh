// The kernels that know their codecs, of one pair of forms.
#pragma once

#include "collectives/cuda/coded/coded_entries.hpp"
#include "collectives/cuda/coded/coded_packets.cuh"
#include "collectives/cuda/coded/coded_staged.cuh"

namespace imbrex::cuda {

template <Type type, typename FormOfParts, typename FormOfSums>
CodedEntry coded_entry() {
  return {{FormOfParts::of({}), FormOfSums::of({})},
          {staged_kernel<type, 2, FormOfParts, FormOfSums>(), staged_kernel<type, 4, FormOfParts, FormOfSums>(),
           staged_kernel<type, 8, FormOfParts, FormOfSums>()},
          {packets_kernel<type, 2, FormOfParts, FormOfSums>(), packets_kernel<type, 4, FormOfParts, FormOfSums>(),
           packets_kernel<type, 8, FormOfParts, FormOfSums>()}};
}

}  // namespace imbrex::cuda
