// Any bytes are a tuning table that survives a round trip and that plans can be chosen by, or an Error of invalid
// input.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "choose/alike.hpp"
#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imbrex;
  static const Machine machine = load_machine("4xh200");
  records::Records records;
  try {
    records = records::parse_records({reinterpret_cast<const char*>(data), size}, "fuzz.json");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_input) std::abort();
    return 0;
  }
  const std::string text = to_json(records);
  if (to_json(records::parse_records(text, "fuzz.json")) != text) std::abort();
  for (const records::Record& r : records.list)
    for (const std::int64_t m : {r.problem.m, 3 * r.problem.m, std::int64_t{8} * r.problem.ranks}) {
      Problem p = r.problem;
      p.m = m;
      const auto chosen = choose::choose_alike(records, p, {}, machine, true);
      if (m == r.problem.m && !chosen) std::abort();
      p.ranks *= 2, p.m *= 2, p.n *= 2, p.k *= 2;
      try {
        validate(p);
      } catch (const Error&) {
        continue;
      }
      static_cast<void>(choose::choose_alike(records, p, {}, machine, true, true));
    }
  return 0;
}
