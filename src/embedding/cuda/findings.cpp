#include "embedding/cuda/findings.hpp"

#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "base/cuda_check.hpp"

namespace imbrex::embedding {
namespace {

[[noreturn]] void refuse_earlier() {
  throw Error(ErrorCode::invalid_input,
              "an index of an earlier call than the last one was no row of its table, or an offset did not fit");
}

}  // namespace

std::int64_t take_findings(Findings* there, std::span<const Table> tables, const Bags& bags, cudaStream_t stream,
                           Misfits misfits) {
  Findings found{};
  IMBREX_CUDA_TRY(cudaMemcpyAsync(&found, there, sizeof found, cudaMemcpyDeviceToHost, stream));
  IMBREX_CUDA_TRY(cudaMemsetAsync(there, 0, sizeof found, stream));
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
  if (found.offset == 0 && (found.index == 0 || misfits == Misfits::ignored))
    return static_cast<std::int64_t>(found.ignored);
  // The first one is looked up again, among all that may stand before it.
  const auto all = static_cast<std::int64_t>(tables.size()) * bags.batch;
  const std::int64_t bytes = size_of(bags.type);
  std::vector<std::byte> offsets(static_cast<std::size_t>((all + 1) * bytes)), index(8);
  IMBREX_CUDA_TRY(cudaMemcpy(offsets.data(), bags.offsets, offsets.size(), cudaMemcpyDeviceToHost));
  const auto offset = [&](std::int64_t i) { return index_at(offsets.data(), bags.type, i); };
  if (found.offset != 0) {
    std::int64_t before = 0;
    for (std::int64_t i = 0; i <= all; ++i) {
      const std::int64_t bag = std::min(i, all - 1);
      if (offset(i) < before || offset(i) > bags.count)
        refuse_offset(bag / bags.batch, bag % bags.batch, i, offset(i), before, bags.count);
      before = offset(i);
    }
  }
  const std::int64_t position = static_cast<std::uint32_t>(~found.index);
  if (position >= bags.count || found.index == 0) refuse_earlier();
  IMBREX_CUDA_TRY(cudaMemcpy(index.data(), static_cast<const std::byte*>(bags.indices) + position * bytes,
                             static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost));
  std::int64_t bag = 0;
  while (bag < all - 1 && offset(bag + 1) <= position) ++bag;
  const std::int64_t value = index_at(index.data(), bags.type, 0);
  const std::int64_t rows = tables[static_cast<std::size_t>(bag / bags.batch)].count;
  if (value >= 0 && value < rows) refuse_earlier();
  refuse_index(bag / bags.batch, bag % bags.batch, position, value, rows);
}

}  // namespace imbrex::embedding
