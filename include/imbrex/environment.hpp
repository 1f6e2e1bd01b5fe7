// The environment variables that Imbrex reads: its own, and those of the launchers that it understands.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace imbrex {

struct EnvironmentVariable {
  std::string name;
  std::string type;      ///< "text", "integer" or "number"
  std::string fallback;  ///< what holds where it is not set; empty: nothing
  std::string description;
  /// As this process found it when it first looked; an empty one counts as not set. A secret one,
  /// such as IMBREX_RENDEZVOUS, shows only that it is set, and its length: programs print values, and people pass them
  /// on.
  std::optional<std::string> value;
  std::string fault;  ///< why that value cannot be used, in words; empty: it can
};

/// Every variable that any part of Imbrex reads, in the order of their documentation. Nothing else in the environment
/// changes what Imbrex does.
std::vector<EnvironmentVariable> environment_variables();

/// Names in this process's environment that begin with IMBREX_ and are none of those: misspelt ones, and what only
/// scripts read. Sorted.
std::vector<std::string> unread_variables();

}  // namespace imbrex
