// Queues of a real NIC, as far as they can be tested without one: a library that stands in for libibverbs, libmlx5 and
// libcuda refuses malformed commands and fails where a test says; what was made then works, served by the software NIC.
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <unistd.h>

#include <set>

#include "apps/nic/mlx5_device.hpp"
#include "shmem/mlx5/fake_mlx5.hpp"
#include "shmem/mlx5/fixture.hpp"
#include "shmem/suite.hpp"

#if defined(IMBREX_HAVE_CUDA_HEADER)
#include <cuda.h>
#endif

namespace imbrex::shmem::test {
std::vector<Case> calls_on_mlx5();  // calls.cpp
}

namespace imbrex::shmem::mlx5::test {
namespace {

constexpr WorldOptions small_world{.heap_bytes = std::size_t{64} << 20, .wait_limit = 30};
constexpr HeapOptions small_heap{.device = Device::cpu, .bytes = std::size_t{4} << 20};
constexpr QueueOptions few_queues{.contexts = 1, .slots = 8, .stage_bytes = 64};

// What each PE says; "made" where it has a NIC.
using Said = std::vector<std::string>;
Said make_nics(int pes, const std::function<Mlx5Options(int)>& options) {
  Said said(static_cast<std::size_t>(pes));
  const int code = run_threads(pes, small_world, [&](World& world) {
    Heap heap(world, small_heap);
    auto& own = said[static_cast<std::size_t>(world.rank())];
    try {
      const Mlx5Nic nic(heap, few_queues, options(world.rank()));
      own = "made";
    } catch (const Error& error) {
      own = error.what();
      if (error.code() != ErrorCode::runtime_failure) own += " (of another kind)";
    }
    heap.barrier(heap.world_team());  // the heap and its PEs are as they were
    return 0;
  });
  EXPECT_EQ(code, 0);
  return said;
}

void expect_begin(const std::string& text, const std::string& begin) { EXPECT_EQ(text.substr(0, begin.size()), begin); }

// ----------------------------------------------------------------------------------------------------- refusals

TEST(Mlx5NicRefusals, AMissingLibraryIsNamed) {
  for (const std::string& said :
       make_nics(2, [](int) { return Mlx5Options{.verbs_library = "libno_such_verbs.so.1"}; })) {
    if (IMBREX_NIC_HAS_MLX5)
      expect_begin(said, "no mlx5 NIC: PE 0: libno_such_verbs.so.1 cannot be loaded (");
    else
      expect_begin(said, "no mlx5 NIC: PE 0: this build had no headers of libibverbs");
  }
}

// On most machines; where there is a NIC, it may be made.
TEST(Mlx5NicRefusals, AMachineWithoutANicIsRefused) {
  const Said said = make_nics(2, [](int) { return Mlx5Options{}; });
  EXPECT_EQ(said[0], said[1]);
  if (said[0] != "made") expect_begin(said[0], "no mlx5 NIC: PE 0: ");
  std::printf("%s\n", said[0].c_str());
}

TEST(Mlx5NicRefusals, OptionsOutOfRangeAreRefused) {
  run_threads(1, small_world, [&](World& world) {
    Heap heap(world, small_heap);
    EXPECT_THROW(Mlx5Nic(heap, {.slots = 12}, {}), Error);
    return 0;
  });
}

#if defined(IMBREX_FAKE_MLX5)

// The library that stands in, as this test reaches it.
struct Fake {
  Fake() : handle(dlopen(IMBREX_FAKE_MLX5, RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) throw std::runtime_error(dlerror());
  }
  template <typename Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle, name));
  }
  void start(const FakeSetting& setting) const { find<FakeStart>("fake_start")(&setting); }
  FakeState state() const {
    FakeState now{};
    find<FakeTell>("fake_tell")(&now);
    return now;
  }
  FakeQueue queue(std::uint32_t number) const {
    FakeQueue found{};
    EXPECT_TRUE(find<FakeLook>("fake_look")(number, &found)) << "queue " << number;
    return found;
  }
  void* handle;
};

