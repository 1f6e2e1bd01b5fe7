#include "apps/jacobi/solver.hpp"

#include <algorithm>
#include <utility>

#include "apps/common/names.hpp"

namespace imbrex::apps {
namespace {

constexpr std::array<std::string_view, 5> ways{"kernel_boundaries", "graph", "overlapped", "in_kernel", "ring"};
constexpr std::array<std::string_view, 3> tiles{"auto", "held", "streamed"};

}  // namespace

std::string_view name_of(JacobiWay way) { return ways[static_cast<std::size_t>(way)]; }
std::string_view name_of(JacobiTile tile) { return tiles[static_cast<std::size_t>(tile)]; }
JacobiWay parse_jacobi_way(std::string_view text) { return value_named<JacobiWay>(ways, text, "a way"); }
JacobiTile parse_jacobi_tile(std::string_view text) { return value_named<JacobiTile>(tiles, text, "a tile"); }

namespace jacobi {

std::uint32_t host_blocks_of(const JacobiRequest& request) {
  return request.blocks > 0 ? static_cast<std::uint32_t>(request.blocks) : 4;
}

std::size_t heap_bytes_of(const JacobiRequest& request, Device device) {
  const auto rows = static_cast<std::uint32_t>(request.rows), columns = static_cast<std::uint32_t>(request.columns);
  const bool wide = request.type == "fp64";
  const Field field = wide ? field_of<double>(rows, columns, 1, 1, 0) : field_of<float>(rows, columns, 1, 1, 0);
  const std::size_t fields = 2 * field.elements() * (wide ? sizeof(double) : sizeof(float));
  // A block's boxes, of both parities and all sides, with what patches may stand over; and its signals.
  constexpr std::size_t most_multiprocessors = 256, over = 64, packet = 16;
  const std::size_t blocks = device == Device::cuda ? most_multiprocessors : host_blocks_of(request);
  const std::size_t longest = std::min(std::max(rows, columns), longest_tile);
  const std::size_t boxes = request.way == JacobiWay::in_kernel ? blocks * sides * 2 * (longest + over) * packet : 0;
  const auto sums = static_cast<std::size_t>(request.sweeps / request.every) * 16;
  // Columns apart, and what contexts of rings have.
  const std::size_t apart = request.way == JacobiWay::ring ? 8 * (rows * sizeof(double) + 256) + 2 * blocks * 2048 : 0;
  return fields + boxes + 2 * blocks * sides * sizeof(shmem::Signal) + sums + apart + (std::size_t{1} << 20);
}

std::optional<Tiling> cut(const Field& field, std::uint32_t blocks, std::uint32_t threads, std::uint32_t patch_rows,
                          std::uint32_t patch_columns) {
  std::optional<Tiling> best;
  const auto over = [](std::uint32_t n, std::uint32_t by) { return (n + by - 1) / by; };
  const auto cost = [](const Tiling& t) { return std::pair{t.threads(), t.rows + t.columns}; };
  for (std::uint32_t down = 1; down <= std::min(blocks, field.rows); ++down)
    for (std::uint32_t across = 1; across <= std::min(blocks / down, field.columns); ++across) {
      Tiling tiling{down, across, over(field.rows, down), over(field.columns, across), patch_rows, patch_columns};
      // Rounded up, the last ones could be empty.
      tiling.down = over(field.rows, tiling.rows), tiling.across = over(field.columns, tiling.columns);
      tiling.patches_down = over(tiling.rows + 2, patch_rows);
      tiling.patches_across = over(tiling.columns + 2, patch_columns);
      tiling.box = std::max(tiling.patches_down * patch_rows, tiling.patches_across * patch_columns);
      if (std::uint64_t{tiling.patches_down} * tiling.patches_across > threads ||
          std::max(tiling.rows, tiling.columns) > longest_tile)
        continue;
      if (!best || cost(tiling) < cost(*best)) best = tiling;
    }
  return best;
}

void refuse_to_hold(const Field& field, const JacobiRequest& request, std::uint32_t blocks) {
  throw Error(ErrorCode::invalid_input, fmt::format("tile held: {} blocks have no registers for {} x {} elements of {}",
                                                    blocks, field.rows, field.columns, request.type));
}

std::string words_of(const JacobiRequest& request, const std::optional<Tiling>& tiling, std::uint32_t blocks) {
  const bool by_ring = request.way == JacobiWay::ring;
  if (request.way != JacobiWay::in_kernel && !by_ring) return "a thread sweeps 4 rows of 16 bytes";
  if (by_ring) return fmt::format("{} bands of rows, streamed, and rings to other PEs", blocks);
  if (!tiling) return fmt::format("{} bands of rows, streamed", blocks);
  return fmt::format("{} tiles of {} x {}, held in patches of {} x {}", blocks, tiling->rows, tiling->columns,
                     tiling->patch_rows, tiling->patch_columns);
}

}  // namespace jacobi
}  // namespace imbrex::apps
