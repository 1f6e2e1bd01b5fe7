// What a NIC refuses, what a NIC that stops comes to, and what kernels and hosts hear of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "apps/nic/syndromes.hpp"
#include "shmem/mlx5/fixture.hpp"

namespace imbrex::shmem::mlx5::test {
namespace {

constexpr WorldOptions world_options{.heap_bytes = std::size_t{64} << 20, .wait_limit = 20};
constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{4} << 20};
constexpr QueueOptions queue_options{.contexts = 2, .slots = 8};

// ------------------------------------------------------------------------------- requests that are refused

// Requests by hand, in one world of one PE.
class Mlx5Nic : public testing::Test {
 protected:
  // Runs `body(the handle, the queue of a kind)`.
  static void with_queue(Kind kind, const std::function<void(const Handle&, Queue&)>& body) {
    const int code = run_threads(1, world_options, [&](World& world) {
      return at_site(world, heap_options, queue_options, {}, [&](Site& site) {
        body(site.heap.handle(), *site.queues.ports()[static_cast<std::size_t>(kind)].queue);
        return 0;
      });
    });
    EXPECT_EQ(code, 0);
  }

  // Posts one request and waits for its completion: the syndrome, 0 where it went well.
  template <Verb verb>
  static std::uint32_t run(Queue& queue, const Moving& moving) {
    ring_doorbell<verb, Reach::system>(queue, append<verb>(queue, moving));
    return outcome(queue);
  }
  static std::uint32_t outcome(const Queue& queue) {
    for (;;) {
      const Progress progress = look(queue);
      if (progress.failed) return be32(words::load(&queue.completion->word[13])) & 0xff;
      if (progress.completed == queue.posted) return 0;
      std::this_thread::yield();
    }
  }
};

TEST_F(Mlx5Nic, DoesWhatIsWellFormed) {
  with_queue(Kind::write, [](const Handle&, Queue& queue) {
    for (int i = 0; i < 100; ++i) EXPECT_EQ(run<Verb::write>(queue, {.remote = 64, .local = 128, .bytes = 24}), 0u);
  });
}

TEST_F(Mlx5Nic, RefusesAWrongKeyThere) {
  with_queue(Kind::write, [](const Handle&, Queue& queue) {
    queue.ring[0].segment[1].word[2] ^= be32(1);
    EXPECT_EQ(run<Verb::write>(queue, {.remote = 64, .local = 128, .bytes = 24}), remote_access_error);
  });
}

TEST_F(Mlx5Nic, RefusesAWrongKeyHere) {
  with_queue(Kind::read, [](const Handle&, Queue& queue) {
    queue.ring[0].segment[2].word[1] ^= be32(1);
    EXPECT_EQ(run<Verb::read>(queue, {.remote = 64, .local = 128, .bytes = 24}), local_protection_error);
  });
}

TEST_F(Mlx5Nic, RefusesWhatLiesOutside) {
  with_queue(Kind::write, [&](const Handle& handle, Queue& queue) {
    const auto before = static_cast<std::uint64_t>(handle.own - reinterpret_cast<std::byte*>(handle.group.own));
    const std::uint64_t end = before + handle.bytes;
    EXPECT_EQ(run<Verb::write>(queue, {.remote = end - 24, .local = 128, .bytes = 24}), 0u);
    EXPECT_EQ(run<Verb::write>(queue, {.remote = end - 23, .local = 128, .bytes = 24}), remote_access_error);
  });
  with_queue(Kind::read, [&](const Handle&, Queue& queue) {
    EXPECT_EQ(run<Verb::read>(queue, {.remote = 64, .local = ~std::uint64_t{0} - 3, .bytes = 8}),
              local_protection_error);
  });
}

TEST_F(Mlx5Nic, RefusesAVerbThatTheSlotIsNotFor) {
  // An addition has a segment more than a write was prepared with.
  with_queue(Kind::write, [](const Handle&, Queue& queue) {
    EXPECT_EQ(run<Verb::fetch_add>(queue, {.remote = 64, .bytes = 8, .operand = 1}), local_operation_error);
  });
  // Inline data lies where a write has its key: the next lap's write finds none.
  with_queue(Kind::write, [](const Handle&, Queue& queue) {
    EXPECT_EQ(run<Verb::write_inline>(queue, {.remote = 64, .bytes = 8, .operand = 1}), 0u);
    for (int i = 0; i < 7; ++i) EXPECT_EQ(run<Verb::write>(queue, {.remote = 64, .local = 128, .bytes = 8}), 0u);
    EXPECT_EQ(run<Verb::write>(queue, {.remote = 64, .local = 128, .bytes = 8}), local_protection_error);
  });
}

TEST_F(Mlx5Nic, RefusesAnIndexOfTheLapBefore) {
  with_queue(Kind::write, [](const Handle&, Queue& queue) {
    for (int i = 0; i < 8; ++i) EXPECT_EQ(run<Verb::write>(queue, {.remote = 64, .local = 128, .bytes = 8}), 0u);
    // The ninth is told of, but slot 0 still has the first.
    ++queue.posted;
    ring_doorbell<Verb::write, Reach::system>(queue, first_word(Verb::write, 8));
    EXPECT_EQ(outcome(queue), local_operation_error);
  });
}

TEST_F(Mlx5Nic, RefusesAnOddPlaceForAnAddition) {
  with_queue(Kind::fetch_add, [](const Handle&, Queue& queue) {
    EXPECT_EQ(run<Verb::fetch_add>(queue, {.remote = 68, .bytes = 8, .operand = 1}), remote_request_error);
  });
}

TEST_F(Mlx5Nic, RefusesADoorbellBeforeItsRecordAndMoreThanARing) {
  with_queue(Kind::write, [](const Handle&, Queue& queue) {
    const std::uint32_t first = append<Verb::write>(queue, {.remote = 64, .local = 128, .bytes = 8});
    words::store(queue.doorbell, static_cast<std::uint64_t>(second_word(Verb::write, queue.queue_word)) << 32 | first);
    EXPECT_EQ(outcome(queue), local_operation_error);
  });
  with_queue(Kind::write, [](const Handle&, Queue& queue) {
    std::uint32_t first = 0;
    for (int i = 0; i < 9; ++i) first = append<Verb::write>(queue, {.remote = 64, .local = 128, .bytes = 8});
    ring_doorbell<Verb::write, Reach::system>(queue, first);
    EXPECT_EQ(outcome(queue), local_operation_error);
  });
}

TEST_F(Mlx5Nic, FlushesWhatComesBehindAnError) {
  with_queue(Kind::write, [](const Handle&, Queue& queue) {
    EXPECT_EQ(run<Verb::write>(queue, {.remote = ~std::uint64_t{0}, .local = 128, .bytes = 8}), remote_access_error);
    append<Verb::write>(queue, {.remote = 64, .local = 128, .bytes = 8});
    ring_doorbell<Verb::write, Reach::system>(queue, first_word(Verb::write, 1));
    while (look(queue).completed != 2) std::this_thread::yield();
    EXPECT_EQ(outcome(queue), flushed_error);
  });
}

TEST(Mlx5Queues, RefuseOptionsOutOfRange) {
  const auto said = [](const QueueOptions& options) {
    std::string words;
    run_threads(1, world_options, [&](World& world) {
      Heap heap(world, heap_options);
      try {
        Queues queues(heap, options);
      } catch (const Error& error) {
        words = error.what();
      }
      return 0;
    });
    return words;
  };
  EXPECT_NE(said({.slots = 65536}).find("slots = 65536"), std::string::npos);
  EXPECT_NE(said({.slots = 12}).find("slots = 12"), std::string::npos);
  EXPECT_NE(said({.contexts = 0}).find("contexts = 0"), std::string::npos);
  EXPECT_NE(said({.stage_bytes = 60}).find("stage_bytes = 60"), std::string::npos);
  EXPECT_NE(said({.slots = 32768}).find("symmetric heap is full"), std::string::npos);
}

// The heap has a number of contexts, and so have the queues: the smaller one counts.
TEST(Mlx5Queues, HaveNoMoreContextsThanTheHeap) {
  for (const std::uint32_t of_heap : {1u, 2u, 3u}) {
    const int code = run_threads(1, world_options, [&](World& world) {
      Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20, .contexts = of_heap});
      Queues queues(heap, queue_options);
      for (std::uint32_t number = 0; number < 5; ++number)
        EXPECT_EQ(Mlx5().open(heap.handle(), number), number < std::min(of_heap, 2u)) << number << " of " << of_heap;
      return 0;
    });
    EXPECT_EQ(code, 0);
  }
}

