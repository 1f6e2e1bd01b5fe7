// How a variant of the GEMM for Hopper is launched: its grid, and the tensor maps of its operands.
#pragma once

#include <algorithm>
#include <bit>

#include "execute/cuda/products/gemm.hpp"
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

  static cute::TmaDescriptor map_of_b(const GemmArgs& args, int product) {
    const std::int64_t n = args.n[product];
    typename Mainloop::StrideB stride_b{};
    cute::get<Gemm::b_by_columns ? 0 : 1>(stride_b) = args.ldb[product];
    // The operands' maps are made together; A's is map_of_a's.
    typename Mainloop::Arguments arguments{static_cast<const typename Gemm::Element*>(args.a[0][0]),
                                           {args.k, cute::_1{}, 0},
                                           static_cast<const typename Gemm::Element*>(args.b[product]),
                                           stride_b};
    const auto shape =
        cute::make_shape(static_cast<int>(args.a_rows[0]), static_cast<int>(n), static_cast<int>(args.k), 1);
    return *Mainloop::to_underlying_arguments(shape, arguments, nullptr).tma_load_b.get_tma_descriptor();
  }

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

  /// A map of the A that is `key`, of args.k columns, for loads of `load` rows.
  template <int Rows = 8>
  static cute::TmaDescriptor map_of_a(const GemmArgs& args, const TensorMapKey& key, int load) {
    using namespace cute;
    if constexpr (Rows < Config::tile_m)
      if (Rows < load) return map_of_a<2 * Rows>(args, key, load);
    const auto box = make_shape(Int<Rows>{}, Int<Config::tile_k>{});
    const auto operand = make_tensor(static_cast<const typename Gemm::Element*>(key.address),
                                     make_shape(static_cast<int>(key.rows), static_cast<int>(args.k), 1),
                                     make_stride(key.pitch, _1{}, std::int64_t{0}));
    const auto stage = tile_to_shape(typename Mainloop::SmemLayoutAtomA{}, box);
    return *make_tma_copy(SM90_TMA_LOAD{}, operand, stage, box, _1{}).get_tma_descriptor();
  }

  static cudaError_t launch(const GemmArgs& args, int workers, TensorMaps& maps, bool early, cudaStream_t stream) {
    const auto* kernel = reinterpret_cast<const void*>(&sm90_gemm<Config>);
    typename Gemm::Params params{{}, {}, {}, args, static_cast<std::uint32_t>(workers)};
    const int load = rows_of_a_load(args);
    params.mainloop.tma_transaction_bytes -= static_cast<std::uint32_t>((Config::tile_m - load) * Config::row_bytes);
    for (int source = 0; source < 2; ++source)
      for (int copy = 0; copy < 2; ++copy) {
        const TensorMapKey key{kernel, false, args.a[source][copy], args.a_rows[source], args.k, args.lda[source]};
        params.a[source][copy] = maps.get(key, [&] { return map_of_a(args, key, load); });
      }
    params.mainloop.tma_load_a.tma_desc_ = params.a[0][0];
    for (int product = 0; product < most_products; ++product) {
      const int of = args.b[product] != nullptr ? product : 0;
      const TensorMapKey key{kernel, true, args.b[of], args.k, args.n[of], args.ldb[of]};
      params.b[product] = of < product ? params.b[of] : maps.get(key, [&] { return map_of_b(args, of); });
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
