#include "collectives/cuda/coded.hpp"

#include <vector>

#include "collectives/cuda/coded_entries.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

const std::vector<CodedEntry>& entries(Type type) {
  const auto make = [](std::initializer_list<std::span<const CodedEntry>> parts) {
    std::vector<CodedEntry> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  static const std::vector<CodedEntry> tables[] = {
      make({coded_bf16_int8(), coded_bf16_int4(), coded_bf16_odd()}), make({coded_fp16()}), {}};
  return tables[static_cast<std::size_t>(type)];
}

bool same_form(const Codec& a, const Codec& b) {
  return a.format == b.format && a.asymmetric == b.asymmetric && a.scale == b.scale;
}

template <typename... Kind>
const void* chosen(Type type, const void* (*bf16)(Kind...), const void* (*fp16)(Kind...), const void* (*fp32)(Kind...),
                   Kind... kind) {
  return type == Type::bf16 ? bf16(kind...) : type == Type::fp16 ? fp16(kind...) : fp32(kind...);
}

}  // namespace

CodedKernel coded_one_shot_kernel(Type type) {
  return {chosen(type, coded_one_shot_bf16, coded_one_shot_fp16, coded_one_shot_fp32), false};
}

CodedKernel coded_ring_kernel(Type type) {
  return {chosen(type, coded_ring_bf16, coded_ring_fp16, coded_ring_fp32), false};
}

CodedKernel coded_exchange_kernel(ExchangeKind kind, Type type) {
  return {chosen(type, coded_exchange_bf16, coded_exchange_fp16, coded_exchange_fp32, kind), false};
}

CodedKernel coded_any_kernel(Type type) {
  return {chosen(type, coded_any_bf16, coded_any_fp16, coded_any_fp32), false};
}

CodedKernel coded_kernel(Type type, std::uint32_t ranks, const CodecPair& pair, bool tolerant) {
  for (const CodedEntry& entry : entries(type))
    if (!tolerant && same_form(entry.pair.reduce_scatter, pair.reduce_scatter) &&
        same_form(entry.pair.all_gather, pair.all_gather))
      return entry.kernels[ranks > 4 ? 1 : 0];
  return coded_any_kernel(type);
}

void load_coded_kernels() {
  const auto load = [](const CodedKernel& kernel) {
    cudaFuncAttributes attributes{};
    IMBREX_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel.function));
    if (kernel.staged)
      IMBREX_CUDA_TRY(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(most_staged_bytes)));
  };
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32}) {
    load(coded_one_shot_kernel(type));
    load(coded_ring_kernel(type));
    for (const ExchangeKind kind : {ExchangeKind::reduce_scatter, ExchangeKind::all_gather, ExchangeKind::all_to_all})
      load(coded_exchange_kernel(kind, type));
    load(coded_any_kernel(type));
    for (const CodedEntry& entry : entries(type))
      for (const CodedKernel& kernel : entry.kernels) load(kernel);
  }
}

}  // namespace imbrex::cuda
