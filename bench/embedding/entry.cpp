// What bench/embedding/measure.py calls: lookups on memory that torch owns, alone and as of one of several ranks, whose
// peers are always ready and whose outputs lie in this GPU, too; and a kernel that only reads.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/cuda_check.hpp"
#include "embedding/cuda/cuda_look_up.hpp"
#include "imbrex/error.hpp"

namespace {

using namespace imbrex;
using namespace imbrex::embedding;

thread_local std::string message;

template <typename Call>
int told(Call&& call) {
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    message = error.what();
    return 1;
  }
}

std::vector<Table> tables_of(int count, const std::int64_t* rows, const std::int32_t* dims, void* const* addresses,
                             TableRows type) {
  std::vector<Table> tables;
  std::int32_t column = 0;
  for (int t = 0; t < count; ++t) {
    tables.push_back({addresses[t], rows[t], dims[t] * size_of(type), 0, dims[t], column});
    column += dims[t];
  }
  return tables;
}

Bags bags_of(const void* indices, const void* offsets, std::int64_t count, std::int64_t batch, int wide) {
  return {indices, offsets, nullptr, count, batch, wide != 0 ? IndexType::int64 : IndexType::int32, Pooling::sum};
}

/// The first of `ranks` ranks. Its kernel stores to all of them, and posts.
class Joint {
 public:
  Joint(const Tables& tables, const LookUpShape& shape) : look_up_(tables, shape) {
    const auto ranks = static_cast<std::size_t>(shape.ranks);
    const std::size_t counters = ranks * static_cast<std::size_t>(shape.slices) * 4;
    state_ = imbrex::cuda::raw_memory(ranks * sizeof(imbrex::device::State) + counters);
    cuda::fill(state_.get(), 0, ranks * sizeof(imbrex::device::State) + counters);
    void* fault = nullptr;
    IMBREX_CUDA_TRY(cudaHostAlloc(&fault, sizeof *fault_, cudaHostAllocMapped));
    fault_ = static_cast<imbrex::device::Fault*>(std::memset(fault, 0, sizeof *fault_));
    auto* states = static_cast<imbrex::device::State*>(state_.get());
    constexpr std::uint32_t limit = imbrex::device::ticks_of(10'000'000'000);
    peers_.group = {.own = states,
                    .states = reinterpret_cast<std::byte*>(states),
                    .stride = sizeof(imbrex::device::State),
                    .limit = limit,
                    .look_after = limit,
                    .fault = fault_,
                    .rank = 0,
                    .ranks = static_cast<std::uint32_t>(ranks),
                    .readers = look_up_.blocks(),
                    .pause_seed = 0,
                    .max_pause_ns = 0,
                    .entry_limit = 0};
    auto* done = reinterpret_cast<std::uint32_t*>(states + ranks);
    for (std::size_t d = 0; d < ranks; ++d)
      peers_.to.push_back({nullptr, done + d * static_cast<std::size_t>(shape.slices), nullptr, 0, 0});
  }
  ~Joint() { cudaFreeHost(fault_); }
  Joint(const Joint&) = delete;
  Joint& operator=(const Joint&) = delete;

  void launch(const Bags& bags, void* const* parts, cudaStream_t stream) {
    look_up_.launch(bags, parts, stream, &peers_);
  }

 private:
  CudaLookUp look_up_;
  imbrex::cuda::RawMemory state_;
  imbrex::device::Fault* fault_ = nullptr;
  LookUpPeers peers_;
};

}  // namespace

extern "C" {

/// The message of the last call that gave 1, or null.
const char* embedding_error() { return message.c_str(); }

/// A lookup in `tables` tables, side by side in the output: rows[t] rows of dims[t] columns at addresses[t]. Types as
/// in TableRows and imbrex::Type; 0 bytes, 0 blocks, 0 kept bytes: the usual. Null: see embedding_error.
void* embedding_make(int tables, const std::int64_t* rows, const std::int32_t* dims, void* const* addresses,
                     int row_type, std::int64_t batch, int out_type, std::uint32_t item_bytes,
                     std::uint32_t blocks_per_sm, std::int64_t kept_bytes) {
  CudaLookUp* made = nullptr;
  told([&] {
    const auto type = static_cast<TableRows>(row_type);
    const std::vector<Table> table = tables_of(tables, rows, dims, addresses, type);
    const std::int32_t column = table.back().column + table.back().dim;
    made = new CudaLookUp({table.data(), tables, type}, {batch, static_cast<imbrex::Type>(out_type), column},
                          {item_bytes, blocks_per_sm, 0, kept_bytes});
  });
  return made;
}

void embedding_free(void* made) { delete static_cast<CudaLookUp*>(made); }

int embedding_launch(void* made, const void* indices, const void* offsets, std::int64_t count, std::int64_t batch,
                     int wide, void* out, void* stream) {
  return told([&] {
    static_cast<CudaLookUp*>(made)->launch(bags_of(indices, offsets, count, batch, wide), &out,
                                           static_cast<cudaStream_t>(stream));
  });
}

/// Waits; 1 where an index or offset did not fit.
int embedding_check(void* made, const void*, const void*, std::int64_t, std::int64_t, int, void* stream) {
  return told([&] { static_cast<CudaLookUp*>(made)->findings(static_cast<cudaStream_t>(stream), Misfits::refused); });
}

/// Makes the lookup of the first of `ranks` ranks, which posts `slices` slices to each.
void* embedding_make_joint(int tables, const std::int64_t* rows, const std::int32_t* dims, void* const* addresses,
                           int row_type, std::int64_t batch, int out_type, int ranks, int slices) {
  Joint* made = nullptr;
  told([&] {
    const auto type = static_cast<TableRows>(row_type);
    const std::vector<Table> table = tables_of(tables, rows, dims, addresses, type);
    LookUpShape shape{batch, static_cast<imbrex::Type>(out_type), table.back().column + table.back().dim};
    shape.ranks = ranks, shape.slices = slices;
    made = new Joint({table.data(), tables, type}, shape);
  });
  return made;
}

void embedding_free_joint(void* made) { delete static_cast<Joint*>(made); }

/// `parts`: where each rank's rows go.
int embedding_launch_joint(void* made, const void* indices, const void* offsets, std::int64_t count, std::int64_t batch,
                           int wide, void* const* parts, void* stream) {
  return told([&] {
    static_cast<Joint*>(made)->launch(bags_of(indices, offsets, count, batch, wide), parts,
                                      static_cast<cudaStream_t>(stream));
  });
}

}  // extern "C"
