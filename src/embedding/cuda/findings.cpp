#include "embedding/cuda/findings.hpp"

#include <algorithm>

#include "base/cuda_check.hpp"
#include "embedding/bags.hpp"

namespace imbrex::embedding {

std::int64_t take_findings(Findings* there, std::int64_t tables, cudaStream_t stream, Misfits misfits) {
  Findings found{};
  IMBREX_CUDA_TRY(cudaMemcpyAsync(&found, there, sizeof found, cudaMemcpyDeviceToHost, stream));
  IMBREX_CUDA_TRY(cudaMemsetAsync(there, 0, sizeof found, stream));
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
  if (found.offset != 0) {
    const std::int64_t place = static_cast<std::uint32_t>(~found.offset), batch = found.offset_batch,
                       bag = std::min(place, tables * batch - 1);
    refuse_offset(bag / batch, bag % batch, place, found.offset_value, found.offset_before, found.offset_count);
  }
  if (found.index != 0 && misfits == Misfits::refused)
    refuse_index(found.index_bag / found.index_batch, found.index_bag % found.index_batch,
                 static_cast<std::uint32_t>(~found.index), found.index_value, found.index_rows);
  return static_cast<std::int64_t>(found.ignored);
}

}  // namespace imbrex::embedding
