// Messages between ranks: order, reuse, and the rule that a slot has one writer.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include "collectives/cpu/mailbox.hpp"
#include "imbrex/error.hpp"

namespace imbrex::collectives {
namespace {

constexpr WorldOptions small{.heap_bytes = 1 << 22, .wait_limit = 10};

TEST(Mailbox, EveryMessageOfManyStepsArrivesWhole) {
  EXPECT_EQ(run_threads(3, small,
                        [](World& world) {
                          Mailbox mailbox(world, 3, 4096);
                          std::mt19937 random(static_cast<unsigned>(world.rank()));
                          for (int step = 0; step < 2000; ++step) {
                            for (int peer = 0; peer < 3; ++peer) {
                              std::memset(mailbox.message(peer, world.rank()), (step * 3 + world.rank()) & 0xff, 4096);
                              mailbox.post(peer, world.rank(), {step, 0, world.rank()});
                              if (random() % 200 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
                            }
                            for (int source = 0; source < 3; ++source) {
                              const Mailbox::Header& header = mailbox.wait(source, source, [] { return "a message"; });
                              const std::byte* message = mailbox.message(world.rank(), source);
                              const auto want = static_cast<std::byte>((step * 3 + source) & 0xff);
                              if (header.count != step || header.vote != source || message[0] != want ||
                                  message[4095] != want)
                                return 1;
                            }
                            mailbox.next_step();
                          }
                          return 0;
                        }),
            0);
}

TEST(Mailbox, ASlotWithTwoWritersIsFoundOut) {
  std::string message;
  const int code = run_threads(2, small, [&](World& world) {
    Mailbox mailbox(world, 1, 64);
    if (world.rank() == 0) mailbox.post(0, 0, {});
    world.barrier();
    if (world.rank() == 1) {
      try {
        mailbox.post(0, 0, {});
      } catch (const std::logic_error& error) {
        message = error.what();
      }
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(message, "slot 0 of rank 0 has two writers: ranks 0 and 1");
}

TEST(Mailbox, ARankThatAnExceptionEndsKeepsNoPeerWaiting) {
  std::string message;
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_threads(2, small,
                        [&](World& world) {
                          Mailbox mailbox(world, 1, 64);
                          if (world.rank() == 1) throw std::runtime_error("the caller's own reason");
                          try {
                            mailbox.wait(0, 1, [] { return "a message"; });
                          } catch (const Error& error) {
                            message = error.what();
                          }
                          return 0;
                        }),
            3);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "imbrex: rank 1: the caller's own reason\n");
  EXPECT_EQ(message, "rank 1 failed: the caller's own reason");
}

}  // namespace
}  // namespace imbrex::collectives