// ------------------------------------------------------------------------------------ what kernels hear of it

IMBREX_KERNEL put_and_wait(Handle handle, std::uint64_t* box, Signal* signal) {
  Context<Mlx5> context(handle);
  const std::uint32_t next = (context.pe() + 1) % context.pes();
  for (std::uint64_t i = 0; i < 50; ++i) {
    context.put_signal_nbi(box, box + 1, 1, signal, 1, SignalOperation::add, next);
    if (!context.signal_wait_until(signal, Compare::greater_equal, i + 1)) return;
  }
  context.signal_wait_until(signal, Compare::equal, 0);
}

// PE 0 is the first whose wait ends: the others' only end with it.
void wait_for_the_end(const Handle& handle) {
  const auto begin = std::chrono::steady_clock::now();
  while (!device::given_up(handle.group) && std::chrono::steady_clock::now() - begin < std::chrono::minutes(2))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

IMBREX_KERNEL ask_and_wait(Handle handle, std::uint64_t* box, Signal*) {
  Context<Mlx5> context(handle);
  if (context.pe() == 0)
    context.get(box, box + 1, 1, 2);
  else
    wait_for_the_end(handle);
}

// All PEs end, and say `part`, which PE 0 was the first to see.
template <typename Kernel>
void expect_end(Kernel* kernel, double limit, const NicOptions& on_first, const std::string& part) {
  const auto begin = std::chrono::steady_clock::now();
  WorldOptions options = world_options;
  options.wait_limit = limit;
  const int code = run_processes(3, options, [&](World& world) {
    Heap heap(world, heap_options);
    Queues queues(heap, queue_options);
    SoftwareNic nic(queues, world.rank() == 0 ? on_first : NicOptions{});
    const auto box = heap.array<std::uint64_t>(2);
    const auto signal = heap.array<Signal>(1);
    try {
      launch(heap, {}, kernel, heap.handle(), box.data(), signal.data());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::runtime_failure) return 1;
      if (std::string(error.what()).find(part) != std::string::npos) return 7;
      std::fprintf(stderr, "PE %d said: %s\n", world.rank(), error.what());
      return 2;
    }
    return 3;
  });
  EXPECT_EQ(code, 7);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(100));
}

