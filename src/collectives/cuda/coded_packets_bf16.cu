#include "collectives/cuda/coded_packets.cuh"

namespace imbrex::cuda {

std::span<const CodedEntry> coded_packets_bf16() {
  using enum CodeFormat;
  static const CodedEntry entries[] = {
      packet_entry<Type::bf16, Usual<int8>, Usual<int8>>(), packet_entry<Type::bf16, Usual<fp8>, Usual<fp8>>(),
      packet_entry<Type::bf16, Usual<int4>, Usual<int8>>(), packet_entry<Type::bf16, Usual<int4>, Usual<int4>>()};
  return entries;
}

}  // namespace imbrex::cuda
