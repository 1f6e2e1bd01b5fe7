#include "execute/cuda/products/kernel_choice.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "base/check.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/tables/translate.hpp"
#include "plan/problem.hpp"

namespace imbrex::cuda {
namespace {

// Cycles that a variant's blocks take over the plan: whole waves of tiles, idle peer CTAs counted as tiles, as measured
// on an H200 (docs/performance.md).
double cost(const KernelVariant& kernel, const TileCounts& tiles, ClusterMode cluster, int workers,
            std::int64_t depth) {
  const TileShape& shape = kernel.shape;
  const double entries = static_cast<double>(tiles.all + count_beside_idle(shape, tiles, cluster)),
               at_once = static_cast<double>(workers) * shape.cluster;
  const double waves = std::max(1.0, std::ceil(entries / at_once));
  if (shape.sharing == Sharing::k) depth /= shape.cluster;
  const auto size = static_cast<double>(shape.m * shape.n);
  // Up to 128 columns, shared memory feeds the tensor cores a little too slowly. Without a peer CTA to share B with, a
  // small block waits for L2.
  const double slice = size / (128 * 128) * (shape.n > 128 ? 515 : 575), rate = shape.cluster > 1 ? 1.0
                                                                                : shape.n < 256   ? 0.82
                                                                                                  : 0.98;
  const double product =
      slice / rate * static_cast<double>(depth * static_cast<std::int64_t>(size_of(kernel.type))) / 128;
  // One group stores its tile while the other multiplies, or both share in a tile and store it in half the time.
  const double store = 1500 + 21 * size / (kernel.pingpong ? 128 : 256);
  return waves * product + (kernel.pingpong ? store : waves * store);
}

}  // namespace

// As Pairs makes them: kernels with split-K within a cluster ignore the pairs of a plan for others.
std::size_t count_beside_idle(const TileShape& shape, const TileCounts& tiles, ClusterMode cluster) {
  if (shape.cluster == 1) return 0;
  return shape.sharing == Sharing::k && cluster != ClusterMode::share_k ? tiles.all : tiles.alone;
}

bool asked_for(const KernelVariant& k, int generation, const CudaOptions& options) {
  // NOTE: even to ask such a kernel for its workers takes seconds on Hopper, where the driver compiles it first.
  if (k.anywhere && generation == 9) return !options.kernel.empty() && k.name.starts_with(options.kernel);
  return k.name.find(options.kernel) != std::string_view::npos;
}

// Ranks that share a GPU must all run at once, and so must the driver's own kernels, some of its copies among
// these.
int workers_of_rank(const KernelVariant& kernel, int all, int ranks_per_gpu, int kept_free) {
  const int cluster = kernel.shape.cluster;
  if (all > 0) all = std::max(all - (kept_free + cluster - 1) / cluster, 1);
  if (ranks_per_gpu == 1 || all == 0) return all;
  constexpr int others = 16;
  return std::max((all - others / cluster) / ranks_per_gpu, 1);
}

const KernelVariant& choose_kernel(const Plan& frame, const TableSurvey& survey, const TileCounts& tiles,
                                   const Kernels& kernels, const CudaOptions& options) {
  const auto own_workers = [&](const KernelVariant& k) {
    return workers_of_rank(k, kernels.workers(k), options.ranks_per_gpu, survey.kept_free());
  };
  const Extent tile = survey.largest_tile();
  const Layout b_layout = plan::layout_of_b(frame.problem);
  const ClusterMode cluster = survey.cluster();
  const std::int64_t depth = shapes_of(frame.problem).depth;
  double least = 0;
  const std::string tma = survey.refusal_of_tma();
  const KernelVariant* best = nullptr;
  const auto consider = [&](auto&& wanted) {
    for (const KernelVariant* each : kernels.tensor_core) {
      const KernelVariant& k = *each;
      if (!wanted(k) || k.type != frame.problem.type || k.b_layout != b_layout || tile.rows > k.shape.m ||
          tile.cols > k.shape.n || !fits(frame, survey, k.shape) || !asked_for(k, kernels.generation, options))
        continue;
      const int workers = own_workers(k);
      if (workers == 0) continue;
      const double c = cost(k, tiles, cluster, workers, depth);
      if (best != nullptr && c >= least) continue;
      least = c;
      best = &k;
    }
  };
  const auto in_clusters = [&](const KernelVariant& k) {
    if (cluster == ClusterMode::share_k) return k.shape.sharing == Sharing::k;
    if (k.shape.sharing != Sharing::b) return false;
    return cluster == ClusterMode::any || k.anywhere || k.shape.cluster == (cluster == ClusterMode::single ? 1 : 2);
  };
  if (tma.empty()) consider(in_clusters);
  // Clusters are a wish: without a kernel that grants it, or where one is named, another is faster than the plain one.
  if (tma.empty() && best == nullptr)
    consider([&](const KernelVariant& k) { return k.shape.sharing == Sharing::b || !options.kernel.empty(); });
  if (best == nullptr && kernels.plain->name.find(options.kernel) != std::string_view::npos) best = kernels.plain;
  IMBREX_EXPECTS(best != nullptr && own_workers(*best) > 0,
                 "no kernel named like '{}' runs {} tiles of {} x {}{} on this GPU{}{}", options.kernel,
                 name_of(frame.problem.type), tile.rows, tile.cols,
                 frame.problem.b_layout == Layout::row_major ? "" : " with B nxk",
                 tma.empty() ? "" : ": tensor-memory loads cannot take ", tma);
  // On one GPU, all streams' copies share a queue: the next epoch's, which wait for this rank's kernel, would stand
  // before those of another rank that the kernel waits for.
  IMBREX_EXPECTS(options.ranks_per_gpu == 1 || !survey.copies(), "{}", refusal_of_shared_copies(options.ranks_per_gpu));
  const int all = kernels.workers(*best);
  IMBREX_EXPECTS(options.ranks_per_gpu <= all,
                 "{} ranks to a GPU: each needs a worker of its own, and this GPU runs {} of kernel '{}' at once",
                 options.ranks_per_gpu, all, best->name);
  return *best;
}

}  // namespace imbrex::cuda
