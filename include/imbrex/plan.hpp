// A plan is data: what is computed (Problem), and how (Plan): for every rank, ordered queues of tasks over
// regions of buffers, tied together by signals. A plan is a plain value. It is built without a GPU, compares,
// serialises to JSON (docs/dev/plan-format.md), and is run unchanged by every executor.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "imbrex/codec.hpp"
#include "imbrex/operands.hpp"
#include "imbrex/problem.hpp"
#include "imbrex/types.hpp"

namespace imbrex {

// ------------------------------------------------------------------------------------------------- knobs

enum class Strategy : std::uint8_t {
  sequential,  ///< a library's product, then a library's collective
  decomposed,  ///< the same in parts, side by side: chunks of the result, or the ranks' blocks of A in a ring
  fused,       ///< tiles of one product wait for, or send, their own data
  signaled,    ///< tiles of one product, in groups; a library's collective for each group (FlashOverlap)
};

/// Order in which a rank takes its tiles, within what its strategy fixes (own rows last or first, rotated by
/// rank). With `group` g, tiles run in CTA swizzle groups of g tile rows of an owner, columns outer, rows
/// inner.
enum class TileOrder : std::uint8_t {
  owner_major,   ///< owners one after another
  column_major,  ///< owners' swizzle groups side by side, a column at a time; see Knobs::own_shift and Knobs::abreast
  naive,         ///< row by row, the same on every rank: the control for measuring what rotation gains
};

/// How data gets from one rank to another. Library collectives on GPUs are NCCL's; with `store`, Imbrex' own, which
/// rings do without.
enum class Transport : std::uint8_t {
  store,  ///< compute workers store straight to the peer: results from a tile's epilogue, operands before the tiles
  push,   ///< a copy run by the sender
  pull,   ///< a copy run by the receiver
};

/// Who adds the contributions of the ranks, and when.
enum class Reducer : std::uint8_t {
  tile,      ///< the owner's tile adds the peers' slots in its epilogue
  tail,      ///< Reduction tasks after the last tile
  reserved,  ///< Reduction tasks on a compute queue of their own
};

/// Sizes of groups, in their order, up to the first 0.
using GroupSizes = std::array<std::int32_t, 16>;

struct Knobs {
  std::int64_t tile_m = 128, tile_n = 128;  ///< block of the product that one Tile computes
  int cluster = 0;    ///< tiles that share their part of B where the executor can: 1 or 2; 0: as it likes
  int cluster_k = 1;  ///< workers that share a tile where the executor can, each multiplying a share of K: 1, or 2 with
                      ///< split_k = 1
  int group = 8;      ///< tile rows per CTA swizzle group
  TileOrder order = TileOrder::owner_major;
  Transport transport = Transport::push;
  Reducer reducer = Reducer::tile;
  std::int64_t comm_rows = 0;  ///< rows per copy (the communication tile); 0: a whole shard (stored operands: spread
                               ///< over the workers)
  int k_slices = 1;            ///< all_gather_gemm: a copied row block travels and is awaited in that many K slices
  int split_k = 1;             ///< strategy fused: shares of K that a product's tile is cut into, each multiplied by a
                               ///< worker of its own; the last one's tile adds the others' parts, in fp32 and in the
                               ///< order of K. Cuts lie at multiples of 128; more parts than K has of these: one each
  int chunks = 2;              ///< strategy decomposed: parts that the result's rows (of gemm_reduce_scatter and
                   ///< gemm_all_to_all those of each rank) are cut into; of all_gather_gemm, whose ring has a
                   ///< step for each rank's block of A, those of a block, 1: it goes whole. No part is empty.
                   ///< signaled without `groups`: groups as equal as can be
  GroupSizes groups{};        ///< strategy signaled: sizes of the groups, in rows of tiles of every rank's part; where
                              ///< `packed`, in tiles
  bool packed = false;        ///< strategy signaled, gemm_all_reduce: tiles of a group are any that follow each other
                              ///< in the order, and lie one after another; their sums are put back into rows
  int kept_free = 0;          ///< strategy signaled: SMs that the product leaves to the collectives
  int nodes = 1;              ///< library collectives: hosts that the ranks lie on, equally many on each, one host's
                              ///< after another's; with several, what crosses between hosts does so once
  int library_tile = 0;       ///< library products: of the algorithms that cuBLASLt suggests, the first one with this
                              ///< tile, by cuBLASLt's number, that cuts K into library_parts; 0, or where it suggests
                              ///< none such: the first one
  int library_parts = 1;      ///< see library_tile
  int own_shift = 0;          ///< column_major: columns by which own tiles run after the others (all_gather_gemm:
                              ///< ahead of them), so that what they wait for (send) has time to arrive
  int abreast = 0;            ///< column_major: owners whose rows run side by side, then the next ones'; 0: all
  bool span_shards = false;   ///< tiles may cover rows of several ranks (small M); needs a Reducer other than `tile`,
                              ///< and in all_gather_gemm no scales a tensor, of which a tile has one
  bool one_shot = false;      ///< gemm_all_reduce: every rank sends its product to all others
  Type partial = Type::bf16;  ///< element type of partial products on the wire
  std::optional<CodecPair> codec{};  ///< strategies other than fused, gemm_all_reduce and gemm_reduce_scatter:
                                     ///< what the collective sends, by Imbrex' own kernels; a reduce-scatter has one
                                     ///< step, so both codecs are the same. It changes results, within a bound

