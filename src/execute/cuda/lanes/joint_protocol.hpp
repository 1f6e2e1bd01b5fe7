// What a joint (lanes/lane_plan.hpp) does: on a library lane it posts for the step before it and waits for the
// step after it. Compiles as CUDA and as C++, where tests run it in threads.
//
// Epoch. Joints count among the epoch's readers, and each reads it once, as the kernel's blocks do. So it is not
// advanced before all of them have begun, and captured graphs replay without help.
//
// Failure. Where some wait of the rank was given up, what stands after a joint on its stream must not run: peers would
// take what a collective brings for a result. So the joint stays until the host has ended the libraries' collectives,
// and says so. Where no host does, it ends the process' use of the GPU.
#pragma once

#include <cstdint>

#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

/// In host memory that the device writes, except `ended`.
struct LaneRecord {
  volatile std::uint64_t under_way;  ///< of each step that began: see step_word; 0: none has
  volatile std::uint32_t ended;      ///< the host's word that libraries run nothing more
};

/// Names a step of an epoch, or with 0 that none is under way; epochs wrap.
constexpr std::uint64_t step_word(std::uint64_t epoch, std::uint32_t step_and_one) {
  return epoch << 24 | (step_and_one & 0xffffff);
}

struct JointArgs {
  Protocol protocol;
  const WaitEntry* waits;
  const PostEntry* posts;
  LaneRecord* record;
  std::uint32_t tells;  ///< 1: of the lane whose steps are written down there
  std::uint32_t wait_count, post_count;
  std::uint32_t arrivals;      ///< readers of the epoch that must have come: the blocks of the kernel; 0: none
  std::uint32_t queue, task;   ///< in the plan, of the next step or the last one, for messages
  std::uint32_t step_and_one;  ///< the step under way after it; 0: none
};

IMBREX_DEVICE void tell(const JointArgs& args, std::uint64_t epoch, device::Fault& fault, FaultKind kind,
                        std::uint32_t expected, std::uint32_t seen) {
  fault.kind = static_cast<std::uint32_t>(kind);
  fault.place[0] = args.queue;
  fault.place[1] = args.task;
  fault.expected = expected;
  fault.seen = seen;
  fault.epoch = epoch;
}

/// Bytes to the set of counters that the epoch has: they come in one or two.
IMBREX_DEVICE std::uint64_t counters_of(const Protocol& p, std::uint64_t epoch) {
  return (epoch & (p.copies - 1)) * p.set_stride;
}

/// False: the wait was given up.
IMBREX_DEVICE bool wait_in(const JointArgs& args, std::uint64_t epoch, const WaitEntry& wait) {
  const Protocol& p = args.protocol;
  const std::uint32_t before = static_cast<std::uint32_t>(epoch >> (p.copies - 1)) * wait.posts;
  const std::byte* counter = p.counters + counters_of(p, epoch) + std::uint64_t{wait.signal} * p.counter_stride;
  return device::wait_for(p, counter, before + wait.count, [&](device::Fault& fault, std::uint32_t seen) {
    tell(args, epoch, fault, FaultKind::task, wait.count, seen - before);
    fault.place[2] = wait.signal;
  });
}

/// By one thread. False: some wait of the rank was given up, and what stands after must not run.
IMBREX_DEVICE bool run_joint(const JointArgs& args) {
  const Protocol& p = args.protocol;
  const std::uint64_t number = device::read_epoch(p);
  const auto write_down = [&](std::uint32_t step_and_one) {
    if (args.tells != 0) args.record->under_way = step_word(number, step_and_one);
  };
  bool sound = !device::given_up(p, false);
  device::enter_epoch(p, number);
  if (sound) {
    device::pause_for_tests(p, number, args.queue * 0x10000u + args.task, args.step_and_one);
    if (args.post_count > 0 && device::may_post(p))
      for (std::uint32_t i = 0; i < args.post_count; ++i)
        device::add_relaxed(reinterpret_cast<std::byte*>(args.posts[i].counter) + counters_of(p, number), 1u);
    write_down(0);
    const auto come = [&] { return device::load_relaxed(&p.own->readers); };
    sound = args.arrivals == 0 ||
            device::wait_until(
                p, [&] { return come() >= args.arrivals; },
                [&](device::Fault& fault) { tell(args, number, fault, FaultKind::arrival, args.arrivals, come()); });
  }
  // After that: a wait for arrivals finds the kernel's alone.
  device::advance_epoch(p, number);
  for (std::uint32_t i = 0; sound && i < args.wait_count; ++i) sound = wait_in(args, number, args.waits[i]);
  if (sound) write_down(args.step_and_one);
  return sound;
}

}  // namespace imbrex::cuda
