// Which GPU a rank takes, how many ranks have one GPU, and how much of it their kernels take. Host code, built
// everywhere.
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
  std::int32_t sms = 0;               ///< that it has
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

/// Throws Error(invalid_input) naming ranks and values unless all ranks, whose values these are, keep as many SMs for
/// kernels of others: slots of kernels lie where the number of blocks puts them, on every rank alike.
void expect_same_sms(std::span<const int> sms_for_others);

/// Throws Error(invalid_input) naming rank, GPU and values where a GPU has no SM for each of the ranks that share it
/// beside those.
void expect_sms(std::span<const Seat> seats, int ranks_per_gpu, int sms_for_others);

/// Clusters of `cluster` blocks, of `all` that run at once, that leave so many of `sms` SMs alone wherever they start.
// NOTE: blocks spread over all SMs before two share one. So there are no more of them than SMs that they may take.
int clusters_beside(int all, int cluster, int sms, int sms_for_others);

/// Blocks of a rank's collectives, each of which may want an SM of its own. Ranks that share a GPU leave half of it:
/// else blocks that wait keep the SMs that a peer's earlier kernel needs, and wait for that for ever.
int collective_blocks(int sms, int ranks_per_gpu, int sms_for_others);

/// Blocks of a rank's lookup, three of which fit on an SM; 0: as many as fit.
int look_up_blocks(int sms, int ranks_per_gpu, int sms_for_others);

}  // namespace imbrex::runtime
