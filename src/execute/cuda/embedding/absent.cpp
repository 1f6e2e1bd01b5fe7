// A build without CUDA.
#include "execute/cuda/embedding/bag_rounds.hpp"
#include "execute/cuda/embedding/bags_on_gpu.hpp"
#include "execute/cuda/embedding/table_update.hpp"
#include "imbrex/error.hpp"

namespace imbrex::cuda {

WorkOnGpu bags_on_gpu() { return {plan::bags_kind, "lookup", "look_up", refusal_of_bags, bag_launches, nullptr}; }

std::unique_ptr<TableUpdate> make_table_update(const embedding::Tables&, const embedding::Step&, std::int64_t,
                                               std::int64_t) {
  throw Error(ErrorCode::invalid_input, "this build of Imbrex has no CUDA parts; build it where nvcc is found");
}

}  // namespace imbrex::cuda
