// One PE's part in a relaxation, on the CPU or on a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/jacobi/field.hpp"
#include "apps/jacobi/request.hpp"
#include "imbrex/world.hpp"

namespace imbrex::apps::jacobi {

/// All calls are collective.
class Solver {
 public:
  virtual ~Solver() = default;

  /// The field and all words as they are at first.
  virtual void start() = 0;
  /// Queues all sweeps, or does them on the CPU. Throws Error where a wait ended.
  virtual void sweep() = 0;
  /// Waits for them. Throws Error where a wait ended.
  virtual void finish() = 0;

  /// This PE's field with its ring, as field() says.
  virtual std::vector<std::byte> result() = 0;
  /// Two words for each residual; PE 0's are whole.
  virtual std::vector<std::uint64_t> sums() = 0;
  virtual const Field& field() const = 0;
  /// As JacobiResult::blocks.
  virtual std::string blocks() const = 0;
};

/// Longest side of a tile, a bound for what its boxes take.
inline constexpr std::uint32_t longest_tile = 1 << 13;

/// Bytes that a PE takes of a heap at most.
std::size_t heap_bytes_of(const JacobiRequest& request, Device device);

/// The cut in at most `blocks` tiles whose largest has the fewest patches of that size, a thread each; none where each
/// has more than `threads`.
std::optional<Tiling> cut(const Field& field, std::uint32_t blocks, std::uint32_t threads, std::uint32_t patch_rows,
                          std::uint32_t patch_columns);

/// Throws Error(invalid_input): so many blocks do not hold the field.
[[noreturn]] void refuse_to_hold(const Field& field, const JacobiRequest& request, std::uint32_t blocks);

/// What blocks do, for people; `tiling`: where they hold tiles.
std::string words_of(const JacobiRequest& request, const std::optional<Tiling>& tiling, std::uint32_t blocks);

/// Blocks that the CPU runs at most.
std::uint32_t host_blocks_of(const JacobiRequest& request);

/// `grid_rows` x `grid_columns` PEs.
std::unique_ptr<Solver> cpu_solver(World& world, const JacobiRequest& request, std::uint32_t grid_rows,
                                   std::uint32_t grid_columns);
/// Throws Error(invalid_input) in a build without CUDA, and where a GPU cannot hold what is asked for.
std::unique_ptr<Solver> cuda_solver(World& world, const JacobiRequest& request, std::uint32_t grid_rows,
                                    std::uint32_t grid_columns);

}  // namespace imbrex::apps::jacobi
