// How a variant of the GEMM for Hopper is launched: its grid, and which tensor maps its operands have.
#pragma once

#include <algorithm>
#include <bit>

#include "execute/cuda/products/gemm.hpp"
#include "execute/cuda/products/operand_map.hpp"
#include "execute/cuda/products/sm90/gemm.cuh"

namespace imbrex::cuda {

template <typename Config>
struct Sm90Launcher {
  using Gemm = Sm90Gemm<Config>;
  using Mainloop = typename Gemm::Mainloop;
  static constexpr int shared_bytes = static_cast<int>(sizeof(typename Gemm::SharedStorage));

  static cudaLaunchConfig_t configuration(int workers, bool early, cudaStream_t stream,
                                          cudaLaunchAttribute (&attributes)[2]) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(workers * Config::cluster));
    config.blockDim = dim3(Gemm::threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {Config::cluster, 1, 1};
    attributes[1] = early_launch(early);
    config.attrs = attributes;
    config.numAttrs = 2;
    return config;
  }

  static int workers() {
    int device = 0, major = 0, clusters = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major != 9)
      return 0;
    if (cudaFuncSetAttribute(sm90_gemm<Config>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) !=
        cudaSuccess)
      return 0;
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config = configuration(1, true, nullptr, attributes);
    if (cudaOccupancyMaxActiveClusters(&clusters, sm90_gemm<Config>, &config) != cudaSuccess) return 0;
    return clusters;
  }

  /// What a load of A brings at most, and one of B. A line of B by rows is as long as the swizzle that the tile's columns
  /// allow; the blocks that share B load a part of it each.
  static constexpr std::uint32_t elements = 128 / sizeof(typename Gemm::Element);
  static constexpr TmaBox box_of_a{elements, Config::tile_m};
  static constexpr std::uint32_t sharing = cute::size(typename Gemm::Multicast{});
  static constexpr TmaBox box_of_b =
      Gemm::b_by_columns ? TmaBox{elements, Config::tile_n / sharing}
                         : TmaBox{Config::tile_n % elements == 0 ? elements : elements / 2, Config::tile_k / sharing};
  // The main loop's loads expect as many elements, those that other blocks bring among them.
  static_assert(decltype(Mainloop::Params::tma_load_a)::NumValSrc == box_of_a.inner * box_of_a.outer &&
                decltype(Mainloop::Params::tma_load_b)::NumValSrc == box_of_b.inner * box_of_b.outer * sharing);
  // Beside its map, nothing in an operand's part of the main loop's parameters depends on where the operand lies.
  template <typename Tma>
  static constexpr bool only_a_map = cute::is_static<decltype(Tma{}.aux_params_.g_stride_)>::value;
  static_assert(only_a_map<decltype(Mainloop::Params::tma_load_a)> &&
                only_a_map<decltype(Mainloop::Params::tma_load_b)>);

  /// Rows that a load of A brings, of the tile's: no more than are there, up to a power of two.
  // NOTE: rows beyond a map's end take longer to fill than others to load: 16 x 12288 x 12288 took 115 us, with 64 rows
  // 79.
  static int rows_of_a_load(const GemmArgs& args) {
    const std::int64_t most = std::clamp<std::int64_t>(std::max(args.a_rows[0], args.a_rows[1]), 8, Config::tile_m);
    return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(most)));
  }

  static cudaError_t launch(const GemmArgs& args, int workers, TensorMaps& maps, bool early, cudaStream_t stream) {
    const auto* kernel = reinterpret_cast<const void*>(&sm90_gemm<Config>);
    typename Gemm::Params params{{}, {}, {}, args, static_cast<std::uint32_t>(workers)};
    const int load = rows_of_a_load(args);
    params.mainloop.tma_transaction_bytes -= static_cast<std::uint32_t>((Config::tile_m - load) * Config::row_bytes);
    for (int source = 0; source < 2; ++source)
      for (int copy = 0; copy < 2; ++copy) {
        const TensorMapKey key{kernel, false, args.a[source][copy], args.a_rows[source], args.k, args.lda[source]};
        params.a[source][copy] = maps.get(key, [&] {
          return operand_map(Config::type, key.address, args.k, key.rows, key.pitch,
                             {box_of_a.inner, static_cast<std::uint32_t>(load)});
        });
      }
    params.mainloop.tma_load_a.tma_desc_ = params.a[0][0];
    for (int product = 0; product < most_products; ++product) {
      const int of = args.b[product] != nullptr ? product : 0;
      const TensorMapKey key{kernel, true, args.b[of], args.k, args.n[of], args.ldb[of]};
      params.b[product] = of < product ? params.b[of] : maps.get(key, [&] {
        const std::int64_t n = args.n[of], length = Gemm::b_by_columns ? args.k : n;
        return operand_map(Config::type, key.address, length, Gemm::b_by_columns ? n : args.k, key.pitch, box_of_b);
      });
    }
    params.mainloop.tma_load_b.tma_desc_ = params.b[0];
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config = configuration(workers, early, stream, attributes);
    return cudaLaunchKernelEx(&config, sm90_gemm<Config>, params);
  }
};

/// The table entry of a variant.
template <typename Config>
constexpr GemmKernel sm90_kernel(const char* name) {
  return {name,
          Config::type,
          {Config::tile_m, Config::tile_n, Config::cluster, true, Sm90Gemm<Config>::Tile::units,
           Sm90Gemm<Config>::shares_k ? 0u : Sm90Gemm<Config>::Slots::planes, Config::sharing, Config::tile_k,
           Config::stages},
          Config::pingpong,
          false,
          Config::b_layout,
          &Sm90Launcher<Config>::workers,
          &Sm90Launcher<Config>::launch};
}

}  // namespace imbrex::cuda
