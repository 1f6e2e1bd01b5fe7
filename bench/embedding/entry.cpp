// What bench/embedding/measure.py calls: lookups on memory that torch owns, and a kernel that only reads.
#include <string>
#include <vector>

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
    std::vector<Table> table;
    std::int32_t column = 0;
    const auto type = static_cast<TableRows>(row_type);
    for (int t = 0; t < tables; ++t) {
      table.push_back({addresses[t], rows[t], dims[t] * size_of(type), 0, dims[t], column});
      column += dims[t];
    }
    made = new CudaLookUp({table.data(), tables, type}, {batch, static_cast<imbrex::Type>(out_type), column},
                          {item_bytes, blocks_per_sm, 0, kept_bytes});
  });
  return made;
}

void embedding_free(void* made) { delete static_cast<CudaLookUp*>(made); }

int embedding_launch(void* made, const void* indices, const void* offsets, std::int64_t count, std::int64_t batch,
                     int wide, void* out, void* stream) {
  return told([&] {
    const Bags bags{indices,     offsets, nullptr, count, batch, wide != 0 ? IndexType::int64 : IndexType::int32,
                    Pooling::sum};
    static_cast<CudaLookUp*>(made)->launch(bags, &out, static_cast<cudaStream_t>(stream));
  });
}

/// Waits; 1 where an index or offset did not fit.
int embedding_check(void* made, const void* indices, const void* offsets, std::int64_t count, std::int64_t batch,
                    int wide, void* stream) {
  return told([&] {
    const Bags bags{indices,     offsets, nullptr, count, batch, wide != 0 ? IndexType::int64 : IndexType::int32,
                    Pooling::sum};
    static_cast<CudaLookUp*>(made)->findings(bags, static_cast<cudaStream_t>(stream), Misfits::refused);
  });
}

}  // extern "C"
