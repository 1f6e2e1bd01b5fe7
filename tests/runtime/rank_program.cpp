// One rank as a program of its own.
//   case NAME            World::from_environment, then that case
//   id HEX NAME          World::connect with that unique id, rank and size from imbrex launch, then that case
//   twice NAME           two worlds in a row
//   abreast NAME         two worlds at once: that case in the first, then in the second
//   threads NAME         the case's ranks as threads of this process
//   lose RANK NS         rank RANK is killed NS nanoseconds after all have made the world, the others must notice
//   lose-at-start RANK NS  the same from before the world is made; any Error naming the rank is right
//   exit CODE...         rank r exits with the r-th code; a negative one raises that signal
//   throw RANK           run_ranks with a body in which that rank throws what is no Error, while the others wait
//   throw-late RANK      that rank leaves a world that others wait in by an exception; the others must hear why
//   stop RANK NS         rank RANK is stopped after NS nanoseconds and killed seconds later; the others must notice
//   close HOW RANK       closes descriptors that it did not open, or (HOW is over) replaces each by a file of its own,
//                        and works on; then that rank is killed and the others notice, or, for -1, all leave
//   close-one HOW RANK   that rank does so alone, and all hear of it
//   storm HOSTS ROUNDS   barriers and gathers in a world that spans so many hosts
//   work                 barriers and gathers until an Error
//   refuse-call RANK     that rank refuses a call that the others take
//   expect-one-host      what reaches peers' memory is refused in a world over hosts
//   nccl-host GPU        prepares for NCCL on a GPU of that name
//   join HEAP LIMIT      joins and leaves; join-late: after a while; join-full: with room for one more descriptor;
//                        join-few HEAP LIMIT N: with N descriptors
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/device/memory.hpp"
#include "imbrex/error.hpp"
#include "imbrex/imbrex.hpp"
#include "program/run_ranks.hpp"
#include "runtime/bootstrap/nccl_hosts.hpp"
#include "runtime/calls.hpp"
#include "runtime/cases.hpp"
#include "runtime/host_world.hpp"

using namespace imbrex;

namespace {

int number(const char* text) { return std::atoi(text ? text : "-1"); }

UniqueId from_hex(const std::string& text) {
  UniqueId id;
  for (std::size_t i = 0; i < id.bytes.size() && 2 * i + 1 < text.size(); ++i)
    id.bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

// The code of a child that is this process's rank from here on; nothing in that child. Once it is stopped it lives
// three seconds more.
std::optional<int> watch_stopped_rank(long nanoseconds) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return std::nullopt;
  }
  usleep(static_cast<useconds_t>(nanoseconds / 1000));
  kill(child, SIGSTOP);
  usleep(3000000);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 0 : 1;
}

// Says what failed, as an error: 1.
int expect(bool right, const std::string& what) {
  if (!right) std::fprintf(stderr, "not as expected: %s\n", what.c_str());
  return right ? 0 : 1;
}

// As a daemon does, and then opens files of its own.
void take_descriptors(const std::string& how) {
  constexpr int most = 256;
  const int own = memfd_create("own", MFD_CLOEXEC), file = dup2(own, most);
  for (int number = 3; number < most; ++number) {
    if (how == "over")
      dup2(file, number);
    else
      close(number);
  }
}

int close_one(const std::string& how, int closer) {
  WorldOptions options;
  options.wait_limit = 5;
  const auto world = World::from_environment(options);
  try {
    world->barrier();
    if (world->rank() == closer) take_descriptors(how);
    while (true) world->barrier();
  } catch (const Error& error) {
    const std::string text = error.what(), name = "rank " + std::to_string(closer) + " ";
    // Its lock, or to another host its connection, ends with the descriptor: others may tell all of a lost rank before
    // the closer gets the processor again and says why.
    return expect(text.starts_with(name) && (text.find("failed: the program closed file descriptor ") != text.npos ||
                                             text.find("was lost: ") != text.npos),
                  text);
  }
}

template <typename Call>
int expect_refused(const char* name, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool absent = text.find("this build of Imbrex has no CUDA parts") != text.npos;
    return expect(error.code() == ErrorCode::invalid_input &&
                      (absent || text.find("this world's are on 2 hosts: rank 0 is on a, rank 1 on b") != text.npos),
                  name + (": " + text));
  }
  return expect(false, std::string(name) + " is not refused");
}

