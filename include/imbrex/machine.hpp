// What the hardware is: the constants that plans are chosen and simulated by.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/types.hpp"

namespace imbrex {

/// Where a constant comes from. A fitted constant was chosen so that the simulator reproduces measured times.
enum class Provenance : std::uint8_t { measured, published, derived, fitted, unverified };

std::string_view name_of(Provenance provenance);

/// Inverse of name_of; throws Error(invalid_input) listing the names that exist.
Provenance parse_provenance(std::string_view name);

/// One figure of a machine and how it is known. The unit is fixed by the field: "s", "bytes", "bytes/s", "flop/s",
/// "count" or "ratio". Reads as its value.
struct Constant {
  double value = 0;
  Provenance source = Provenance::unverified;
  std::string from;  ///< measurement, data sheet, or formula, in words

  operator double() const { return value; }
  bool operator==(const Constant&) const = default;
};

/// What one tile shape of the GEMM kernel costs. A tile takes
///   prologue + max(2 m n k / (rate of the type x efficiency), loaded bytes / sm_memory_bandwidth,
///                  bytes not on chip / share of memory_bandwidth) + epilogue.
struct TileRate {
  std::int64_t tile_m = 0, tile_n = 0;
  Constant efficiency;  ///< ratio, of the type's rate; 0 < e <= 1
  Constant prologue;    ///< s, from taking the tile to the first product
  Constant epilogue;    ///< s, from the last product to the last local store issued
  Constant sustained;   ///< ratio; rate once hot / rate when cool, where the power that this shape draws makes it
                        ///< another than the machine's; 0, as without: the machine's

  bool operator==(const TileRate&) const = default;
};

/// One point of a collective's curve: bytes that each rank puts on the wire, and the whole call's seconds.
struct CurvePoint {
  double bytes = 0, seconds = 0;
  bool operator==(const CurvePoint&) const = default;
};

/// Time of a library collective by wire bytes per rank: (R-1)/R of the gathered, scattered or exchanged matrix, twice
/// that for all_reduce. Between points log-log interpolated; below the first its time; above the last its rate.
struct Curve {
  std::vector<CurvePoint> points;  ///< bytes strictly increasing, seconds not decreasing; at least one point
  Provenance source = Provenance::unverified;
  std::string from;

  bool operator==(const Curve&) const = default;
};

/// Devices that share a way out of their group and a way into it: those of a PCIe switch, or of a socket.
struct Level {
  std::string name;    ///< of such a group: letters, digits, '-' and '_'
  Constant devices;    ///< count; devices of a group, those whose ranks follow each other
  Constant bandwidth;  ///< bytes/s out of a group, and as many into it, of all its devices together
  Constant latency;    ///< s that the way out, or in, adds

  bool operator==(const Level&) const = default;
};

/// A machine of equal devices, one per rank. A plain value, read from machines/*.json
/// (docs/reference/machine-files.md). docs/dev/simulator-model.md says what the simulator does with each constant.
struct Machine {
  std::string name;
  std::string about;  ///< one line: the parts, and how they are joined
  int devices = 1;    ///< most ranks that it holds

  /// GPUs whose constants these are, by the names that the driver gives them: plans for them are chosen by this
  /// machine.
  std::vector<std::string> gpus;
  /// Name of another GPU, which computes and sends as fast: its tuning entries serve where these have none. May be
  /// empty.
  std::string tuned_like;

  // Compute and memory of one device.
  Constant sms;                     ///< count; workers that take tiles (SMs, cores)
  Constant memory_bandwidth;        ///< bytes/s, reads plus writes
  Constant sm_memory_bandwidth;     ///< bytes/s that one SM can load, from L2 or memory
  Constant sm_unaligned_bandwidth;  ///< bytes/s that one SM can load of rows that begin amid sectors of 32 bytes; 0, as
                                    ///< without: sm_memory_bandwidth
  Constant l2_bytes;                ///< bytes of operands that stay on chip between tiles
  std::map<Type, Constant> sm_rate;  ///< flop/s of one SM at the best tile shape, cool
  std::vector<TileRate> tiles;       ///< tile shapes with known cost; others use the nearest
  Constant sustained_ratio;          ///< ratio; rate once hot / rate when cool
  Constant sustained_onset;          ///< s of compute after which 1/e of the way to hot is left
  Curve random_rows;     ///< s a row by its bytes, rows here and there read by all SMs; without points: streamed
  Curve short_rows;      ///< s a row shorter than the first of random_rows; without points: they take as long as it
  Constant launch_gap;   ///< s between dependent kernels, and before a queue's first task
  Constant model_error;  ///< ratio; root mean square of the relative errors of products' predicted times, on sizes that
                         ///< no constant was fitted to: a plan of which less gain is promised is not taken before what
                         ///< a library does; 0, as without: none was measured

  // Copy engine.
  Constant copy_fixed;           ///< s that the engine is taken by one copy beside its bytes
  Constant copy_flag;            ///< s that the engine is taken by the flag after a copy
  Constant copy_latency;         ///< s from the last byte sent to the copy counted as done; the engine is free
  Constant copy_bandwidth;       ///< bytes/s of one engine
  Constant copy_pull_bandwidth;  ///< bytes/s of one engine that fetches from a peer; 0, as without: copy_bandwidth

