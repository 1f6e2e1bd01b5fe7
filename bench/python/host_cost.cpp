// What host_cost.py measures Python against: an operator of the library, called from C++, and operators for torch that
// do nothing but take their arguments and, where none is given, make a result.
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "imbrex/c.h"
#include "torch_abi.hpp"

namespace {

struct Taken {
  AtenTensorHandle a, b;
  StringHandle group;

  explicit Taken(StableIValue*& stack)
      : a(reinterpret_cast<AtenTensorHandle>(stack[0])),
        b(reinterpret_cast<AtenTensorHandle>(stack[1])),
        group(reinterpret_cast<StringHandle>(stack[2])) {
    stack += 4;  // the last is a number
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  ~Taken() {
    aoti_torch_delete_tensor_object(a);
    aoti_torch_delete_tensor_object(b);
    torch_delete_string(group);
  }
};

void nothing(StableIValue* stack, std::uint64_t, std::uint64_t) {
  StableIValue* const result = stack;
  const std::int64_t parts = static_cast<std::int64_t>(stack[3]);
  const Taken taken(stack);
  std::int64_t *rows = nullptr, *columns = nullptr;
  std::int32_t type = 0, device = 0, index = 0;
  aoti_torch_get_sizes(taken.a, &rows);
  aoti_torch_get_sizes(taken.b, &columns);
  aoti_torch_get_dtype(taken.a, &type);
  aoti_torch_get_device_type(taken.a, &device);
  aoti_torch_get_device_index(taken.a, &index);
  const std::int64_t sizes[] = {rows[0] / parts, columns[1]};
  const std::int64_t strides[] = {columns[1], 1};
  AtenTensorHandle made = nullptr;
  aoti_torch_empty_strided(2, sizes, strides, type, device, index, &made);
  result[0] = reinterpret_cast<StableIValue>(made);
}

void nothing_out(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Taken taken(stack);
  aoti_torch_delete_tensor_object(reinterpret_cast<AtenTensorHandle>(*stack));
}

const bool registered = [] {
  TorchLibraryHandle definitions = nullptr;
  aoti_torch_library_init_def("imbrex_bench", __FILE__, __LINE__, &definitions);
  aoti_torch_library_def(definitions, "nothing(Tensor a, Tensor b, str group, int parts) -> Tensor");
  aoti_torch_library_def(definitions, "nothing_out(Tensor a, Tensor b, str group, int parts, *, Tensor(a!) out) -> ()");
  for (const char* key : {"CPU", "CUDA"}) {
    TorchLibraryHandle implementations = nullptr;
    aoti_torch_library_init_impl("imbrex_bench", key, __FILE__, __LINE__, &implementations);
    torch_library_impl(implementations, "nothing", nothing, imbrex_torch::abi_version);
    torch_library_impl(implementations, "nothing_out", nothing_out, imbrex_torch::abi_version);
  }
  return true;
}();

}  // namespace

/// Seconds that the host takes for so many calls; less than 0: one failed.
extern "C" double imbrex_host_cost_burst(imbrex_operator* op, const imbrex_operand* operands, std::size_t count,
                                         void* stream, std::int32_t calls) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::int32_t i = 0; i < calls; ++i)
    if (imbrex_operator_run(op, operands, count, stream) != 0) return -1;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
