// One rank as a program of its own.
//   case NAME            World::from_environment, then that case
//   id HEX NAME          World::connect with that unique id, rank and size from imbrex launch, then that case
//   twice NAME           two worlds in a row
//   abreast NAME         two worlds at once: that case in the first, then in the second
//   threads NAME         the case's ranks as threads of this process
//   lose RANK NS         rank RANK is killed after NS nanoseconds, the others must notice
//   lose-at-start RANK NS  the same from before the world is made; any Error naming the rank is right
//   exit CODE...         rank r exits with the r-th code; a negative one raises that signal
//   throw RANK           run_ranks with a body in which that rank throws what is no Error, while the others wait
//   nccl-host GPU        prepares for NCCL on a GPU of that name
//   join HEAP LIMIT      joins and leaves; join-late: after a while; join-full: with room for one more descriptor
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "imbrex/error.hpp"
#include "jobs/run_ranks.hpp"
#include "runtime/bootstrap/nccl_hosts.hpp"
#include "runtime/cases.hpp"

using namespace imbrex;

namespace {

int number(const char* text) { return std::atoi(text ? text : "-1"); }

UniqueId from_hex(const std::string& text) {
  UniqueId id;
  for (std::size_t i = 0; i < id.bytes.size() && 2 * i + 1 < text.size(); ++i)
    id.bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
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
    if (world->rank() == number(words[2])) test::kill_self_after(std::atol(words[3]));
    return test::work_until_lost(*world, number(words[2]));
  }
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
      return jobs::run_ranks(size, false, {}, [&](World& world) {
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
  if (mode == "join" || mode == "join-late" || mode == "join-full") {
    if (mode == "join-late") usleep(200000);
    if (mode == "join-full") {
      alarm(60);
      const int next = dup(STDIN_FILENO);
      close(next);
      const rlimit limit{static_cast<rlim_t>(next) + 1, static_cast<rlim_t>(next) + 1};
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    WorldOptions options;
    options.heap_bytes = std::strtoul(words[2], nullptr, 10);
    options.wait_limit = std::atof(words[3]);
    World::from_environment(options)->barrier();
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
