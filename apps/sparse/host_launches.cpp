// The solve's kernels for the CPU.
#include <cstring>

#include "apps/sparse/launches.hpp"

namespace imbrex::apps::sparse {

template <typename T>
const Launches<T>& host_launches() {
  static const Launches<T> launches =
      launches_here<T, 1>([](shmem::Heap&, std::uint32_t, bool) { return 0u; },
                          [](shmem::Heap&, const void* bytes, std::size_t count) {
                            const std::shared_ptr<std::byte[]> memory(new std::byte[count]);
                            std::memcpy(memory.get(), bytes, count);
                            return std::shared_ptr<void>(memory, memory.get());
                          });
  return launches;
}
template const Launches<float>& host_launches<float>();
template const Launches<double>& host_launches<double>();

}  // namespace imbrex::apps::sparse
