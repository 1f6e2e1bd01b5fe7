// Records of all-reduces: their JSON, and which of them answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/json/node.hpp"
#include "records/all_reduce_record.hpp"

namespace imbrex::records {

/// Throws Error(invalid_input) naming the place and the rule.
AllReduceRecord all_reduce_record_of(const plan::Node& n);

/// As all_reduce_record_of reads it, on one line.
std::string to_json(const AllReduceRecord& record);

/// Among those of so many ranks, the record of the type, or of the type whose elements are nearest in size; of several,
/// the latest, and of these the first. Null where there is none.
const AllReduceRecord* find_record(const std::vector<AllReduceRecord>& records, int ranks, Type type);

/// Bytes below which vectors are summed exactly rather than through `codec`: as recorded, or as for the codec with the
/// fewest bits on the wire that are no fewer than its own. Where none has as many, `otherwise`, or what is recorded of
/// one with fewer bits, if that is more. The largest number where exact sums were faster throughout.
std::int64_t exact_below(const AllReduceRecord& record, const CodecPair& codec, std::int64_t otherwise);

/// Replaces the records of its ranks and type by this one. What these say of codecs that it does not name, the
/// latest first, it keeps.
void put_record(std::vector<AllReduceRecord>& records, const AllReduceRecord& record);

}  // namespace imbrex::records