  bool operator==(const Knobs&) const = default;
};

// -------------------------------------------------------------------------------------------- plan parts

enum class BufferRole : std::uint8_t { input, output, workspace };

/// One matrix on every rank, of the same shape everywhere. A workspace with `copies` = 2 alternates by epoch:
/// epoch e uses copy e % 2. Inputs and outputs belong to the caller and have one copy.
struct Buffer {
  std::string name;
  BufferRole role = BufferRole::workspace;
  Layout layout = Layout::row_major;
  Type type = Type::bf16;
  std::int64_t rows = 0, cols = 0;
  int copies = 1;

  bool operator==(const Buffer&) const = default;
};

/// A rectangle of one rank's buffer. Empty (rows * cols == 0) regions are allowed in transfers only.
struct Region {
  int rank = 0;
  int buffer = 0;  ///< index into Plan::buffers
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;

  bool empty() const { return rows == 0 || cols == 0; }
  bool operator==(const Region&) const = default;
};

enum class WaitPoint : std::uint8_t {
  load,      ///< before the task reads anything (from column k_begin of A on, for a Tile)
  epilogue,  ///< Tile only: before it reads slots and stores results, after the product is computed
};

/// Blocks the task until `signal` of its own rank has received `count` posts in this epoch.
struct Wait {
  int signal = 0;
  std::uint32_t count = 1;
  WaitPoint point = WaitPoint::load;
  std::int64_t k_begin = 0;  ///< Tile, load only: columns of A before this one may be read earlier

  bool operator==(const Wait&) const = default;
};

/// Adds one to `signal` of `rank`, after everything that the task wrote is visible there.
struct Post {
  int rank = 0;
  int signal = 0;

  bool operator==(const Post&) const = default;
};

/// Where a tile's result goes: `to` receives the block of to's shape that starts at (row, col) of the tile. A
/// fragment slot receives the whole tile: one row of (tile rows * tile cols) elements.
struct Store {
  Region to;
  std::int64_t row = 0, col = 0;

  bool operator==(const Store&) const = default;
};

/// Stores round(adds[0] + ... + adds[own-1] + A B + adds[own] + ...), each sum in fp32, in this order.
/// A tile without adds stores round(A B). In a problem with scales, A B is a_scale * A B * b_scale: with the scales of
/// the tile's rows and those of its columns, which are the caller's on its own rank.
struct Tile {
  Region a;                  ///< rows x depth
  Region b;                  ///< depth x cols; own rank
  std::vector<Region> adds;  ///< of the tile's shape, or whole fragment slots of a tile of that shape; last perhaps the
                             ///< bias: one row of it, which is added to every row
  int own = 0;               ///< position of the tile's own product in the sum, 0..adds.size()
  std::vector<Store> stores;
  Region a_scale{};  ///< in a problem with scales: that of each of A's rows, or the one of all of them; read after all
                     ///< load waits

  bool operator==(const Tile&) const = default;
};

/// An algorithm of a GEMM library, as cuBLASLt numbers them: among those that it suggests for a product, the first one
/// with this tile that cuts K into `parts`. With tile 0, or where it suggests no such algorithm, its first suggestion.
struct LibraryAlgorithm {
  int tile = 0;
  int parts = 1;

  bool operator==(const LibraryAlgorithm&) const = default;
};

/// A matrix product, or a batch of them, by a GEMM library: to = round(A B + bias), the sum in fp32. In a problem with
/// scales, A B is a_scale * A B * b_scale, as for a Tile. All regions are the task's own rank's. The products of a
/// batch share B, the bias and their shape: of product i, A lies i * a_step rows below `a`, the result i * to_step rows
/// below `to`. Problems with scales have batches of one.
struct Product {
  Region a;   ///< rows x depth
  Region b;   ///< depth x cols
  Region to;  ///< rows x cols, row-major
  int batch = 1;
  std::int64_t a_step = 0, to_step = 0;  ///< rows; 0 in a batch of one, else to_step >= to.rows and a_step >= 1
  Region bias{};                         ///< one row of the caller's bias, or empty
  Region a_scale{};                      ///< as a Tile's
  LibraryAlgorithm algorithm{};

