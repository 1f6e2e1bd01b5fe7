// A world of threads.
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "runtime/host_world.hpp"

namespace imbrex {

int run_threads(int ranks, const WorldOptions& given, const std::function<int(World&)>& body) {
  using namespace runtime;
  const WorldOptions options = validated(ranks, given);
  const auto segment = Segment::create(ranks, options);
  std::vector<int> codes(static_cast<std::size_t>(ranks), 3);
  std::vector<std::thread> threads;
  std::string refused;
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back([&, rank] {
        try {
          HostWorld world(segment, rank, options, Kind::threads);
          codes[static_cast<std::size_t>(rank)] = run_rank(world, body);
        } catch (const std::exception& error) {
          Control(segment->block(), rank).record(error.what());
          print_rank_line(rank, error.what());
        }
      });
    } catch (const std::system_error& error) {
      refused = fmt::format("cannot start a thread for rank {} of {}: {}", rank, ranks, error.what());
      Control(segment->block(), Control::outsider).record(refused);
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (!refused.empty()) throw Error(ErrorCode::runtime_failure, refused);
  int result = 0;
  for (const int code : codes) result = worse(result, code);
  return result;
}

}  // namespace imbrex
