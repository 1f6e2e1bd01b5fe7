// What a rank keeps with its world ends with the world, once.
#include "runtime/attachment.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace imbrex {
namespace {

struct Counted {
  World& world;
  int& ended;
  ~Counted() {
    world.throw_if_failed();  // the world is still there
    ++ended;
  }
};

TEST(Attachment, EndsWithTheWorld) {
  int ended = 0;
  const int code = run_threads(1, {.heap_bytes = 1 << 16}, [&](World& world) {
    EXPECT_EQ(runtime::attachment(world), nullptr);
    runtime::attachment(world) = std::make_shared<Counted>(world, ended);
    EXPECT_NE(runtime::attachment(world), nullptr);
    EXPECT_EQ(ended, 0);
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(ended, 1);
}

TEST(Attachment, IsTheParentsInAForkedChild) {
  int ended = 0;
  auto world = World::connect(World::make_unique_id(), 0, 1, {.heap_bytes = 1 << 16});
  runtime::attachment(*world) = std::make_shared<Counted>(*world, ended);
  const pid_t child = fork();
  if (child == 0) {
    world.reset();
    _exit(ended);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ended, 0);
  world.reset();
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace imbrex
