// One job from start to end: operands from files or a seed, an operator over several ranks, results checked and
// written.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "choose/reason.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/timeline.hpp"
#include "plan/given_knobs.hpp"

namespace imbrex::program {

struct RunRequest {
  Device device = Device::automatic;
  Problem problem;  ///< with files: m, n, k and more_n are taken from them
  std::optional<Strategy> strategy;
  plan::GivenKnobs knobs;
  std::optional<Plan> plan;  ///< runs exactly this plan; problem is its problem
  bool unchecked = false;    ///< run `plan` without proving it sound

  std::uint64_t seed = 0;
  std::string a_path,
      b_path;             ///< both or none: .npy, float32, float16 or, of e4m3, uint8 as its bits; whole matrices, by
                          ///< rows, B as K x N whatever its layout (run.cpp gives ranks their parts)
  std::string bias_path;  ///< with the others, where the problem has a bias: N elements, or R x N, a row for
                          ///< each rank, where ranks exchange products
  struct Further {
    std::string b, bias;
  };
  std::array<Further, max_products - 1> further;  ///< with the others, where the problem has further B
  std::string a_scale_path,
      b_scale_path;        ///< with the others, where the problem has scales: R rows, row r those of rank r
  std::string out_prefix;  ///< not empty: PREFIX.rank<r>.npy, float32; outputs after the first:
                           ///< PREFIX.out1.rank<r>.npy and so on, by the operand's name

  bool verify = false;      ///< against a float64 reference, elements within their bounds; repeats bitwise equal
  bool verify_all = false;  ///< every element, however long that takes; else rows drawn by verify_seed where it would
                            ///< take long (reference.hpp)
  std::uint64_t verify_seed = 0;
  int repeat = 1;
  bool threads = false;  ///< ranks are threads of this process instead of processes
  bool timeline = false;
  CpuOptions cpu;                   ///< of these, `delays` holds on GPUs too
  std::string kernel;               ///< GPUs: CudaOptions::kernel, for fused plans
  int ranks_per_gpu = 1;            ///< more: CudaOptions::ranks_per_gpu; the device is cuda then
  double wait_limit = 0;            ///< seconds; 0: the usual one
  std::function<void()> part_done;  ///< called by each rank after each of parts_of(request, problem)
};

struct RunResult {
  Problem problem;
  Strategy strategy = Strategy::sequential;
  Knobs knobs;
  Device device = Device::cpu;  ///< that the ranks worked on
  std::vector<double> seconds;  ///< per repeat, of the slowest rank
  bool verified = false;
  std::int64_t compared_stride =
      1;  ///< verified: one of each so many rows of an output was compared, drawn by the seed
  std::int64_t compared_rows = 0, all_rows = 0;  ///< of all ranks' outputs of products
  double max_error_over_bound = 0;               ///< over all compared elements and ranks; right is at most 1
  double codec_bound = 0;                        ///< verified, through a codec: the most that it may cost an element
  Timeline timeline;                             ///< of all ranks, last repeat; empty unless asked for
  std::string message;                           ///< what was wrong, where; empty if nothing was
  std::string digest;                            ///< of the plan that ran: digest_text
  choose::Reason reason;  ///< why strategy auto took it; empty where the strategy or a plan was given
};

/// What a request runs on, and by which plan.
struct Choice {
  Device device;
  Plan plan;
  choose::Reason reason;  ///< as RunResult's
};

/// Decides what `request.device` leaves open and chooses the plan for the device, unless the request brings one. Starts
/// nothing that keeps this process from being forked if the ranks are to be forked. Throws Error(invalid_input) naming
/// what is missing where the request insists on CUDA.
Choice choose_device(const RunRequest& request, const Problem& problem);

/// Parts of a run that take time, over all ranks: repeats and, verified, each source of each output. 0: only one.
std::size_t parts_of(const RunRequest& request, const Problem& problem);

/// What a plan runs (src/plan/digest.hpp) as 16 hexadecimal digits: plans with the same ones run the same.
std::string digest_text(const Plan& plan);

/// Runs the request in a new world of processes or threads, or, started by a launcher, in the launcher's world.
/// `report` is called once, on rank 0, in that rank's process. Returns the exit code: 0, 1 if verification failed or
/// the plan is unsound, 2 for bad input, 3 for a failure while running; errors of ranks are printed to standard error.
/// Throws Error for input that is wrong before any rank starts, which includes asking for CUDA where it cannot be had.
int run(const RunRequest& request, const std::function<void(const RunResult&)>& report);

}  // namespace imbrex::program
