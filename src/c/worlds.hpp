// What a world of c.h is.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "imbrex/c.h"
#include "imbrex/world.hpp"

namespace imbrex::c {

struct WorldObject {
  std::unique_ptr<World> world;
  std::atomic<int> objects = 0;  // operators and collectives that live
  std::map<void*, std::shared_ptr<void>> outputs;
};

/// Counts an object of a world while it lives.
class Member {
 public:
  explicit Member(WorldObject& world) : world_(world) { ++world_.objects; }
  ~Member() { --world_.objects; }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  WorldObject& world() const { return world_; }

 private:
  WorldObject& world_;
};

/// Throws Error(invalid_input) for null.
WorldObject& world_object(imbrex_world* world);

}  // namespace imbrex::c