int expect_one_host() {
  const auto world = World::from_environment();
  int bad = 0;
  OperatorOptions on_cpu;
  on_cpu.device = Device::cpu;
  bad += expect_refused("GEMM", [&] { GemmAllReduce(*world, {.m = 64, .n = 64, .k = 64}, on_cpu); });
  bad += expect_refused("all-reduce", [&] { AllReduce(*world, 64, Type::fp32, {}, Device::cpu); });
  bad += expect_refused("RMS norm", [&] { AllReduceRmsNorm(*world, 4, 64, Type::fp32, {}, Device::cpu); });
  bad +=
      expect_refused("exchange", [&] { Exchange(*world, ExchangeKind::all_gather, 64, Type::fp32, {}, Device::cpu); });
  bad += expect_refused("embedding", [&] { EmbeddingAllToAll(*world, {}, on_cpu); });
  bad += expect_refused("executor", [&] { make_cpu_executor(*world); });
  bad += expect_refused("executor on GPUs", [&] { make_cuda_executor(*world); });
  bad += expect_refused("memory", [&] { device::Memory(*world, {}); });
  bad += expect_refused("spans", [&] { gather_spans(*world, {}); });
  world->barrier();
  return bad;
}

int run(int count, char** words) {
  const std::string mode = count > 1 ? words[1] : "";
  const int rank = number(std::getenv("IMBREX_RANK")), size = number(std::getenv("IMBREX_WORLD_SIZE"));
  if (mode == "case" || mode == "twice") {
    const test::Case& entry = test::find_case(words[2]);
    for (int round = 0; round < (mode == "twice" ? 2 : 1); ++round) {
      const auto world = World::from_environment(entry.options);
      if (const int code = entry.body(*world)) return code;
    }
    return 0;
  }
  if (mode == "abreast") {
    const test::Case& entry = test::find_case(words[2]);
    const auto first = World::from_environment(entry.options), second = World::from_environment(entry.options);
    for (World* world : {first.get(), second.get()})
      if (const int code = entry.body(*world)) return code;
    return 0;
  }
  if (mode == "threads") return test::run_connected_threads(test::find_case(words[2]));
  if (mode == "id") {
    const test::Case& entry = test::find_case(words[3]);
    const auto world = World::connect(from_hex(words[2]), rank, size, entry.options);
    return entry.body(*world);
  }
  if (mode == "nccl-host") {
    const auto world = World::from_environment();
    runtime::expect_own_nccl_hosts(*world, words[2]);
    return 0;
  }
  if (mode == "lose") {
    const auto world = World::from_environment();
    return test::work_until_lost(*world, number(words[2]), [&] {
      if (world->rank() == number(words[2])) test::kill_self_after(std::atol(words[3]));
    });
  }
  if (mode == "close") {
    const auto world = World::from_environment();
    const int lost = number(words[3]);
    world->barrier();
    take_descriptors(words[2]);
    usleep(250000);
    if (world->rank() == lost) test::kill_self_after(1000000);
    return lost < 0 ? test::storm(*world, 100) : test::work_until_lost(*world, lost);
  }
  if (mode == "close-one") return close_one(words[2], number(words[3]));
  if (mode == "stop") {
    if (rank == number(words[2]))
      if (const auto code = watch_stopped_rank(std::atol(words[3]))) return *code;
    WorldOptions options;
    options.wait_limit = 2;
    const auto world = World::from_environment(options);
    return test::work_until_lost(*world, number(words[2]));
  }
  if (mode == "throw-late") {
    const auto world = World::from_environment();
    try {
      world->barrier();  // a failure may come before what a third host said
      if (rank == number(words[2])) throw std::runtime_error("the rank's own reason");
      world->barrier();
    } catch (const Error& error) {
      const std::string text = error.what();
      return expect(text.starts_with("rank " + std::string(words[2]) + " (host ") &&
                        text.ends_with(") failed: the rank's own reason"),
                    text);
    } catch (const std::exception& error) {
      world->fail(error.what());
      return 0;
    }
    return 1;
  }
  if (mode == "storm") {
    const auto world = World::from_environment();
    if (const int code = expect(world->hosts() == number(words[2]), "hosts")) return code;
    return test::storm(*world, number(words[3]));
  }
  if (mode == "put-words") {
    const auto world = World::from_environment();
    const std::size_t place = world->heap().allocate(8 * 64), bad = std::stoul(words[2]);
    const HeapHandle heap = world->heap().handle();
    for (std::uint64_t round = 1; round <= 1000; ++round)
      for (int r = 0; r < size; ++r)
        if (world->host_of(r) != world->host_of(rank))
          runtime::put_word(*world, r, place + 8 * static_cast<std::size_t>(rank), round * 3);
    world->barrier();  // comes behind the words
    for (int r = 0; r < size; ++r) {
      std::uint64_t word = 0;
      std::memcpy(&word, heap.at(rank, place + 8 * static_cast<std::size_t>(r)), sizeof word);
      if (const int code = expect(word == (world->host_of(r) == world->host_of(rank) ? 0u : 3000u), "a word"))
        return code;
    }
    world->barrier();
    if (bad == 0) return 0;
    if (rank == 0) runtime::put_word(*world, size - 1, bad, 1);
    try {
      // A word that is stored ends nothing: then this ends.
      for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
           std::chrono::steady_clock::now() < end;)
        world->barrier();
      return expect(false, "a word beside the heap was taken");
    } catch (const Error& error) {
      const std::string text = error.what();
      // Who finds it closes the connection.
      return expect(text.find(rank == 0 ? "was lost: " : "was lost: it sent what no rank sends") != text.npos, text);
    }
  }
  if (mode == "work") {
    const auto world = World::from_environment();
    while (true)
      if (const int code = test::storm(*world, 100)) return code;
  }
  if (mode == "refuse-call") {
    const auto world = World::from_environment();
    runtime::Calls& calls = runtime::calls_of(*world);
    const bool refuses = rank == number(words[2]);
    for (int call = 0; call < 20; ++call) calls.refuse(std::string_view("all refuse it"));
    try {
      world->barrier();  // a failure may come before what a third host said
      // Who comes late knows of the refusal when it takes the call.
      if (!refuses && count > 3) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      if (refuses)
        calls.refuse(std::string_view("it is Tuesday"));
      else
        calls.take();
      while (true) world->barrier();
    } catch (const Error& error) {
      const std::string text = error.what();
      return expect(text.starts_with("rank " + std::string(words[2]) + " (host ") && text.ends_with("it is Tuesday") &&
                        text.find("refused a call that rank") != text.npos,
                    text);
    }
  }
  if (mode == "expect-one-host") return expect_one_host();
  if (mode == "lose-at-start") {
    if (rank == number(words[2])) test::kill_self_after(std::atol(words[3]));
    try {
      const auto world = World::from_environment();
      return test::work_until_lost(*world, number(words[2]));
    } catch (const Error& error) {
      if (std::strstr(error.what(), ("rank " + std::string(words[2]) + " ").c_str())) return 0;
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
  if (mode == "exit") {
    const int code = number(words[2 + rank]);
    if (code < 0) raise(-code);
    return code;
  }
  if (mode == "throw") {
    try {
      return program::run_ranks(size, false, {}, [&](World& world) {
        if (world.rank() == number(words[2])) throw std::runtime_error("the caller's own reason");
        world.barrier();
        return 0;
      });
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      return 0;
    }
  }
  if (mode == "join" || mode == "join-late" || mode == "join-full" || mode == "join-few") {
    if (mode == "join-late") usleep(200000);
    if (mode == "join-full") {
      alarm(60);
      const int next = dup(STDIN_FILENO);
      close(next);
      const rlimit limit{static_cast<rlim_t>(next) + 1, static_cast<rlim_t>(next) + 1};
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (mode == "join-few") {
      const rlimit limit{std::strtoul(words[4], nullptr, 10), std::strtoul(words[4], nullptr, 10)};
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    WorldOptions options;
    options.heap_bytes = std::strtoul(words[2], nullptr, 10);
    options.wait_limit = std::atof(words[3]);
    World::from_environment(options)->barrier();
    return 0;
  }
  if (mode == "limits") {
    WorldOptions options{.heap_bytes = 4096};
    options.wait_limit = std::atof(words[2]);
    options.entry_limit = std::atof(words[3]);
    const auto world = World::from_environment(options);
    std::fprintf(stderr, "wait %g entry %g\n", world->options().wait_limit, world->options().entry_limit);
    return 0;
  }
  // The last rank comes so late to the world, and so late to its barrier.
  if (mode == "late") {
    WorldOptions options{.heap_bytes = 4096};
    options.wait_limit = std::atof(words[2]);
    options.entry_limit = std::atof(words[3]);
    const bool last = std::string(words[5]) == "last";
    const auto delay = std::chrono::duration<double>(last ? std::atof(words[4]) : 0);
    std::this_thread::sleep_for(delay);
    const auto world = World::from_environment(options);
    std::this_thread::sleep_for(delay);
    world->barrier();
    return 0;
  }
  return 2;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count, words);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
