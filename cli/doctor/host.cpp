// What the machine offers without GPUs.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "examination.hpp"
#include "imbrex/machine.hpp"

namespace imbrex::cli {
namespace {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  return known ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

/// The value in kB of a line of /proc/meminfo, in bytes; 0 where there is none.
double memory_line(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return 1024 * std::strtod(line.c_str() + name.size() + 1, nullptr);
  return 0;
}

void examine_cpu(Examination& exam) {
  utsname system{};
  uname(&system);
  const int cores = usable_cores();
  exam.say(Verdict::good, "cores",
           fmt::format("{} usable; more ranks than that share them and are slower than real ones would be", cores));
  // "200000 100000": 2 cores' worth of time in every period.
  const std::string quota = first_line("/sys/fs/cgroup/cpu.max");
  double limit = 0, period = 0;
  if (std::sscanf(quota.c_str(), "%lf %lf", &limit, &period) == 2 && period > 0 && limit / period < cores)
    exam.say(Verdict::note, "cores", fmt::format("a control group allows {:.1f} cores' worth of time", limit / period));
  exam.say(Verdict::good, "memory",
           fmt::format("{}, {} of it free", readable_bytes(memory_line("MemTotal")),
                       readable_bytes(memory_line("MemAvailable"))));
  const std::string cap = first_line("/sys/fs/cgroup/memory.max");
  if (!cap.empty() && cap != "max")
    exam.say(Verdict::note, "memory",
             fmt::format("a control group allows {}", readable_bytes(std::strtod(cap.c_str(), nullptr))));
  const Machine host = probe_machine();
  const double rate = host.sm_rate.at(Type::fp32) * host.sms;
  exam.say(Verdict::good, "BLAS", fmt::format("{}: {:.0f} GFLOP/s in fp32 on all cores", IMBREX_BLAS, rate / 1e9));
  exam.say(Verdict::good, "system", fmt::format("{} {}", system.sysname, system.release));
}

void examine_kernel(Examination& exam) {
  const long memory = memfd_create("imbrex-doctor", MFD_CLOEXEC);
  if (memory >= 0) {
    close(static_cast<int>(memory));
    exam.say(Verdict::good, "memfd", "symmetric heaps can be shared between processes");
  } else {
    exam.say(Verdict::missing, "memfd", fmt::format("{}; ranks can't be processes, only threads", std::strerror(errno)),
             "let the container's seccomp profile allow memfd_create, or run with --world threads");
  }
  const long process = syscall(SYS_pidfd_open, getpid(), 0);
  if (process >= 0) {
    close(static_cast<int>(process));
    exam.say(Verdict::good, "pidfd", "a lost rank is noticed at once");
  } else {
    exam.say(Verdict::note, "pidfd",
             fmt::format("{}; a lost rank is noticed by its record lock instead", std::strerror(errno)));
  }
}

// Imbrex keeps nothing there; NCCL keeps its buffers between processes there.
void examine_shared_memory(Examination& exam) {
  constexpr double enough = 256.0 * (1 << 20);
  struct statvfs disk {};
  if (statvfs("/dev/shm", &disk) != 0)
    return exam.say(Verdict::note, "/dev/shm", "there is none; NCCL and torch need one, Imbrex does not",
                    "mount a tmpfs at /dev/shm");
  const double size = static_cast<double>(disk.f_frsize) * static_cast<double>(disk.f_blocks),
               free = static_cast<double>(disk.f_frsize) * static_cast<double>(disk.f_bavail);
  const std::string words = fmt::format("{}, {} of it free, for NCCL and torch; Imbrex needs none",
                                        readable_bytes(size), readable_bytes(free));
  if (free >= enough) return exam.say(Verdict::good, "/dev/shm", words);
  exam.say(Verdict::note, "/dev/shm", words, "give a container more: docker run --shm-size=1g, or --ipc=host");
}

void examine_limits(Examination& exam) {
  constexpr rlim_t descriptors = 1024;
  const auto limit = [](auto kind) {
    rlimit own{};
    getrlimit(kind, &own);
    return own.rlim_cur;
  };
  const auto text = [](rlim_t value, bool bytes) {
    if (value == RLIM_INFINITY) return std::string("unlimited");
    return bytes ? readable_bytes(static_cast<double>(value)) : fmt::to_string(value);
  };
  const rlim_t files = limit(RLIMIT_NOFILE), addresses = limit(RLIMIT_AS), locked = limit(RLIMIT_MEMLOCK);
  exam.say(files >= descriptors ? Verdict::good : Verdict::note, "limits",
           fmt::format("{} open files (ulimit -n); a rank holds a few for each other rank", text(files, false)),
           files >= descriptors ? "" : "ulimit -n 4096");
  if (addresses != RLIM_INFINITY)
    exam.say(Verdict::note, "limits",
             fmt::format("{} of addresses (ulimit -v); heaps of all ranks are mapped into each", text(addresses, true)),
             "ulimit -v unlimited");
  std::error_code ignored;
  const bool fabric = std::filesystem::exists("/sys/class/infiniband", ignored);
  if (fabric && locked != RLIM_INFINITY)
    exam.say(Verdict::note, "limits",
             fmt::format("{} of locked memory (ulimit -l), which network cards need", text(locked, true)),
             "ulimit -l unlimited, or docker run --ulimit memlock=-1");
}

}  // namespace

void examine_host(Examination& exam) {
  examine_cpu(exam);
  examine_kernel(exam);
  examine_shared_memory(exam);
  examine_limits(exam);
}

}  // namespace imbrex::cli
