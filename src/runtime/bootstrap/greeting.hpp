// What rank 0 and another rank say to each other when they meet.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "runtime/bootstrap/secret.hpp"
#include "runtime/control.hpp"

namespace imbrex::runtime {

inline constexpr std::uint64_t rendezvous_magic = 0x3176647a78726269;  // "ibrxzdv1"

/// What a rank says to rank 0. Magic and version come first in every version of the protocol.
struct Hello {
  std::uint64_t magic = rendezvous_magic;
  std::uint32_t version = protocol_version;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::uint64_t heap_bytes = 0;
  std::uint64_t challenge = 0;  // random
  Proof proof{};                // of_guest
};

/// What rank 0 answers once all are there, with the two memory files; or why there will be no world.
struct Verdict {
  std::uint64_t magic = rendezvous_magic;
  std::uint32_t version = protocol_version;
  std::uint32_t accepted = 0;
  Proof proof{};            // of_host; where it is no acceptance, anything
  char message[1024] = {};  // ends with a zero byte
};

/// What a process says that it is. `who`: "pid 4711", with its host where there are several.
struct Claim {
  int rank = 0;
  int size = 0;
  std::uint64_t heap_bytes = 0;
  std::string who;
};

/// Why a claim does not fit with the first rank's; empty where it does. `earlier`: who has claimed its rank before;
/// empty where it is free.
inline std::string misfit(const Claim& claim, const Claim& first, const std::string& earlier) {
  if (claim.size != first.size)
    return fmt::format("rank {} ({}) says that the world has {} ranks, rank {} says {}", claim.rank, claim.who,
                       claim.size, first.rank, first.size);
  if (claim.heap_bytes != first.heap_bytes)
    return fmt::format("rank {} ({}) asks for a symmetric heap of {} bytes, rank {} for {}", claim.rank, claim.who,
                       claim.heap_bytes, first.rank, first.heap_bytes);
  if (claim.rank < 0 || claim.rank >= first.size)
    return fmt::format("a process ({}) claims rank {} of {}", claim.who, claim.rank, first.size);
  if (!earlier.empty()) return fmt::format("two processes claim rank {} ({} and {})", claim.rank, earlier, claim.who);
  return {};
}

/// That the rank knows the launch's key; that the answer to it comes from somebody who does. `world`: the socket's
/// name.
inline Proof of_guest(const Secret& secret, const std::string& world, const Hello& hello) {
  return secret.prove(fmt::format("guest/{}/{}/{}", world, hello.rank, hello.challenge));
}
inline Proof of_host(const Secret& secret, const std::string& world, const Hello& hello) {
  return secret.prove(fmt::format("host/{}/{}/{}", world, hello.rank, hello.challenge));
}

}  // namespace imbrex::runtime