  bool operator==(const Product&) const = default;
};

/// Copies `from` to `to` (equal shape and element type). Empty regions: the task only waits and posts.
struct Transfer {
  Region from, to;

  bool operator==(const Transfer&) const = default;
};

/// Every region of `to` receives round(from[0] + from[1] + ...), summed in fp32, in this order. The last source, behind
/// others, may be one row of the bias, which is added to every row.
struct Reduction {
  std::vector<Region> from;
  std::vector<Region> to;

  bool operator==(const Reduction&) const = default;
};

enum class CollectiveKind : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, send_receive };

/// Whose collective it is.
enum class Backend : std::uint8_t {
  nccl,    ///< NCCL's
  imbrex,  ///< Imbrex' own kernels
};

/// One rank's part in a collective over R ranks of the plan's, all of them or those of `ranks`. Regions span
/// whole rows of their buffers, and of operands none whose leading dimension leaves gaps, so they are contiguous;
/// `from` and `to` do not overlap. Parts are numbered by the order of the R ranks; h is the rows of one part:
///
///     all_gather      from: h rows      to: R*h rows, part s from the rank at place s
///     reduce_scatter  from: R*h rows    to: h rows, the sum of part `own place` over the ranks
///     all_reduce      from: h rows      to: h rows, elsewhere
///     all_to_all      from: R*h rows, part d to the rank at place d    to: R*h rows, part s from the one at place s
///     send_receive    from: h rows, to rank `send_to`                  to: h rows, from rank `receive_from`
///
/// Sums accumulate in fp32, in rank order; NCCL's in the regions' type, in its own. All parts with the same `group`
/// form one collective, which completes only after every rank that it joins has reached it. A part of a send_receive
/// may complete before: once the rank that it receives from has reached it. The CPU executor runs both backends alike.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_gather;
  int group = 0;
  Region from, to;
  std::vector<int> ranks{};  ///< that it joins, ascending, the same on each of them; empty: all
  Backend backend = Backend::nccl;
  std::optional<CodecPair> codec{};     ///< backend imbrex, all_reduce over all ranks: what its two phases send; a
                                        ///< reduce_scatter has one phase and one codec, twice in the pair
  int send_to = -1, receive_from = -1;  ///< send_receive: other ranks that it joins, each of which receives from and
                                        ///< sends to one; -1: none, in all other kinds

  bool operator==(const Collective&) const = default;
};

/// A kind of work that is no product, by its number (src/plan/work.hpp registers them).
enum class WorkKind : std::uint8_t {};

/// A block of results that are no product: rows x cols as its kind says, which also says what they are, what they cost
/// and how they come about. `shares` tasks of a rank that differ in `share` alone are one block. Each task is the part
/// that it finds when it runs, such as the bags that make up its share of the bytes. Their stores count as one write,
/// which is complete once all of them have posted.
struct Block {
  WorkKind kind{};
  std::vector<Region> reads;  ///< what it reads that tasks write, or the caller gives: all of it, from the start
  std::array<std::int64_t, 4> args{};  ///< the kind's own
  std::vector<Store> stores;           ///< to rows of buffers, and to no slots
  int share = 0, shares = 1;

  bool operator==(const Block&) const = default;
};

struct Task {
  std::variant<Tile, Transfer, Reduction, Collective, Product, Block> work;
  std::vector<Wait> waits;
  std::vector<Post> posts;
  int mate{};  ///< in a compute queue: how many tasks before it its pair's other tile stands; 0: none

  bool operator==(const Task&) const = default;
};

enum class Engine : std::uint8_t {
  compute,  ///< several workers (SMs, threads) take tasks in order; completions are not ordered
  copy,     ///< in order, one at a time (a copy engine's stream)
  library,  ///< in order, one at a time (a stream): products, collectives, and what goes with them on their rank,
            ///< blocks among it
};

/// How the workers of a compute queue share operands where they come in pairs (a cluster of two thread blocks). It
/// changes how fast tiles run, and no results.
///
/// Workers that come in pairs take the queue's tasks in its order, two at once where Task::mate says so: a task that
/// forms a pair with a later one brings that one forward. A pair is two tasks of one kind; each ends by itself. Two
/// tiles of a pair have the same `b` and the same columns of their A, which they load together. If both add slots, they
/// add equally many, and both add fp32 slots or neither does. A task is in one pair at most. An executor may ignore a
/// queue's pairs, all of them, and then takes its tasks one by one.
enum class ClusterMode : std::uint8_t {
  any,      ///< as the executor likes, but not share_k
  single,   ///< no pairs
  share_b,  ///< each multiplies a tile of its own; they load their common part of B once
  share_k,  ///< both multiply one tile, a half of K each; such a tile has all of K, and no mate
};

