// Independent processes become a world.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "imbrex/world.hpp"
#include "runtime/hosts/meeting_place.hpp"

namespace imbrex::runtime {

/// What the ranks of one launch have in common.
struct LaunchIdentity {
  std::string key;
  bool secret = false;                ///< only the ranks can know the key
  std::optional<MeetingPlace> reach;  ///< where rank 0 is reached over a network; not set: all ranks are on this host
};

/// Meets the other ranks that call with the same key. The n-th call of every process with one key meets the others'
/// n-th calls, so worlds can follow each other. Throws as World::from_environment does.
std::unique_ptr<World> meet(const LaunchIdentity& launch, int rank, int size, const WorldOptions& options);

/// What `imbrex launch` uses as key.
std::string launch_key(const std::string& id);

/// Name of the socket at which the launcher of `key` tells ranks that still wait for each other why a rank will not
/// come. It exists only once a rank has failed. A process that connects receives the reason, as one message of text.
std::string obituary_name(const std::string& key);
inline constexpr std::size_t max_obituary_bytes = 512;

/// Name of the socket at which rank 0 receives the others for the `sequence`-th world of `key`.
std::string socket_name(const std::string& key, unsigned sequence);

}  // namespace imbrex::runtime
