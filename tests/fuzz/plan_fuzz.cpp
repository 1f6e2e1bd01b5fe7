// Any bytes are a plan that survives a round trip and that the checker accepts or refutes, or an Error of invalid
// input.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "imbrex/error.hpp"
#include "imbrex/plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  imbrex::Plan plan;
  try {
    plan = imbrex::parse_plan({reinterpret_cast<const char*>(data), size});
  } catch (const imbrex::Error& error) {
    if (error.code() != imbrex::ErrorCode::invalid_input) std::abort();
    return 0;
  }
  if (!(imbrex::parse_plan(imbrex::to_json(plan)) == plan)) std::abort();
  const auto format = imbrex::check_format(plan), whole = imbrex::check(plan);
  if (format && !whole) std::abort();
  return 0;
}
