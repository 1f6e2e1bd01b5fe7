#pragma once

#include <memory>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// What this rank keeps with its world: null at first. It is destroyed before the rank leaves the world, and not at all
/// in a child that the program forked.
std::shared_ptr<void>& attachment(World& world);

/// The order of the rank's calls on its GPU, kept as attachment() is and destroyed after it.
std::shared_ptr<void>& stream_order_slot(World& world);

/// What the collectives of a world on its GPUs share, kept as attachment() is and destroyed after it.
std::shared_ptr<void>& collectives_slot(World& world);

}  // namespace imbrex::runtime
