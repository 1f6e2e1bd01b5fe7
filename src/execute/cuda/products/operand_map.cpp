#include "execute/cuda/products/operand_map.hpp"

#include "imbrex/error.hpp"
#include "runtime/cuda/driver.hpp"

namespace imbrex::cuda {
namespace {

CUtensorMapDataType data_type_of(Type type) {
  switch (type) {
    case Type::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Type::fp16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case Type::fp32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Type::e4m3: break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

CUtensorMap operand_map(Type type, const void* address, std::int64_t length, std::int64_t lines, std::int64_t pitch,
                        TmaBox box) {
  const auto element = static_cast<std::uint32_t>(size_of(type));
  const std::uint32_t line = box.inner * element;
  // The kernels' coordinates have a third place, for batches of products, which is always 0.
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(length), static_cast<cuuint64_t>(lines), 1};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(pitch) * element, 0};
  const cuuint32_t boxes[] = {box.inner, box.outer, 1}, steps[] = {1, 1, 1};
  if (runtime::driver().encode_tensor_map == nullptr)
    throw Error(ErrorCode::runtime_failure, "the CUDA driver has no cuTensorMapEncodeTiled: it is older than CUDA 12");
  CUtensorMap map;
  IMBREX_DRIVER_TRY(encode_tensor_map, &map, data_type_of(type), 3, const_cast<void*>(address), sizes, strides, boxes, steps,
                    CU_TENSOR_MAP_INTERLEAVE_NONE,
                    line == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

}  // namespace imbrex::cuda
