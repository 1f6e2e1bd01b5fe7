#include "base/narrow.hpp"

#include "base/check.hpp"

namespace imbrex::base {
namespace {

template <typename T>
[[noreturn]] void refuse(std::string_view what, T value, std::int64_t least, std::uint64_t most) {
  throw Error(ErrorCode::invalid_input, fmt::format("{} = {}: it must be from {} to {}", what, value, least, most));
}

}  // namespace

void refuse_number(std::string_view what, std::int64_t value, std::int64_t least, std::uint64_t most) {
  refuse(what, value, least, most);
}
void refuse_number(std::string_view what, std::uint64_t value, std::int64_t least, std::uint64_t most) {
  refuse(what, value, least, most);
}

}  // namespace imbrex::base
