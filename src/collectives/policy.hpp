// From which sizes on all-reduces take other ways: by what was measured on this kind of GPU, else by constants.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "imbrex/collectives.hpp"
#include "imbrex/world.hpp"
#include "records/all_reduce_record.hpp"

namespace imbrex::records {
struct Records;
}

namespace imbrex::collectives {

/// Without a record: the largest vector, in bytes, for which automatic means one_shot.
std::int64_t usual_one_shot_bytes(int ranks);

/// Without a record: what exact_below_measured stands for.
std::int64_t usual_exact_below(const CodecPair& codec);

class AllReducePolicy {
 public:
  /// `records`: of one kind of GPU; which of them answers, find_record and exact_below tell (src/tune).
  explicit AllReducePolicy(int ranks, std::vector<records::AllReduceRecord> records = {});

  /// The largest vector for which automatic means one_shot.
  std::int64_t one_shot_bytes(Type type) const;

  /// What exact_below_measured stands for.
  std::int64_t exact_below(Type type, const CodecPair& codec) const;

 private:
  int ranks_;
  std::vector<records::AllReduceRecord> records_;
};

/// Collective. The policy by the records for rank 0's GPU; `gpu` is the name of this rank's. Throws
/// Error(invalid_input), on every rank alike, where a rank cannot read its tables, or reads others than rank 0.
AllReducePolicy agreed_policy(World& world, const std::string& gpu);

/// The agreed policy with records from elsewhere than records_of.
AllReducePolicy agreed_policy(World& world, const std::string& gpu,
                              const std::function<const records::Records&(const std::string& gpu)>& load);

}  // namespace imbrex::collectives
