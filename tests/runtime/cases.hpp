// What every kind of world must do, written once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "imbrex/world.hpp"

namespace imbrex::test {

/// A body that returns 0 on every rank where the world is right.
struct Case {
  std::string name;
  int ranks;
  WorldOptions options;
  std::function<int(World&)> body;
};

const std::vector<Case>& cases();
const Case& find_case(const std::string& name);

/// As the rank program takes it.
std::string to_hex(const UniqueId& id);

/// Its ranks as threads of this process, each of which connects by one id. Returns the worst of the bodies' codes, 3
/// for an exception.
int run_connected_threads(const Case& entry);

/// Barriers and gathers of many sizes, whose bytes are right.
int storm(World& world, int rounds);

/// Barriers, gathers and heap accesses without end; returns 0 once an Error tells that `lost` was lost, 1 on another.
/// Calls `all_there` once, where every rank is known to have made its world.
int work_until_lost(World& world, int lost, const std::function<void()>& all_there = {});

/// This process is killed by SIGKILL, from outside, after that time.
void kill_self_after(long nanoseconds);

}  // namespace imbrex::test