const Mlx5Options fake_options{
    .verbs_library = IMBREX_FAKE_MLX5, .mlx5_library = IMBREX_FAKE_MLX5, .cuda_library = IMBREX_FAKE_MLX5};

class Mlx5FakeNic : public testing::Test {
 protected:
  std::string refused(const FakeSetting& setting, const Mlx5Options& options = fake_options) const {
    fake.start(setting);
    std::string said = make_nics(1, [&](int) { return options; })[0];
    EXPECT_EQ(fake.state().objects, 0) << said;
    return said;
  }
  Fake fake;
};

TEST_F(Mlx5FakeNic, ALibraryWithoutAFunctionIsNamed) {
  Mlx5Options options = fake_options;
  options.verbs_library = "libm.so.6";
  EXPECT_EQ(refused({}, options), "no mlx5 NIC: PE 0: libm.so.6 has no ibv_get_device_list: a newer version is needed");
}

TEST_F(Mlx5FakeNic, WhatTheDeviceIsNotIsNamed) {
  EXPECT_EQ(refused({.has_device = false}),
            "no mlx5 NIC: PE 0: a device of mlx5 is not among this host's devices: there are none");
  EXPECT_EQ(refused({.is_mlx5 = false}),
            "no mlx5 NIC: PE 0: a device of mlx5 is not among this host's devices: mlx5_9 (not mlx5)");
  Mlx5Options options = fake_options;
  options.device = "mlx5_1";
  EXPECT_EQ(refused({}, options), "no mlx5 NIC: PE 0: mlx5_1 is not among this host's devices: mlx5_9");
  EXPECT_EQ(refused({.active = false}), "no mlx5 NIC: PE 0: port 1 of mlx5_9 is not active (its state is 1)");
  EXPECT_EQ(refused({.atomics = false}), "no mlx5 NIC: PE 0: mlx5_9 does no atomic operations");
  EXPECT_EQ(refused({.ethernet = true, .roce_v2 = false}),
            "no mlx5 NIC: PE 0: port 1 of mlx5_9 has no address of RoCE v2");
}

// Each call that can fail does, in its turn: the message names it, and all that was made is given back. The heap has
// room for few areas of queues, so they go back to it, too.
TEST_F(Mlx5FakeNic, EveryCallThatFailsIsNamedAndNothingIsLeft) {
  for (const bool ethernet : {false, true}) {
    std::set<std::string> failed;
    std::uint64_t calls = 0;
    const int code = run_threads(1, small_world, [&](World& world) {
      Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20});
      for (;; ++calls) {
        fake.start({.fail_at = calls, .number = ENOMEM, .ethernet = ethernet});
        std::string said = "made";
        try {
          const Mlx5Nic nic(heap, few_queues, fake_options);
        } catch (const Error& error) {
          said = error.what();
        }
        const FakeState state = fake.state();
        EXPECT_EQ(state.objects, 0) << said;
        EXPECT_EQ(heap.handle().transport, nullptr);
        if (state.failed[0] == 0) {
          EXPECT_EQ(said, "made");
          return 0;
        }
        failed.insert(state.failed);
        expect_begin(said, std::string("no mlx5 NIC: PE 0: ") + state.failed);
        EXPECT_NE(said.find(failed.size() < 2 ? " on this host failed: errno 12 (Cannot allocate memory)"
                                              : " on mlx5_9 failed: errno 12 (Cannot allocate memory)"),
                  std::string::npos)
            << said;
      }
    });
    EXPECT_EQ(code, 0);
    std::printf("%s: %llu calls of %zu kinds failed in turn\n", ethernet ? "RoCE" : "InfiniBand",
                static_cast<unsigned long long>(calls), failed.size());
    EXPECT_EQ(failed.size(), ethernet ? 17u : 16u);
    EXPECT_GE(calls, 10 + 6 * kinds);
  }
}

TEST_F(Mlx5FakeNic, ACommandThatTheNicRefusesIsToldWithItsSyndrome) {
  EXPECT_EQ(refused({.refuse = 0x400}),
            "no mlx5 NIC: PE 0: mlx5dv_devx_obj_create(CREATE_CQ) on mlx5_9 failed: errno 121 (Remote I/O error); the "
            "NIC's status 0x3, syndrome 0x42");
  for (const std::uint64_t command : {0x500, 0x502, 0x503, 0x504})
    EXPECT_NE(refused({.refuse = command}).find("; the NIC's status 0x3, syndrome 0x42"), std::string::npos);
}

