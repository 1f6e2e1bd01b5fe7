// A build without CUDA.
#include "apps/common/check.hpp"
#include "apps/sparse/launches.hpp"

namespace imbrex::apps::sparse {

template <typename T>
const Launches<T>& gpu_launches() {
  throw Error(ErrorCode::invalid_input, "this build of Imbrex has no CUDA parts; build it where nvcc is found");
}
template const Launches<float>& gpu_launches<float>();
template const Launches<double>& gpu_launches<double>();

}  // namespace imbrex::apps::sparse
