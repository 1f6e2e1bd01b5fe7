// How programs ask for a world: by a launcher's variables, or with an id.
#include <cstring>

#include "base/check.hpp"
#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/bootstrap/rendezvous.hpp"

namespace imbrex {

namespace {
constexpr std::string_view unique_id_prefix = "imbrex-1:";
constexpr std::size_t most_id_address = 80;
}  // namespace

std::unique_ptr<World> World::from_environment(const WorldOptions& options) {
  const auto found = runtime::find_bootstrap(base::environment()).value_or(runtime::Bootstrap{});
  return runtime::meet({found.key, found.secret, found.reach}, found.rank, found.size, options);
}

bool World::launched() { return runtime::find_bootstrap(base::environment()).has_value(); }

UniqueId World::make_unique_id(const std::string& address) {
  std::string text = std::string(unique_id_prefix) + runtime::random_id();
  const auto set = base::environment().text(base::Key::address);
  if (const std::string reached = address.empty() ? set.value_or("") : address; !reached.empty()) {
    IMBREX_EXPECTS(reached.size() <= most_id_address, "address '{}': it must have at most {} bytes", reached,
                   most_id_address);
    static_cast<void>(runtime::parse_meeting_place("address", reached, text));
    text += '@' + reached;
  }
  UniqueId id;
  text.copy(id.bytes.data(), id.bytes.size() - 1);
  return id;
}

std::unique_ptr<World> World::connect(const UniqueId& id, int rank, int size, const WorldOptions& options) {
  const std::string text(id.bytes.data(), strnlen(id.bytes.data(), id.bytes.size()));
  constexpr std::size_t digits = unique_id_prefix.size() + 32;
  IMBREX_EXPECTS(
      text.starts_with(unique_id_prefix) && text.size() >= digits && (text.size() == digits || text[digits] == '@'),
      "the unique id was not made by World::make_unique_id");
  runtime::LaunchIdentity launch{text, true, {}};
  if (text.size() > digits)
    launch.reach =
        runtime::parse_meeting_place("the unique id's address", text.substr(digits + 1), text.substr(0, digits));
  return runtime::meet(launch, rank, size, options);
}

}  // namespace imbrex