TEST_F(Mlx5FakeNic, OnePEsFailureIsAllPEs) {
  fake.start({});
  const Said said = make_nics(3, [](int pe) {
    Mlx5Options options = fake_options;
    if (pe == 1) options.mlx5_library = "libno_such_mlx5.so.1";
    return options;
  });
  for (const std::string& one : said) expect_begin(one, "no mlx5 NIC: PE 1: libno_such_mlx5.so.1 cannot be loaded (");
  EXPECT_EQ(fake.state().objects, 0);
}

// ------------------------------------------------------------------------------------------------------- queues

// Makes queues of PEs that are threads, and looks at each PE's.
void with_nics(const Fake& fake, int pes, const FakeSetting& setting, const QueueOptions& options,
               const std::function<void(World&, Heap&, const Mlx5Nic&)>& body) {
  fake.start(setting);
  const int code = run_threads(pes, small_world, [&](World& world) {
    Heap heap(world, small_heap);
    const Mlx5Nic nic(heap, options, fake_options);
    body(world, heap, nic);
    world.barrier();
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(fake.state().objects, 0);
}

TEST_F(Mlx5FakeNic, KernelsFindWhatCommandsNamed) {
  constexpr QueueOptions options{.contexts = 2, .slots = 128, .stage_bytes = 64};
  with_nics(fake, 2, {}, options, [&](World&, Heap& heap, const Mlx5Nic& nic) {
    ASSERT_EQ(nic.ports().size(), 2u * 2 * kinds);
    EXPECT_EQ(nic.device(), "mlx5_9");
    std::set<std::uint64_t*> doorbells;
    for (const Port& port : nic.ports()) {
      const FakeQueue made = fake.queue(port.number);
      EXPECT_EQ(made.ring, port.queue->ring);
      EXPECT_EQ(made.record, port.queue->record);
      EXPECT_EQ(made.completion, port.queue->completion);
      EXPECT_EQ(made.completion, port.completion);
      EXPECT_EQ(made.doorbell, port.queue->doorbell);
      EXPECT_EQ(made.slots, 128u);
      EXPECT_EQ(port.queue->mask, 127u);
      EXPECT_EQ(*port.queue->record, 0u);
      EXPECT_EQ(port.completion->word[15], nothing_yet);
      EXPECT_TRUE(heap.holds(port.queue->ring, std::size_t{64} * made.slots));
      doorbells.insert(port.queue->doorbell);
      // Each ring is its own, prepared.
      EXPECT_EQ(port.queue->ring[127].segment[0].word[1] & be32(0xffffff00u), be32(port.number << 8));
    }
    EXPECT_EQ(doorbells.size(), nic.ports().size());
    EXPECT_EQ(nic.keys().base, reinterpret_cast<std::uintptr_t>(heap.handle().group.own) % 4096);
  });
}

TEST_F(Mlx5FakeNic, QueuesAreConnectedInPairs) {
  for (const bool ethernet : {false, true})
    with_nics(fake, 3, {.ethernet = ethernet}, few_queues, [&](World& world, Heap&, const Mlx5Nic& nic) {
      for (std::size_t i = 0; i < nic.ports().size(); ++i) {
        const Port& port = nic.ports()[i];
        const FakeQueue own = fake.queue(port.number), peer = fake.queue(own.peer);
        EXPECT_EQ(own.state, 3u);
        EXPECT_EQ(peer.peer, port.number);
        if (static_cast<int>(port.pe) == world.rank()) {
          EXPECT_EQ(own.peer, port.number);
        }
        EXPECT_EQ(own.mtu, 5u);
        if (ethernet) {  // the address of IPv4, which is the fake's third
          EXPECT_EQ(own.rgid[15], 3);
          EXPECT_EQ(own.rgid[10], 0xff);
          EXPECT_EQ(own.rmac[0], 0x02);
          EXPECT_EQ(own.rmac[5], 0x99);
          EXPECT_EQ(own.udp_source, 0xc000u | (port.number & 0x3fffu));
        } else {
          EXPECT_EQ(own.rlid, 0x123);
        }
      }
    });
}

TEST_F(Mlx5FakeNic, MemoryIsRegisteredInOrder) {
  with_nics(fake, 1, {}, few_queues, [&](World&, Heap&, const Mlx5Nic& nic) {
    const FakeState state = fake.state();
    EXPECT_EQ(static_cast<unsigned>(state.access) & (1u << 20), 0u);  // IBV_ACCESS_RELAXED_ORDERING
    EXPECT_EQ(state.access, 15);  // written here; written, read and added to by peers
    EXPECT_EQ(state.iova, nic.keys().base);
  });
}

TEST_F(Mlx5FakeNic, OlderLibrariesLendDoorbellsOfAnotherKind) {
  with_nics(fake, 1, {.own_uars = false}, few_queues,
            [&](World&, Heap&, const Mlx5Nic& nic) { EXPECT_EQ(nic.ports().size(), kinds); });
}

// The software NIC serves what the commands made: the suite of the device API runs over it.
TEST_F(Mlx5FakeNic, TheSuiteRunsOverItsQueues) {
  constexpr WorldOptions large_world{.heap_bytes = std::size_t{64} << 20, .wait_limit = 60};
  constexpr HeapOptions large_heap{.device = Device::cpu, .bytes = std::size_t{16} << 20};
  constexpr QueueOptions options{.contexts = 8, .slots = 4, .largest = 8192, .stage_bytes = 1024};
  const auto cases = shmem::test::calls_on_mlx5();
  const int code = run_processes(3, large_world, [&](World& world) {
    fake.start({.ethernet = true});
    world.heap().allocate(256);  // so that what is registered does not begin with a page
    Heap heap(world, large_heap);
    const Mlx5Nic made(heap, options, fake_options);
    if (made.keys().base == 0) return 4;
    const QueueLayout layout(heap, options);
    MemoryKeys here;
    std::vector<MemoryKeys> there(layout.pes());
    here.add(made.keys().local, layout.begin(), layout.bytes(), made.keys().base);
    for (std::uint32_t pe = 0; pe < layout.pes(); ++pe)
      there[pe].add(made.keys().remote[pe], device::at_rank(heap.handle().group, layout.begin(), pe), layout.bytes(),
                    made.keys().base);
    SoftwareNic nic(made.ports(), here, there, unkind(static_cast<std::uint64_t>(11 + world.rank())));
    shmem::test::Bench bench(heap, nullptr);
    int wrong = 0;
    const std::size_t ran = shmem::test::run_all(bench, cases, 1, [&](const std::string& line) {
      if (++wrong <= 5) std::fprintf(stderr, "%s\n", line.c_str());
    });
    world.barrier();
    if (ran != cases.size()) return 2;
    if (nic.counts().requests == 0) return 3;
    return wrong == 0 ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

// ---------------------------------------------------------------------------------------------------------- GPUs

std::string gpu_says(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST_F(Mlx5FakeNic, AGpuThatDoesNotOrderWritesIsRefused) {
  for (const int flush : {0, 1}) {
    fake.start({.ordering = 0, .flush_options = flush});
    const std::string said = gpu_says([] { NicGpu(2, IMBREX_FAKE_MLX5).expect_ordered_writes(); });
    expect_begin(said, "GPU 2 may show a kernel a signal before the data");
    EXPECT_NE(said.find(flush == 1 ? "cuFlushGPUDirectRDMAWrites" : "this platform has not"), std::string::npos);
    EXPECT_EQ(fake.state().objects, 0);
  }
  for (const int ordering : {100, 200}) {
    fake.start({.ordering = ordering});
    const NicGpu gpu(0, IMBREX_FAKE_MLX5);
    EXPECT_EQ(gpu_says([&] { gpu.expect_ordered_writes(); }), "nothing");
    EXPECT_FALSE(gpu.writes_ordering().waits_need_flush());
#if defined(IMBREX_HAVE_CUDA_HEADER)
    EXPECT_EQ(fake.state().attributes[0] + fake.state().attributes[1],
              static_cast<int>(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) +
                  static_cast<int>(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS));
#endif
  }
}

TEST_F(Mlx5FakeNic, ARegisterIsMappedOnceAndLetGo) {
  fake.start({});
  {
    NicGpu gpu(0, IMBREX_FAKE_MLX5);
    alignas(64) std::uint64_t bell = 0;
    std::uint64_t* const there = gpu.map_register(&bell, 8);
    EXPECT_EQ(reinterpret_cast<std::byte*>(there), reinterpret_cast<std::byte*>(&bell) + 0x1000);
    EXPECT_EQ(gpu.map_register(&bell, 8), there);
    EXPECT_EQ(fake.state().objects, 2);  // the GPU's context, the register
    alignas(4096) static std::byte page[4096];
    const int file = gpu.dma_buffer(page, sizeof page);
    EXPECT_GE(file, 0);
    close(file);
#if defined(IMBREX_HAVE_CUDA_HEADER)
    EXPECT_EQ(fake.state().map_flags, static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                                            CU_MEMHOSTREGISTER_IOMEMORY));
    EXPECT_EQ(fake.state().handle_type, static_cast<int>(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD));
#endif
  }
  EXPECT_EQ(fake.state().objects, 0);
}

// Without nvidia_peermem a NIC takes no addresses of a GPU.
TEST_F(Mlx5FakeNic, AGpusMemoryIsRegisteredByDmaBuffers) {
  fake.start({.takes_memory = false});
  {
    const NicGpu gpu(0, IMBREX_FAKE_MLX5);
    Mlx5Device device(fake_options);
    alignas(4096) static std::byte memory[8192];
    device.register_memory(memory + 256, 4096, &gpu);
    EXPECT_EQ(fake.state().iova, 256u);
    EXPECT_EQ(device.card().base, 256u);
    device.map_queues(memory, sizeof memory, &gpu);
    // A heap in memory has no such way.
    Mlx5Device another(fake_options);
    expect_begin(gpu_says([&] { another.register_memory(memory, 4096, nullptr); }),
                 "ibv_reg_mr_iova of 4096 bytes on mlx5_9 failed: errno 22 (Invalid argument)");
  }
  EXPECT_EQ(fake.state().objects, 0);
  for (std::uint64_t at = 0;; ++at) {
    fake.start({.fail_at = at, .takes_memory = false});
    const std::string said = gpu_says([] {
      const NicGpu gpu(0, IMBREX_FAKE_MLX5);
      Mlx5Device device(fake_options);
      alignas(4096) static std::byte memory[4096];
      device.register_memory(memory, 4096, &gpu);
      device.map_queues(memory, 4096, &gpu);
    });
    EXPECT_EQ(fake.state().objects, 0) << said;
    if (said == "nothing" && fake.state().failed[0] == 0) break;
  }
}

TEST_F(Mlx5FakeNic, EachCallOfCudaThatFailsIsNamed) {
  std::set<std::string> failed;
  for (std::uint64_t at = 0;; ++at) {
    fake.start({.fail_at = at});
    const std::string said = gpu_says([] {
      NicGpu gpu(1, IMBREX_FAKE_MLX5);
      gpu.expect_ordered_writes();
      alignas(64) std::uint64_t bell = 0;
      gpu.map_register(&bell, 8);
      alignas(4096) static std::byte page[4096];
      close(gpu.dma_buffer(page, sizeof page));
    });
    const FakeState state = fake.state();
    EXPECT_EQ(state.objects, 0) << said;
    if (state.failed[0] == 0) break;
    failed.insert(state.failed);
    expect_begin(said, state.failed);
    EXPECT_NE(said.find(" on GPU 1 failed: 999 (CUDA_ERROR_UNKNOWN)"), std::string::npos) << said;
  }
  EXPECT_EQ(failed.size(), 7u);
}

#endif

}  // namespace
}  // namespace imbrex::shmem::mlx5::test
