#include "runtime/hosts/session.hpp"

#include <sodium.h>

#include <algorithm>
#include <cstring>

namespace imbrex::runtime {
namespace {

static_assert(crypto_scalarmult_BYTES == 32 && crypto_scalarmult_SCALARBYTES == 32);
static_assert(crypto_aead_chacha20poly1305_ietf_KEYBYTES == 32);
static_assert(crypto_aead_chacha20poly1305_ietf_ABYTES == Session::tag_bytes);

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

// A key serves one direction of one connection, so that numbers never come twice under it.
Nonce nonce_of(std::uint64_t number) {
  Nonce nonce{};
  std::memcpy(nonce.data(), &number, sizeof number);
  return nonce;
}

const unsigned char* bytes_in(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

}  // namespace

KeyPair::KeyPair() { crypto_kx_keypair(public_.data(), private_.bytes.data()); }

std::optional<Wiped<32>> KeyPair::shared_with(const PublicKey& other) const {
  Wiped<32> shared;
  // Some keys give the same to everybody.
  if (crypto_scalarmult(shared.bytes.data(), private_.bytes.data(), other.data()) != 0) return std::nullopt;
  return shared;
}

Session::Session(const Secret& secret, const Wiped<32>& shared, std::string_view transcript, End end) {
  std::string text = "session/";
  text.append(transcript).append(reinterpret_cast<const char*>(shared.bytes.data()), shared.bytes.size());
  Wiped<64> keys;
  secret.derive(text, keys.bytes);
  wipe(text.data(), text.size());
  Direction& to_guest = end == End::gate ? outgoing_ : incoming_;
  Direction& to_gate = end == End::gate ? incoming_ : outgoing_;
  std::copy_n(keys.bytes.begin(), 32, to_guest.key.bytes.begin());
  std::copy_n(keys.bytes.begin() + 32, 32, to_gate.key.bytes.begin());
}

void Session::seal(std::string_view head, std::string_view text, std::string& out) {
  const std::size_t before = out.size();
  out.resize(before + text.size() + tag_bytes);
  crypto_aead_chacha20poly1305_ietf_encrypt(reinterpret_cast<unsigned char*>(out.data() + before), nullptr,
                                            bytes_in(text), text.size(), bytes_in(head), head.size(), nullptr,
                                            nonce_of(outgoing_.number++).data(), outgoing_.key.bytes.data());
}

std::optional<std::string> Session::open(std::string_view head, std::string_view sealed) {
  if (sealed.size() < tag_bytes) return std::nullopt;
  std::string text(sealed.size() - tag_bytes, '\0');
  if (crypto_aead_chacha20poly1305_ietf_decrypt(reinterpret_cast<unsigned char*>(text.data()), nullptr, nullptr,
                                                bytes_in(sealed), sealed.size(), bytes_in(head), head.size(),
                                                nonce_of(incoming_.number).data(), incoming_.key.bytes.data()) != 0)
    return std::nullopt;
  ++incoming_.number;
  return text;
}

}  // namespace imbrex::runtime