  // Stores from SMs to a peer.
  Constant store_sm_bandwidth;  ///< bytes/s of one SM
  Constant store_bandwidth;     ///< bytes/s of all SMs of a device together

  // Links.
  Constant egress_bandwidth;   ///< bytes/s out of a device
  Constant ingress_bandwidth;  ///< bytes/s into a device
  Constant link_latency;       ///< s from a byte leaving to its arrival
  Constant peer_access;        ///< count; devices that load from and store to each other's memory, those whose ranks
                               ///< follow each other: 1: none do; 0, as without: all of a host

  /// What groups of devices share, the smallest groups first; each lies within a group of the next level. Empty:
  /// devices share nothing. What goes from one group to another takes both groups' ways, beside the links above.
  std::vector<Level> levels;

  // Links between hosts, in place of the links above where two ranks lie on different ones; all 0: there is one host.
  Constant host_devices;    ///< count; devices of a host, those whose ranks follow each other
  Constant host_bandwidth;  ///< bytes/s out of, and into, a device: its part of what joins its host to the network
  Constant host_latency;    ///< s from a byte leaving to its arrival, and from a post to its sight
  Constant host_message;    ///< s for which a message takes a device's part, beside its bytes

  // Signals.
  Constant flag_latency;        ///< s from a post to its sight by a polling peer
  Constant flag_latency_local;  ///< s the same within one device
  Constant poll;                ///< s that a blocked wait costs beyond the flag's arrival
  Constant fence;               ///< s that a task pays before its posts, once its stores have arrived

  // Library collectives.
  Constant collective_sms;    ///< count; SMs that a running collective takes from compute
  Constant collective_ranks;  ///< count; ranks for which the library's curves hold; 0, as without: any
  Constant collective_step;   ///< s that each step of a ring or tree adds, where there are more ranks than those, or
                              ///< takes away where there are fewer; 0, as without: ranks do not matter
  Curve all_gather, reduce_scatter, all_reduce, all_to_all;

  // Imbrex' own collectives, which library plans with transport `store` run; without points they cost what the
  // library's do. One-shot: all-gather, reduce-scatter, all-to-all, and an all-reduce that sends the whole vector to
  // every peer. Two-shot: an all-reduce that sends parts to their owners, and sums back.
  Curve own_one_step, own_two_steps;

  // An all-reduce through a codec by the bytes of codes that it puts on the wire; without points it costs what
  // own_two_steps costs for as many bytes, or the library's all-reduce.
  Curve own_coded;
  Constant coding_bandwidth;  ///< bytes/s of what the wire would carry without a codec, which a rank codes and decodes
                              ///< beside what own_coded says; 0, as without: own_coded holds it

  bool operator==(const Machine&) const = default;
};

/// Throws Error(invalid_input), which names the constant and the rule, if a rule is broken. Rates and counts are
/// positive, times are not negative, ratios lie in (0, 1], no value is NaN, and curves are as Curve says. There is at
/// least one type and one tile shape.
void validate(const Machine& machine);

/// Changes the constant at `place`, as a machine file names it: "links.latency", "compute.sm_rate.bf16",
/// "compute.tiles.128x256.efficiency". Throws Error(invalid_input) listing the places, or naming the constant and its
/// rule; the machine is then as it was. Links between hosts are changed one by one, and are valid together.
/// Curves that were measured with the constant change with it, become `unverified`, and say so: with the links'
/// bandwidth and latency the collectives', with the memory's bandwidth those of rows.
void set_constant(Machine& machine, std::string_view place, const Constant& constant);

/// Seconds of a collective that puts `wire_bytes` on each rank's wire.
double seconds_of(const Curve& curve, double wire_bytes);

/// JSON as docs/reference/machine-files.md describes it. parse_machine throws Error(invalid_input) naming the place and
/// the rule for any text that is not a valid machine, and for one of more than 1 MiB. `origin` names the text in
/// messages.
std::string to_json(const Machine& machine);
Machine parse_machine(std::string_view json, std::string_view origin = "machine");

/// The machine of that name, or in that file (an argument with a '/' or ending in ".json" is a path). A name is looked
/// up in `folders` in order, then in the folders that came with the library. Throws Error(invalid_input) listing the
/// folders and the names that exist.
Machine load_machine(std::string_view name_or_path, const std::vector<std::string>& folders = {});

/// The machine whose file names GPUs of that name, of the first folder that has one, by name of the file; none where no
/// file does. Throws Error(invalid_input) for a file that holds the name and is no valid machine.
std::optional<Machine> find_machine_of(std::string_view gpu, const std::vector<std::string>& folders = {});

/// The folders that came with the library, in the order in which they are searched: `share/imbrex/machines` beside the
/// folders of the library and of the program, then the source tree's and the installation's.
std::vector<std::string> machine_folders();

/// Names that load_machine knows, sorted.
std::vector<std::string> machine_names(const std::vector<std::string>& folders = {});

/// This host as a machine whose ranks are processes: its cores as SMs. Compute and memory rates are measured, which
/// takes about 0.2 s; what is not measured says `unverified`. Throws nothing but std::bad_alloc.
Machine probe_machine();

/// A generic model of a host CPU, by which plans for the CPU executor are chosen. Nothing in it is measured, so that
/// every rank and every run chooses the same plan, and results are the same bits.
Machine nominal_host_machine();

}  // namespace imbrex
