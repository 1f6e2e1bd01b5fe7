#include "collectives/cuda/coded.hpp"

#include <vector>

#include "collectives/cuda/coded_entries.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

// Those of any form last.
const std::vector<CodedEntry>& entries(Type type) {
  const auto make = [](std::initializer_list<std::span<const CodedEntry>> parts) {
    std::vector<CodedEntry> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  static const std::vector<CodedEntry> tables[] = {
      make({coded_bf16_int8(), coded_bf16_int4(), coded_bf16_odd(), coded_bf16_any()}), make({coded_fp16()}),
      make({coded_fp32()})};
  return tables[static_cast<std::size_t>(type)];
}

bool same_form(const Codec& a, const Codec& b) {
  return a.format == b.format && a.asymmetric == b.asymmetric && a.scale == b.scale;
}

}  // namespace

CodedKernel coded_one_shot_kernel(Type type) {
  return {type == Type::bf16   ? coded_one_shot_bf16()
          : type == Type::fp16 ? coded_one_shot_fp16()
                               : coded_one_shot_fp32(),
          1};
}

CodedKernel coded_ring_kernel(Type type) {
  return {type == Type::bf16 ? coded_ring_bf16() : type == Type::fp16 ? coded_ring_fp16() : coded_ring_fp32(), 1};
}

CodedKernel coded_exchange_kernel(ExchangeKind kind, Type type) {
  return {type == Type::bf16   ? coded_exchange_bf16(kind)
          : type == Type::fp16 ? coded_exchange_fp16(kind)
                               : coded_exchange_fp32(kind),
          1};
}

CodedKernel coded_kernel(Type type, std::uint32_t ranks, const CodecPair& pair, bool tolerant, std::uint32_t batch) {
  const std::vector<CodedEntry>& list = entries(type);
  const CodedEntry* found = &list.back();
  for (const CodedEntry& entry : list)
    if (!tolerant && !entry.any && same_form(entry.pair.reduce_scatter, pair.reduce_scatter) &&
        same_form(entry.pair.all_gather, pair.all_gather))
      found = &entry;
  return found->kernels[ranks > 4 ? 2 : batch == 1 ? 0 : 1];
}

void load_coded_kernels() {
  const auto load = [](const CodedKernel& kernel) {
    cudaFuncAttributes attributes{};
    IMBREX_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel.function));
  };
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32}) {
    load(coded_one_shot_kernel(type));
    load(coded_ring_kernel(type));
    for (const ExchangeKind kind : {ExchangeKind::reduce_scatter, ExchangeKind::all_gather, ExchangeKind::all_to_all})
      load(coded_exchange_kernel(kind, type));
    for (const CodedEntry& entry : entries(type))
      for (const CodedKernel& kernel : entry.kernels) load(kernel);
  }
}

}  // namespace imbrex::cuda
