#include "apps/nic/mlx5_gpu.hpp"

#include <map>

#include "apps/nic/mlx5_libraries.hpp"

namespace imbrex::shmem::mlx5 {
namespace {

// cuda.h's values, which this build may be without; tests/shmem/mlx5/nic_test.cpp compares them.
constexpr int flush_options_attribute = 117, writes_ordering_attribute = 118, flush_by_host = 1;
constexpr unsigned portable = 1, mapped = 2, io_memory = 4;
constexpr int dma_buffer_handle = 1;

}  // namespace

// NOTE: its calls work on the context that is current, which is the caller's to choose; this makes the runtime's
// current for as long as a call takes.
struct NicGpu::Driver {
  using Result = int;
  using Context = void*;
  using Address = unsigned long long;

  Driver(int the_number, const std::string& name) : number(the_number) {
    const LoadedLibrary library(name);
    library.find(init, "cuInit");
    library.find(get_error_name, "cuGetErrorName");
    library.find(device_get, "cuDeviceGet");
    library.find(get_attribute, "cuDeviceGetAttribute");
    library.find(retain, "cuDevicePrimaryCtxRetain");
    library.find(release, "cuDevicePrimaryCtxRelease_v2");
    library.find(push, "cuCtxPushCurrent_v2");
    library.find(pop, "cuCtxPopCurrent_v2");
    library.find(host_register, "cuMemHostRegister_v2");
    library.find(host_unregister, "cuMemHostUnregister");
    library.find(host_device_pointer, "cuMemHostGetDevicePointer_v2");
    library.find(address_range, "cuMemGetHandleForAddressRange");
    expect(init(0), "cuInit");
    expect(device_get(&device, number), "cuDeviceGet");
    expect(retain(&context, device), "cuDevicePrimaryCtxRetain");
  }

  ~Driver() {
    const Current current(*this);
    for (const auto& [address, mapping] : registers) host_unregister(address);
    release(device);
  }

  void expect(Result result, const char* call) const {
    if (result == 0) return;
    const char* text = nullptr;
    get_error_name(result, &text);
    throw Error(ErrorCode::runtime_failure, fmt::format("{} on GPU {} failed: {} ({})", call, number, result,
                                                        text != nullptr ? text : "a result without a name"));
  }

  int attribute(int which, const char* what) const {
    int value = 0;
    expect(get_attribute(&value, which, device), what);
    return value;
  }

  struct Current {
    explicit Current(const Driver& its) : driver(its) { pushed = driver.push(driver.context) == 0; }
    ~Current() {
      Context before = nullptr;
      if (pushed) driver.pop(&before);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    const Driver& driver;
    bool pushed;
  };

  int number;
  int device = 0;
  Context context = nullptr;
  std::map<void*, std::uint64_t*> registers;

  Result (*init)(unsigned);
  Result (*get_error_name)(Result, const char**);
  Result (*device_get)(int*, int);
  Result (*get_attribute)(int*, int, int);
  Result (*retain)(Context*, int);
  Result (*release)(int);
  Result (*push)(Context);
  Result (*pop)(Context*);
  Result (*host_register)(void*, std::size_t, unsigned);
  Result (*host_unregister)(void*);
  Result (*host_device_pointer)(Address*, void*, unsigned);
  Result (*address_range)(void*, Address, std::size_t, int, unsigned long long);
};

NicGpu::NicGpu(int number, const std::string& library) : driver_(std::make_unique<Driver>(number, library)) {}
NicGpu::~NicGpu() = default;

WritesOrdering NicGpu::writes_ordering() const {
  return {driver_->attribute(writes_ordering_attribute, "cuDeviceGetAttribute(GPU_DIRECT_RDMA_WRITES_ORDERING)"),
          (driver_->attribute(flush_options_attribute, "cuDeviceGetAttribute(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)") &
           flush_by_host) != 0};
}

void NicGpu::expect_ordered_writes() const {
  const WritesOrdering ordering = writes_ordering();
  if (!ordering.waits_need_flush()) return;
  throw Error(ErrorCode::runtime_failure,
              fmt::format("GPU {} may show a kernel a signal before the data that the NIC wrote before it "
                          "(GPU_DIRECT_RDMA_WRITES_ORDERING is {}): waits would need a flush, which {}",
                          driver_->number, ordering.scope,
                          ordering.host_may_flush ? "is the host's (cuFlushGPUDirectRDMAWrites) and no kernel's"
                                                  : "this platform has not"));
}

std::uint64_t* NicGpu::map_register(void* address, std::size_t bytes) {
  if (const auto found = driver_->registers.find(address); found != driver_->registers.end()) return found->second;
  const Driver::Current current(*driver_);
  driver_->expect(driver_->host_register(address, bytes, portable | mapped | io_memory),
                  "cuMemHostRegister of the NIC's doorbell (IOMEMORY, which needs the driver's option "
                  "PeerMappingOverride=1)");
  auto& mapping = driver_->registers[address];
  Driver::Address there = 0;
  driver_->expect(driver_->host_device_pointer(&there, address, 0), "cuMemHostGetDevicePointer of the NIC's doorbell");
  return mapping = reinterpret_cast<std::uint64_t*>(there);
}

int NicGpu::dma_buffer(const void* begin, std::size_t bytes) const {
  const Driver::Current current(*driver_);
  int file = -1;
  driver_->expect(driver_->address_range(&file, reinterpret_cast<Driver::Address>(begin), bytes, dma_buffer_handle, 0),
                  "cuMemGetHandleForAddressRange");
  return file;
}

}  // namespace imbrex::shmem::mlx5
