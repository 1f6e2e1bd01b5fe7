// What a launch of the lookup is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "embedding/bags.hpp"
#include "imbrex/device/protocol.hpp"

namespace imbrex::embedding {

inline constexpr std::uint32_t most_ranks = 64, most_strips = most_ranks, most_slices = 64, most_pieces = 4096;
inline constexpr std::uint32_t look_up_threads = 256, look_up_warps = look_up_threads / 32;
inline constexpr std::uint32_t most_item_bags = 128;  ///< of a piece, that a warp takes at once
inline constexpr std::uint32_t rows_in_flight = 8;    ///< of each team

/// Columns of one table that the lanes of a team hold: a warp has 32 / team teams, each of which adds bags of its own.
struct Piece {
  const std::byte* rows;  ///< its first column of row 0
  std::uint32_t count;    ///< rows of the table
  std::uint32_t pitch;    ///< bytes
  std::uint32_t scale;    ///< int8: bytes from `rows` to the scale of row 0
  std::uint32_t table;
  std::uint32_t out;    ///< bytes from the beginning of a row of the output
  std::uint16_t lanes;  ///< that hold columns, each as many as the kernel's vector has
  std::uint8_t team;    ///< lanes of a team: 8, 16 or 32
  bool leads;           ///< is the first of its table, and counts what indices it ignores
};
static_assert(sizeof(Piece) == 32);

/// Rows of the batch, one after another, that lie so where they are stored, too: from `first_row` and from `out` on.
/// They are cut into slices, one a round. `entered`, if there is one, is a counter in this rank's memory: rows are
/// stored once it has come to entered_first + turn * entered_step, the turn that the epoch is of its counters. `done`
/// is what is posted to after each round that has a slice of it; null: nothing.
struct Strip {
  void* out;
  void* done;
  const void* entered;
  std::uint32_t entered_first, entered_step;
  std::uint32_t first_row = 0, rows = 0;
  std::uint32_t name = 0;  ///< of messages: device::Fault::place[0]
  std::uint32_t unused = 0;
};
static_assert(sizeof(Strip) == 48);

/// In the GPU's memory, zero at first and after each launch: what the blocks of a launch share.
struct Progress {
  std::uint32_t items;   ///< taken after each warp's first
  std::uint32_t blocks;  ///< that have ended
  std::uint32_t unused[14];
  std::uint32_t passed[most_slices];  ///< blocks that have passed each round
};

/// In the GPU's memory, zero at first: what was wrong with indices and offsets since it was zero, and all that a
/// message says of it, for the caller's memory may be gone when somebody asks. Places are inverted, so that the largest
/// word is the first place, and 0 says that there was none. The rest belongs to that place, and was written under the
/// lock.
struct Findings {
  std::uint32_t index;         ///< ~position of an index that is no row
  std::uint32_t offset;        ///< ~place of an offset that does not fit
  unsigned long long ignored;  ///< indices
  std::uint32_t lock;
  std::uint32_t index_bag, index_batch, index_rows;  ///< its bag among those of all tables, the batch, the table's rows
  std::uint32_t offset_batch, offset_count;          ///< the batch and how many indices there are
  long long index_value, offset_value, offset_before;  ///< before: the offset in front of it, or 0
};

/// By value into the kernel.
struct LookUpArgs {
  const Piece* pieces;
  const void *indices, *offsets;
  const float* weights;
  Progress* progress;
  Findings* findings;
  device::Group group;  ///< its readers are the blocks of the launch, where these advance the epoch
  std::uint64_t out_pitch,
      done_step;  ///< bytes from row to row of a strip, from a round's counter to the next one's
  std::uint64_t out_stride,
      counter_stride;            ///< bytes to what every other epoch stores to, waits for and posts to
  std::uint64_t kept_bytes;      ///< rows of larger tables leave the second level first
  std::uint64_t strips_inverse;  ///< 2^64 / strips, rounded up; of several strips
  std::uint32_t piece_count;
  std::uint32_t small_pieces;  ///< the first ones, of tables that the second level holds
  std::uint32_t count;         ///< indices
  std::uint32_t batch;
  std::uint32_t strips;
  std::uint32_t slices, slice_rows;  ///< rounds; rows of each slice but a strip's last
  std::uint32_t item_bytes;          ///< that a warp takes at once, about
  std::uint32_t post;                ///< what is added to a counter
  std::uint32_t alternates;          ///< 1: counters come in two sets, which epochs take in turn
  bool wide;                         ///< indices and offsets of 64 bits
  bool mean;
  bool joint;     ///< there is a group: epochs, waits and posts
  bool one_wait;  ///< strips that wait, wait for the same
  bool advances;  ///< the epoch, for the next kernel
  Strip to[most_strips];
};
static_assert(sizeof(LookUpArgs) < 4096 - 512);

/// device::Fault::kind, of a wait for a strip's `entered`: place[0] is the strip's name; expected and seen are the
/// words.
inline constexpr std::uint32_t strip_fault = 3;

/// Bytes of shared memory that a launch is given, for how its items are cut and for its rounds.
constexpr std::uint32_t cut_bytes(std::uint32_t pieces, std::uint32_t slices) {
  return (pieces + 1 + slices) * 4 + (pieces + 1) / 2 * 4;
}

/// The kernel for vectors of so many columns a lane: 8, or 4 where alignment asks for it and for rows of fp32. Null
/// where there is none.
const void* look_up_kernel(TableRows rows, int columns, Type out, bool weighted);

}  // namespace imbrex::embedding
