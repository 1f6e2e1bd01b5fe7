// Any bytes are a machine that survives a round trip, or an Error of invalid input.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const imbrex::Machine machine = imbrex::parse_machine({reinterpret_cast<const char*>(data), size});
    if (!(imbrex::parse_machine(imbrex::to_json(machine)) == machine)) std::abort();
  } catch (const imbrex::Error& error) {
    if (error.code() != imbrex::ErrorCode::invalid_input) std::abort();
  }
  return 0;
}
