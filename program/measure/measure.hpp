// How long plans take on this machine's GPUs, compared with what users have: cuBLAS and NCCL; and how long all-reduces
// do.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/plan.hpp"
#include "records/all_reduce_record.hpp"

namespace imbrex::program {

/// As records::problems_of_lines.
std::vector<Problem> problems_of_lines(std::string_view text, std::string_view where);

struct MeasureRequest {
  int ranks = 4;
  std::vector<Problem> problems;  ///< of that many ranks
  /// Called on rank 0, in its process, after the problems: the next one, until there is none. The other ranks wait for
  /// it, within the wait limit.
  std::function<std::optional<Problem>()> next;
  bool all = false;                  ///< every plan worth trying, not just the chosen one
  std::optional<Strategy> strategy;  ///< of the chosen plan; not set: auto
  /// "KNOB=VALUE,KNOB=VALUE", as in a plan file: times also the chosen fused plan with these knobs changed.
  std::vector<std::string> tries;
  /// Candidates run in turn, so many times; medians count. With `all`, those within 6 % of the fastest run three
  /// times as often again, among themselves, and that counts.
  int rounds = 9;
  /// Epochs in a sample, even. 0: 8; but of those that take more than 0.1 ms as many as last 10 ms, behind 0.15 s of
  /// the same, so that clocks that fall under load have fallen; with `all`, whose many candidates see to that, 2 of
  /// those that take more than 0.5 ms.
  int runs = 0;
  std::string gpu;        ///< of the table that the result completes; others are refused. Empty: any
  bool threads = false;   ///< ranks are threads of this process instead of processes
  double wait_limit = 0;  ///< seconds; 0: the usual one
};

/// A plan and its time, the slowest rank's.
struct Measured {
  Strategy strategy = Strategy::sequential;
  Knobs knobs;
  bool chosen = false;  ///< what the request's strategy runs
  std::string tried;    ///< the request's text, where it is one of its tries
  double seconds = 0;
};

/// A try that cannot run, and why.
struct Refused {
  std::string tried, message;
};

struct Measurement {
  Problem problem;
  double product_seconds = 0;   ///< of cuBLAS, without communication
  double wire_seconds = 0;      ///< a rank's bytes at its links' bandwidth, by its machine file; 0 without one
  std::vector<Measured> plans;  ///< the first is `sequential`: cuBLAS, then NCCL
  std::vector<Refused> refused;
  std::string gpu;
  int runs = 0;  ///< epochs in a sample
};

/// No plan is faster with this product and this wire.
inline double roofline_seconds(const Measurement& m) {
  return m.product_seconds > m.wire_seconds ? m.product_seconds : m.wire_seconds;
}

/// Measures each problem on random operands, over ranks on this machine's GPUs; `report` is called on rank 0, in that
/// rank's process, problem by problem. Plans that the executor refuses are left out. Returns the exit code, as run
/// does. Throws Error(invalid_input) where there are too few GPUs, others than `gpu`, or a try that is none.
int measure(const MeasureRequest& request, const std::function<void(const Measurement&)>& report);

/// The fastest plan of each measurement as a table for machines/tuned/ (docs/dev/cuda-executor.md). `date`: of the
/// measurements, which are of one kind of GPU. `before`: the table that it completes, or empty; its entries for the
/// problems that were measured are replaced, all others are kept. Throws Error(invalid_input) if it is no table, or one
/// of another GPU.
std::string tuning_table(const std::vector<Measurement>& measurements, const std::string& date,
                         std::string_view before = {});

/// "3 entries added, 2 replaced, 40 kept": how the table `before`, or none, where it is empty, has become `after`.
std::string change_of_table(std::string_view before, std::string_view after);

/// The name of the GPUs that a table is for. Throws Error(invalid_input) if the text is no table.
std::string gpu_of_table(std::string_view text);

/// Seconds of all-reduces of vectors of `bytes` on each rank, the slowest rank's; infinite where a way takes no vector
/// of that size.
struct AllReduceMeasurement {
  std::string gpu;  ///< its name, as the driver gives it
  int ranks = 0;
  Type type = Type::bf16;
  std::int64_t bytes = 0;
  double one_shot = 0, two_shot = 0;  ///< exact
  struct Quantized {
    CodecPair codec;
    double seconds = 0;
  };
  std::vector<Quantized> quantized;  ///< two-shot
};

struct AllReduceMeasureRequest {
  int ranks = 4;
  Type type = Type::bf16;
  std::vector<CodecPair> codecs;                             ///< each once
  std::int64_t least = 1024, most = std::int64_t{64} << 20;  ///< bytes of the vectors, whole KiB; sizes double
  int rounds = 9;                                            ///< candidates run in turn, so many times; medians count
  int runs = 20;                                             ///< calls in a graph that is replayed; a tenth above 8 MiB
  std::string gpu;        ///< of the table that the result completes; others are refused. Empty: any
  bool threads = false;   ///< ranks are threads of this process instead of processes
  double wait_limit = 0;  ///< seconds; 0: the usual one
};

/// Measures exact all-reduces, one-shot and two-shot, and two-shot ones through each codec, size by size, on random
/// vectors; `report` is called on rank 0, in that rank's process. Returns the exit code, as run does. Throws
/// Error(invalid_input) where there are too few GPUs, or others than `gpu`.
int measure_all_reduces(const AllReduceMeasureRequest& request,
                        const std::function<void(const AllReduceMeasurement&)>& report);

/// The record that measurements make: of one kind of GPU, number of ranks, type and list of codecs, by increasing size.
/// Two shots, or a codec beside the better of the exact ways, are taken from the least size on from which they are
/// faster at every size measured; between two measured sizes, from where straight lines between the times cross, up to
/// the next KiB. Throws Error(invalid_input) for measurements that are not alike, or too few.
records::AllReduceRecord record_of(const std::vector<AllReduceMeasurement>& measurements, const std::string& date);

/// The record of the measurements (record_of) as a table for machines/tuned/. `before`: the table that it completes, or
/// empty; what it says of the same ranks and type is replaced, except codecs that were not measured. Throws
/// Error(invalid_input) as record_of, and if it is no table, or one of another GPU.
std::string tuning_table(const std::vector<AllReduceMeasurement>& measurements, const std::string& date,
                         std::string_view before = {});

struct ProductMeasureRequest {
  std::vector<Problem>
      problems;           ///< of any number of ranks: what one of them multiplies is measured, each product once
  int rounds = 9;         ///< candidates run in turn, so many times; medians count
  int runs = 0;           ///< products in a sample, even; 0: 8, or 2 of those that take more than 0.5 ms
  std::string gpu;        ///< of the table that the result completes; others are refused. Empty: any
  double wait_limit = 0;  ///< seconds; 0: the usual one
};

/// Seconds of one product, A (m x k) by B (k x n), by the algorithms that cuBLASLt suggests.
struct ProductMeasurement {
  std::string gpu;  ///< its name, as the driver gives it
  std::int64_t m = 0, n = 0, k = 0;
  Type type = Type::bf16;
  struct Way {
    int tile = 0, parts = 1;  ///< Knobs::library_tile and library_parts
    double seconds = 0;
  };
  std::vector<Way> ways;                ///< the first is what cuBLASLt suggests first, with tile 0
  Layout b_layout = Layout::row_major;  ///< as Problem's
};

const ProductMeasurement::Way& fastest(const ProductMeasurement& m);

/// Measures products on random operands, on the first GPU; `report` is called product by product. Returns the exit
/// code, as run does. Throws Error(invalid_input) where there is no GPU, another than `gpu`, or no cuBLASLt.
int measure_products(const ProductMeasureRequest& request,
                     const std::function<void(const ProductMeasurement&)>& report);

/// What is more than 1 % faster than cuBLASLt's first suggestion, as a table for machines/tuned/. `before`: the table
/// that it completes, or empty; its entries for these products are replaced. Throws Error(invalid_input) if it
/// is no table, or one of another GPU.
std::string tuning_table(const std::vector<ProductMeasurement>& measurements, const std::string& date,
                         std::string_view before = {});

const Measured& fastest(const Measurement& m);

/// Knobs as JSON, on one line, as in a plan file.
std::string knobs_to_json(const Knobs& knobs);

}  // namespace imbrex::program
