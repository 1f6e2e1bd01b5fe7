// How a process learns which rank of which world it is.
#pragma once

#include <optional>
#include <string>

#include "base/environment.hpp"

namespace imbrex::runtime {

/// A process's place among the ranks of one launch.
struct Bootstrap {
  std::string launcher;  ///< for messages
  int rank = 0;
  int size = 1;
  std::string key;      ///< the same on all ranks of one launch, different for any other launch on this host
  bool secret = false;  ///< nobody else can guess the key: it is random, and came from parent to child
};

/// From the variables of the innermost launcher (imbrex launch, torchrun, Open MPI, Slurm; the first that set any of
/// its variables). Throws Error(invalid_input) naming the variable if they are incomplete or contradict each other, or
/// if the launch spans hosts.
std::optional<Bootstrap> find_bootstrap(const base::Environment& environment);

/// 32 random hexadecimal digits.
std::string random_id();

}  // namespace imbrex::runtime
