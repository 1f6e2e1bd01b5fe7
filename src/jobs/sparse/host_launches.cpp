// The solve's kernels for the CPU.
#include "jobs/sparse/launches.hpp"

namespace imbrex::jobs::sparse {

template <typename T>
const Launches<T>& host_launches() {
  static const Launches<T> launches = launches_here<T, 1>([](shmem::Heap&, std::uint32_t, bool) { return 0u; });
  return launches;
}
template const Launches<float>& host_launches<float>();
template const Launches<double>& host_launches<double>();

}  // namespace imbrex::jobs::sparse
