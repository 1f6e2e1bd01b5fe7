// The tiles that GPU kernels on tensor cores compute. What fits none runs on the plain kernel, which has none: so do
// tiles whose slots, laid out by registers, are smaller than a kernel's.
#pragma once

#include <span>

#include "execute/cuda/products/variants.hpp"
#include "imbrex/plan.hpp"
#include "plan/given_knobs.hpp"

namespace imbrex::choose {

/// Tiles of the kernels that a build with all CUDA parts has; some come twice, of two kernels.
constexpr std::span<const cuda::KernelTile> kernel_tiles() { return cuda::kernel_tiles; }

/// Whether there are some for the type; or one of this size, without shared K, and for clusters of so many blocks (0:
/// any).
bool has_kernel_tiles(Type type, bool hopper);
bool has_kernel_tile(Type type, bool hopper, std::int64_t rows, std::int64_t cols, int cluster = 0);

/// The same knobs, with the nearest tile that has a kernel, where there are some for the type. Nearest: of as many rows
/// if possible, then by the ratio of sizes. What a kernel does not do, clusters of a size or shared K, is not asked of
/// it. Given knobs stay: where no kernel has them, so do the others.
Knobs with_kernel_tile(Knobs knobs, Type type, bool hopper, const plan::GivenKnobs& given = {});

}  // namespace imbrex::choose
