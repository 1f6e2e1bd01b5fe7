#include "runtime/failure.hpp"

#include <chrono>
#include <thread>

#include "base/check.hpp"

namespace imbrex::runtime {

void fail(World& world, const std::string& message) {
  world.fail(message);
  world.throw_if_failed();
  throw Error(ErrorCode::runtime_failure, message);
}

void fail_as_told(World& world) {
  for (int i = 0; i < 2000; ++i) {
    world.throw_if_failed();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw Error(ErrorCode::runtime_failure,
              fmt::format("rank {}: another rank gave up and did not say why", world.rank()));
}

}  // namespace imbrex::runtime
