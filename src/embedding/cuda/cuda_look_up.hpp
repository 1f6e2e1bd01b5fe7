// The lookup on a GPU, alone or together with peers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "base/raw_memory.hpp"
#include "embedding/bags.hpp"
#include "embedding/cuda/look_up_args.hpp"

namespace imbrex::embedding {

struct LookUpShape {
  std::int64_t batch = 0;
  Type out = Type::fp32;
  std::int64_t pitch = 0;            ///< elements from row to row of the output
  std::int32_t ranks = 1, rank = 0;  ///< of lookups of all bags
  std::int32_t slices = 1;           ///< of each rank's rows, each posted by itself
  std::int64_t slice_rows = 0;       ///< of each but the last; 0: as even as can be
};

/// What the launch is cut into; 0: the usual.
struct LookUpTuning {
  std::uint32_t item_bytes = 0;     ///< that a warp takes at once
  std::uint32_t blocks_per_sm = 0;  ///< at most as many as fit
  std::uint32_t blocks = 0;         ///< of the launch; at most as many as fit
  std::int64_t kept_bytes = 0;      ///< rows of tables of more bytes leave the second level first
};

/// How it works together with peers: all of it in place for each epoch, so that a captured launch replays.
struct LookUpPeers {
  device::Group group;         ///< its readers are blocks(), where the launch advances the epoch
  std::vector<Strip> to;       ///< [ranks]; `out` and rows are not read
  std::int64_t done_step = 4;  ///< bytes from a slice's counter to the next one's
  std::uint32_t post = 1;      ///< what is added to it
};

/// Which rows a launch looks up, and where they go.
struct LookUpRounds {
  std::vector<Strip> to;  ///< at most most_strips
  std::int32_t slices = 1;
  std::int64_t slice_rows = 0;  ///< at most `slices` times as many has a strip
  bool joint = false;           ///< it is part of epochs, which the rest is about
  bool one_wait = false;        ///< strips that wait, wait for the same
  device::Group group{};
  bool advances = false;            ///< the epoch, with blocks() readers
  bool alternates = false;          ///< epochs take two sets of counters in turn
  std::int64_t counter_stride = 0;  ///< bytes from one to the other; from one copy of the rows to the other
  std::int64_t out_stride = 0;
  std::int64_t done_step = 0;  ///< as of LookUpPeers
  std::uint32_t post = 1;
};

/// A table of a lookup among those that its bags are of.
struct BagsOf {
  std::uint32_t number = 0;
  bool leads = true;  ///< it counts the indices that it ignores: of several with one number, one does
};

/// One call at a time, on streams that order them. Made and used on one GPU, the current one; all memory is the GPU's
/// except arrays that are named as the host's.
class CudaLookUp {
 public:
  /// `tables.tables` is the host's. Throws Error(invalid_input) naming value and rule where they are not as bags.hpp
  /// says.
  /// `of`: empty where table i is that of bags i.
  CudaLookUp(const Tables& tables, const LookUpShape& shape, const LookUpTuning& tuning = {},
             std::vector<BagsOf> of = {});

  /// How many blocks every launch has.
  std::uint32_t blocks() const { return blocks_; }

  /// From here on in the stream the tables lie there: as many, of the same columns, dims and type. Takes no memory and
  /// waits for nothing.
  void bind(const Tables& tables, cudaStream_t stream);

  /// Queues a lookup of all bags. `parts`: [ranks], the host's, the addresses where each rank's rows go. With peers, a
  /// slice's counter at its owner is added to once all its sums are stored. Indices and offsets of any value are safe;
  /// what does not fit is found by `findings`. Throws Error(invalid_input) on shapes that are not the constructor's.
  void launch(const Bags& bags, void* const* parts, cudaStream_t stream, const LookUpPeers* peers = nullptr);

  /// Queues a lookup of the rounds' rows. The constructor's shape says the batch, and how many slices there may be.
  void launch(const Bags& bags, const LookUpRounds& rounds, cudaStream_t stream);

  /// Waits for the stream. What launches since the last call found: throws as check_bags does, and gives the number of
  /// ignored indices. Their indices and offsets may be gone.
  std::int64_t findings(cudaStream_t stream, Misfits misfits);

 private:
  struct Cutting {
    cuda::RawMemory pieces;
    std::uint32_t count = 0;
    std::uint32_t small = 0;  // the first ones, of tables that the second level holds
    int columns = 0;          // that a lane holds
  };
  std::vector<Piece> pieces_of(int columns) const;
  Cutting cut(int columns) const;
  const Cutting& cutting_for(const Bags& bags, const std::vector<Strip>& to) const;

  std::vector<Table> tables_;
  std::vector<BagsOf> of_;
  TableRows type_;
  LookUpShape shape_;
  LookUpTuning tuning_;
  std::uint32_t blocks_ = 0;
  Cutting wide_, narrow_;   // wide: where alignment lets lanes hold 8 columns
  bool fits_wide_ = false;  // the tables that are bound
  cuda::RawMemory progress_, findings_;
};

}  // namespace imbrex::embedding