TEST(Mlx5Failures, ARefusedRequestEndsAllPEsAndIsNamed) {
  // No PE waits for that last put's signal: the kernel finds its error while it waits for something else.
  expect_end(put_and_wait, 20, {.refuse_at = 99, .syndrome = remote_access_error},
             "PE 0, block 0: the NIC refused request 99 to PE 1 of its queue for writes and signals that are added to: "
             "remote access error");
  expect_end(ask_and_wait, 20, {.refuse_at = 0, .syndrome = 0x15},
             "PE 0, block 0: the NIC refused request 0 to PE 2 of its queue for reads: transport retries exceeded");
}

TEST(Mlx5Failures, ANicThatStopsIsABoundedError) {
  expect_end(ask_and_wait, 3, {.stop_at = 0},
             "PE 0, block 0 waited longer than 3 s for request 1 to PE 2 of its queue for reads: 0 are complete");
}

IMBREX_KERNEL fill_queue(Handle handle, std::uint64_t* box, Signal*) {
  Context<Mlx5> context(handle);
  if (context.pe() == 0)
    for (int i = 0; i < 20; ++i) context.put_nbi(box, box + 1, 1, 1);
  else
    wait_for_the_end(handle);
}

TEST(Mlx5Failures, AFullQueueIsABoundedError) {
  expect_end(fill_queue, 3, {.stop_at = 3}, "its queue for writes: 3 are complete");
}

}  // namespace
}  // namespace imbrex::shmem::mlx5::test
