// Tables of the CUDA executor, made without a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "execute/cuda/tables/translate.hpp"
#include "imbrex/error.hpp"

namespace imbrex::test {

inline HeapHandle pretend_heap(int rank) {
  return {reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40), std::size_t{1} << 32, rank};
}

inline cuda::RankTable table_of(const Plan& plan, int rank, const cuda::TileShape& shape) {
  const execute::HeapLayout layout(plan);
  return cuda::translate(plan, layout, rank, pretend_heap(rank), 4096, shape);
}

inline Plan plan_of(Operator op, const Knobs& knobs, std::int64_t m = 1024, std::int64_t n = 512, std::int64_t k = 256,
                    int ranks = 4) {
  return make_plan({op, m, n, k, ranks, Type::bf16}, Strategy::fused, knobs);
}

inline Knobs scatter_knobs() {
  Knobs k;
  k.transport = Transport::store;
  return k;
}

inline std::string refusal(const Plan& plan, const cuda::TileShape& shape) {
  try {
    table_of(plan, 0, shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "";
}

template <typename T>
bool same_bytes(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0);
}

// The table, or why there is none.
inline std::string table_or_refusal(const Plan& plan, int rank, const cuda::TileShape& shape, cuda::RankTable& table) {
  try {
    table = table_of(plan, rank, shape);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace imbrex::test
