// Which GPU a rank takes, and how many ranks have one GPU. Host code, built everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// What a rank tells of its GPU.
struct Seat {
  char uuid[64] = {}, name[64] = {};  ///< end with a zero byte
  std::int32_t visible = 0;           ///< GPUs that its process sees
};

/// How many ranks share each GPU, where an option says `given`: one leaves it to the world's.
inline int ranks_per_gpu_of(const World& world, int given = 1) {
  return given == 1 ? world.options().ranks_per_gpu : given;
}

/// The number of the GPU that a rank takes of the `visible` ones: those that the ranks need where its process sees so
/// many, else, where it sees one, that one, as launchers arrange it for processes. `threads`: ranks are threads.
/// `given`: the world's options name it. Throws Error(invalid_input) for a number of ranks a GPU below 1, and
/// Error(runtime_failure) naming how many GPUs are needed, or the given one that is none.
int own_gpu(int rank, int ranks, int ranks_per_gpu, int visible, bool threads, std::optional<int> given = {});

/// Throws Error(runtime_failure) naming the ranks and the GPU if more than `ranks_per_gpu` ranks have the same one.
void expect_seats(std::span<const Seat> seats, int ranks_per_gpu);

}  // namespace imbrex::runtime
