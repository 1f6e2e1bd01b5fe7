// What hosts say of waits on their GPUs.
#include <gtest/gtest.h>

#include "runtime/cuda/fault_text.hpp"

namespace imbrex {
namespace {

TEST(FaultText, SaysWhoWaitedForWhat) {
  device::Fault fault{};
  fault.expected = 4;
  fault.seen = 2;
  EXPECT_EQ(runtime::fault_text(fault, "rank 1", 0.5, "for signal 7 in epoch 5", "posts"),
            "rank 1 waited longer than 0.5 s for signal 7 in epoch 5: expected 4 posts, saw 2");
  fault.seen = static_cast<std::uint32_t>(-3);  // the counter has not come as far as to the begin of the epoch
  EXPECT_EQ(runtime::fault_text(fault, "rank 1", 30, "for all ranks", "of them"),
            "rank 1 waited longer than 30 s for all ranks: expected 4 of them, saw -3");
  EXPECT_EQ(runtime::fault_text(fault, "rank 0", 3, "in collective call 2 for rank 1's vector (packet 9)"),
            "rank 0 waited longer than 3 s in collective call 2 for rank 1's vector (packet 9): it has not come");
  fault.state = device::Fault::never_entered;
  fault.late_and_one = 4;
  EXPECT_EQ(
      runtime::fault_text(fault, "rank 0", {30, 600}, "for signal 7 in epoch 5", "posts"),
      "rank 0 waited longer than 600 s for signal 7 in epoch 5: expected 4 posts, saw -3; rank 3 has not begun it");
}

}  // namespace
}  // namespace imbrex
