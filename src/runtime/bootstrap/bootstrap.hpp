// How a process learns which rank of which world it is.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/environment.hpp"
#include "runtime/hosts/meeting_place.hpp"

namespace imbrex::runtime {

/// A process's place among the ranks of one launch.
struct Bootstrap {
  std::string launcher;  ///< for messages
  int rank = 0;
  int size = 1;
  std::string key;      ///< the same on all ranks of one launch, different for any other launch on this host
  bool secret = false;  ///< no other process can guess the key: it is random, and came from parent to child
  std::optional<MeetingPlace> reach =
      {};  ///< where rank 0 is reached over a network; not set: all ranks are on this host
};

inline constexpr std::size_t least_secret = 16;

/// From the variables of the innermost launcher (imbrex launch, torchrun, Open MPI, PMI, Flux, Slurm; the first that
/// set any of its variables, except RANK and WORLD_SIZE=1 alone). Throws Error(invalid_input) naming the variable if
/// they are incomplete or contradict each other, if a launcher says the rank and not how many there are, if the launch
/// spans hosts and nothing says where rank 0 is, or if ranks would meet over a network without IMBREX_RENDEZVOUS of
/// `least_secret` bytes or more.
std::optional<Bootstrap> find_bootstrap(const base::Environment& environment);

/// The first host of a list as Slurm writes it: "node07" of "node[07-12,15],other".
std::string first_host(std::string_view list);

/// 32 random hexadecimal digits.
std::string random_id();

}  // namespace imbrex::runtime
