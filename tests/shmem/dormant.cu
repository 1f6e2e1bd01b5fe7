#include "shmem/dormant.hpp"

namespace imbrex::shmem::test {

template __global__ void sweep<Where::nowhere>(const float*, float*, int, int, float*, Dormant);
template __global__ void sweep<Where::behind>(const float*, float*, int, int, float*, Dormant);
template __global__ void sweep<Where::within>(const float*, float*, int, int, float*, Dormant);
template __global__ void sweep<Where::widely>(const float*, float*, int, int, float*, Dormant);

}  // namespace imbrex::shmem::test
