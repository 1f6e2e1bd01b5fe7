// A plan laid out for simulation: flat tasks, kernels, and bounds checked.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::simulate {

inline constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

struct FlatTask {
  const Task* task = nullptr;         ///< the plan's, or one block of its product
  const Task* whole = nullptr;        ///< the plan's
  std::uint32_t rank = 0, queue = 0;  ///< queue: index into Program::queues
  std::uint32_t kernel = 0;           ///< counts within its queue
  std::uint32_t index = 0;            ///< of the plan's task within its queue
  std::uint32_t split = 1;            ///< compute queues' tiles: SMs that share the depth
};

struct FlatQueue {
  Engine engine = Engine::compute;
  std::uint32_t rank = 0, index = 0;  ///< index within its rank
  std::uint32_t begin = 0, end = 0;   ///< tasks
  std::uint32_t pool = none;          ///< whose workers it uses, index into Program::pools; copy queues use none
};

/// Workers (SMs) of one rank that serve one or several queues.
struct Pool {
  std::uint32_t rank = 0, first = 0, workers = 0;  ///< first: number of its first SM
  bool shared = false;                             ///< gives way to library collectives
  std::uint32_t kept = 0;                          ///< SMs that are kept free for these
  std::uint32_t products = 0;                      ///< queues with products that it serves, which have equal parts
};

/// A compute queue is one persistent kernel. A library queue is a stream of ordinary kernels and collectives: a product
/// is a kernel of as many blocks as its queue's shape cuts it into, and a library splits the depth of few blocks among
/// more SMs (split-K), as many as end soonest.
struct Program {
  bool streams = false;  ///< no persistent kernel: signals stand for the order of streams
  std::vector<FlatTask> tasks;
  std::deque<Task> blocks;  ///< of products
  std::vector<FlatQueue> queues;
  std::vector<Pool> pools;
  std::vector<std::uint32_t> first_signal;  ///< of each rank; one more at the end
};

/// Throws Error(invalid_input) naming the task, if the plan has more ranks than the machine or an index leaves its
/// range.
Program lay_out(const Plan& plan, const Machine& machine);

double bytes_of(const Plan& plan, const Region& region);

}  // namespace imbrex::simulate
