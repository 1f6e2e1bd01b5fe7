#include "collectives/policy.hpp"

#include <limits>
#include <span>
#include <utility>

#include "base/check.hpp"
#include "base/fixed_text.hpp"
#include "base/hash.hpp"
#include "codec/format.hpp"
#include "records/all_reduce_records.hpp"
#include "records/records.hpp"
#include "runtime/agreement.hpp"

namespace imbrex::collectives {
namespace {

// What a rank tells the others; ends with a zero byte.
struct Name {
  char gpu[128] = {};
};
std::uint64_t hash_of_records(const std::vector<records::AllReduceRecord>& records) {
  std::string text;
  for (const records::AllReduceRecord& record : records) text += records::to_json(record);
  return base::hash_of(std::as_bytes(std::span(text)));
}

}  // namespace

// A one-shot sends (R - 1) times the vector, a two-shot 2 (R - 1) / R times, and then waits once more.
std::int64_t usual_one_shot_bytes(int ranks) {
  // Measured on four H200s: at 512 KiB both take the same.
  constexpr std::int64_t bytes_in_a_wait = 768 << 10;
  const std::int64_t r = ranks;
  return r <= 2 ? 8 << 20 : bytes_in_a_wait * r / ((r - 1) * (r - 2));
}

std::int64_t usual_exact_below(const CodecPair& codec) {
  // In bf16 on four H200s (docs/all-reduce.md).
  const int bits = codec::code_bits(codec.reduce_scatter.format) + codec::code_bits(codec.all_gather.format);
  return (bits >= 12 ? 4 : 2) << 20;
}

AllReducePolicy::AllReducePolicy(int ranks, std::vector<records::AllReduceRecord> records)
    : ranks_(ranks), records_(std::move(records)) {}

std::int64_t AllReducePolicy::one_shot_bytes(Type type) const {
  const records::AllReduceRecord* record = records::find_record(records_, ranks_, type);
  if (record == nullptr) return usual_one_shot_bytes(ranks_);
  return record->one_shot_below ? *record->one_shot_below - 1 : std::numeric_limits<std::int64_t>::max();
}

std::int64_t AllReducePolicy::exact_below(Type type, const CodecPair& codec) const {
  const records::AllReduceRecord* record = records::find_record(records_, ranks_, type);
  const std::int64_t usual = usual_exact_below(codec);
  return record == nullptr ? usual : records::exact_below(*record, codec, usual);
}

AllReducePolicy agreed_policy(World& world, const std::string& gpu) {
  return agreed_policy(world, gpu, records::records_of);
}

AllReducePolicy agreed_policy(World& world, const std::string& gpu,
                              const std::function<const records::Records&(const std::string& gpu)>& load) {
  const auto ranks = static_cast<std::size_t>(world.size());
  Name own_name;
  base::put_text(gpu, own_name.gpu);
  std::vector<Name> names(ranks);
  world.all_gather(&own_name, names.data(), sizeof own_name);
  const std::string first = names.front().gpu;

  std::vector<records::AllReduceRecord> records;
  const std::vector<std::int64_t> hashes = runtime::agree(world, [&] {
    records = load(first).all_reduces;
    return runtime::Terms("tables of all-reduces").tell(static_cast<std::int64_t>(hash_of_records(records)));
  });
  for (std::size_t rank = 0; rank < ranks; ++rank)
    IMBREX_EXPECTS(
        hashes[rank] == hashes[0],
        "all-reduces on {}: rank {} finds other records in machines/tuned/ than rank 0; every rank must read "
        "the same",
        first, rank);
  return AllReducePolicy(world.size(), std::move(records));
}

}  // namespace imbrex::collectives
