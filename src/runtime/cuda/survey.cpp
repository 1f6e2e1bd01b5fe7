#include "runtime/cuda/survey.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/fixed_text.hpp"
#include "runtime/bootstrap/socket.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/memory.hpp"

namespace imbrex {
namespace {

constexpr int most_gpus = 64;
constexpr double kill_patience = 2;     // seconds from SIGKILL until a process is left behind
constexpr double driver_patience = 60;  // seconds; the first user of a driver waits for it to start all GPUs

// What the asking process writes to the pipe: a Head, then `count` of Record.
struct Head {
  std::int32_t count = 0;
  char reason[256] = {};  // ends with a zero byte
};
struct Record {
  char name[128] = {}, uuid[64] = {};  // end with a zero byte
  std::uint64_t memory_bytes = 0;
  std::int32_t sms = 0, major = 0, minor = 0;
  bool maps_memory = false, exports_memory = false;
  GpuLink links[most_gpus] = {};
};

GpuLink link_between(int from, int to) {
  if (from == to) return GpuLink::nvlink;
  int reaches = 0, atomics = 0;
  if (cudaDeviceCanAccessPeer(&reaches, from, to) != cudaSuccess || reaches == 0) return GpuLink::none;
  const cudaError_t status = cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to);
  return status == cudaSuccess && atomics != 0 ? GpuLink::nvlink : GpuLink::pcie;
}

std::string readable_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// Throws what is missing where there is no device.
int count_devices() {
  int count = 0, version = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&version) == cudaSuccess)
    throw Error(ErrorCode::runtime_failure,
                version == 0 ? "there is no NVIDIA driver"
                             : fmt::format("the NVIDIA driver is for CUDA {}, this build needs {}",
                                           readable_version(version), readable_version(CUDART_VERSION)));
  throw Error(ErrorCode::runtime_failure, fmt::format("CUDA reports: {}", cudaGetErrorString(status)));
}

std::vector<Record> ask(Head& head) {
  std::vector<Record> records;
  try {
    const int count = count_devices();
    for (int i = 0; i < std::min(count, most_gpus); ++i) {
      const Gpu gpu = runtime::ask_gpu(i);
      Record r;
      base::put_text(gpu.name, r.name);
      base::put_text(gpu.uuid, r.uuid);
      r.memory_bytes = gpu.memory_bytes;
      r.sms = gpu.sms;
      r.major = gpu.major;
      r.minor = gpu.minor;
      r.maps_memory = gpu.maps_memory;
      r.exports_memory = gpu.exports_memory;
      for (int peer = 0; peer < std::min(count, most_gpus); ++peer) r.links[peer] = link_between(i, peer);
      records.push_back(r);
    }
    head.count = static_cast<std::int32_t>(records.size());
    if (head.count == 0) throw Error(ErrorCode::runtime_failure, "the driver shows no GPU");
  } catch (const std::exception& error) {
    head = {};
    base::put_text(error.what(), head.reason);
    records.clear();
  }
  return records;
}

GpuSurvey survey_of(const Head& head, const std::vector<Record>& records) {
  GpuSurvey survey;
  survey.reason = head.reason;
  for (const Record& r : records) {
    survey.gpus.push_back({r.name, r.uuid, r.memory_bytes, r.sms, r.major, r.minor, r.maps_memory, r.exports_memory});
    survey.links.insert(survey.links.end(), r.links, r.links + records.size());
  }
  return survey;
}

void write_all(int file, const void* data, std::size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(file, next, bytes);
    if (written <= 0) {
      if (written < 0 && errno == EINTR) continue;
      return;
    }
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

// False where less than `bytes` came before the other end closed, or the deadline.
bool read_all(int file, void* data, std::size_t bytes, runtime::Deadline deadline) {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    pollfd entry{file, POLLIN, 0};
    const int ready = poll(&entry, 1, runtime::milliseconds_until(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t got = read(file, next, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

GpuSurvey none(std::string reason) {
  GpuSurvey survey;
  survey.reason = std::move(reason);
  return survey;
}

}  // namespace

GpuSurvey runtime::survey_gpus_here() {
  Head head;
  const std::vector<Record> records = ask(head);
  return survey_of(head, records);
}

GpuSurvey survey_gpus() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return none(fmt::format("pipe2 failed: {}", std::strerror(errno)));
  const runtime::FileDescriptor from_child(ends[0]);
  runtime::FileDescriptor to_parent(ends[1]);
  const pid_t parent = getpid(), child = fork();
  if (child < 0) return none(fmt::format("fork failed: {}", std::strerror(errno)));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    Head head;
    const std::vector<Record> records = ask(head);
    write_all(to_parent.get(), &head, sizeof head);
    write_all(to_parent.get(), records.data(), records.size() * sizeof(Record));
    _exit(0);  // the parent's exit handlers and destructors are the parent's
  }
  to_parent.close();
  Head head;
  std::vector<Record> records;
  const runtime::Deadline deadline = runtime::deadline_in(driver_patience);
  bool whole = read_all(from_child.get(), &head, sizeof head, deadline);
  if (whole) {
    records.resize(static_cast<std::size_t>(std::clamp(head.count, 0, most_gpus)));
    whole = read_all(from_child.get(), records.data(), records.size() * sizeof(Record), deadline);
  }
  const bool late = !whole && runtime::milliseconds_until(deadline) == 0;
  kill(child, SIGKILL);  // what it had to say has been read; ending the driver takes time
  // A process that hangs in the driver is not even ended by SIGKILL: it is not waited for without limit.
  const runtime::Deadline patience = runtime::deadline_in(kill_patience);
  int status = 0;
  for (pid_t ended = 0; ended == 0 || (ended < 0 && errno == EINTR);) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended != 0) continue;
    if (runtime::milliseconds_until(patience) == 0) break;
    usleep(1000);
  }
  if (whole) return survey_of(head, records);
  if (late) return none(fmt::format("the CUDA driver did not answer within {} s", driver_patience));
  return none(WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL
                  ? fmt::format("the CUDA driver ended the process that asked it, by signal {}", WTERMSIG(status))
                  : "the process that asked the CUDA driver ended without an answer");
}

}  // namespace imbrex