struct Queue {
  Engine engine = Engine::compute;
  int workers = 0;  ///< compute: workers reserved for this queue; 0: all that no other queue reserves
  std::vector<Task> tasks{};
  Extent tile{};  ///< where tiles or products run: the block that a worker computes at a time. No Tile is larger; a
                  ///< Product is computed in such blocks, or as its library likes
  ClusterMode cluster = ClusterMode::any;  ///< compute only
  int kept_free = 0;                       ///< library: SMs that the rank's compute queues leave to it

  bool operator==(const Queue&) const = default;
};

struct RankPlan {
  int signals = 0;  ///< counters in this rank's memory
  std::vector<Queue> queues;

  bool operator==(const RankPlan&) const = default;
};

struct Plan {
  Problem problem;
  Strategy strategy = Strategy::sequential;
  Knobs knobs;
  int signal_copies = 2;  ///< epoch e uses counters of set e % signal_copies
  std::vector<Buffer> buffers;
  std::vector<RankPlan> ranks;

  bool operator==(const Plan&) const = default;
};

/// Ranks that the collective joins, ascending: all of the plan's where it names none.
std::vector<int> ranks_of(const Collective& collective, const Plan& plan);

/// Number of tasks over all ranks and queues.
std::size_t count_tasks(const Plan& plan);

/// "rank 2 queue 0 task 17 (tile)".
std::string task_name(const Plan& plan, int rank, int queue, std::size_t task);
std::string task_name(int rank, int queue, std::size_t index, const Task& task);

/// What it does, as timelines name it: "tile rows 0+128 cols 256+128".
std::string label(const Task& task);

// ------------------------------------------------------------------------------------------- making plans

/// A sound plan for `problem`. Throws Error(invalid_input) for an invalid problem, for more tasks than a plan may have,
/// or a knob out of range or of no meaning for the operator and strategy (transport `store` for a decomposed
/// all_gather_gemm).
Plan make_plan(const Problem& problem, Strategy strategy, const Knobs& knobs);

// ------------------------------------------------------------------------------------------------ checking

enum class Fault : std::uint8_t {
  malformed,  ///< an index, shape or type breaks a rule of the format
  bounds,     ///< a region leaves its buffer
  deadlock,   ///< a task never runs, in some schedule
  race,       ///< a read is not ordered after its write, or a write after the read it would overwrite
  coverage,   ///< an output element is missing, produced twice, or is not what the problem asks for
  reuse,      ///< an epoch's data or posts can meet a later epoch's, or a rank may end it before another begins it
};

/// What is wrong, where. `rank`, `queue`, `task` are -1 where no single task is at fault.
struct Finding {
  Fault fault = Fault::malformed;
  int rank = -1, queue = -1;
  std::int64_t task = -1;
  std::string message;  ///< one line, naming the task and the region or signal
};

/// Proves the plan sound (no finding) for every schedule with one worker or more, any number of epochs in a row and
/// any delays, or returns the first fault. Time is about linear in tasks + posts + waits + overlapping accesses.
std::optional<Finding> check(const Plan& plan);

/// The first part of check alone: indices, shapes, types and bounds (faults `malformed` and `bounds`). A plan that
/// passes it can be run without touching memory outside its buffers, though it may hang or compute nonsense.
std::optional<Finding> check_format(const Plan& plan);

std::string_view name_of(Fault fault);

// ---------------------------------------------------------------------------------------------------- text

std::string_view name_of(Strategy strategy);
std::string_view name_of(TileOrder order);
std::string_view name_of(Transport transport);
std::string_view name_of(Reducer reducer);
std::string_view name_of(CollectiveKind kind);
std::string_view name_of(Engine engine);
std::string_view name_of(Backend backend);
std::string_view name_of(ClusterMode mode);
/// "tile", "transfer", "reduction", "collective", "product", or the kind of a block.
std::string_view kind_of(const Task& task);
std::string_view name_of(WorkKind kind);

/// Inverse of name_of; throws Error(invalid_input) listing the names that exist.
Strategy parse_strategy(std::string_view name);
TileOrder parse_tile_order(std::string_view name);
Transport parse_transport(std::string_view name);
Reducer parse_reducer(std::string_view name);
CollectiveKind parse_collective_kind(std::string_view name);
Engine parse_engine(std::string_view name);
Backend parse_backend(std::string_view name);
ClusterMode parse_cluster_mode(std::string_view name);
WorkKind parse_work_kind(std::string_view name);

/// JSON as docs/dev/plan-format.md describes it. parse_plan throws Error(invalid_input) naming the place and the rule,
/// for anything that is not a well-formed plan; it does not check soundness.
std::string to_json(const Plan& plan);
Plan parse_plan(std::string_view json);

}  // namespace imbrex
