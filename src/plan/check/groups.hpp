// The parts of each collective agree, and are there.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::plan {

class CollectiveGroups {
 public:
  /// A part on `rank`, whose regions have that type; `joined`: the ranks of its collective. The rule that it breaks, or
  /// "".
  std::string add(const Collective& c, const std::vector<int>& joined, Type type, int rank);
  /// Once all parts have come: names a rank without a part in a collective that joins it, or one that sends to a rank
  /// which receives from another; or "".
  std::string missing() const;

 private:
  struct Group {
    CollectiveKind kind;
    std::int64_t rows, cols;  // of the sources
    Type type;
    std::vector<int> ranks;
    Backend backend;
    std::optional<CodecPair> codec;
    std::map<int, std::pair<int, int>> seen;  // by rank: where it sends, and from where it receives
  };
  std::map<int, Group> groups_;
};

}  // namespace imbrex::plan
