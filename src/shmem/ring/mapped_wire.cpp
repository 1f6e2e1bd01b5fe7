// The wire between PEs of one host whose parts are mapped: all is done when it is begun.
#include <vector>

#include "base/check.hpp"
#include "shmem/host_copies.hpp"
#include "shmem/ring/wire.hpp"

namespace imbrex::shmem::ring {
namespace {

template <typename T>
T change(T* word, const WireTransfer& transfer) {
  const auto operand = words::cast<T>(static_cast<words::BitsOf<T>>(transfer.operand));
  if (transfer.verb == Verb::fetch_add) return words::fetch_add(word, operand);
  if constexpr (Integer<T>) switch (transfer.verb) {
      case Verb::swap: return words::swap(word, operand);
      case Verb::compare_swap: return words::compare_swap(word, static_cast<T>(transfer.compare), operand);
      case Verb::fetch_and: return words::fetch_and(word, operand);
      case Verb::fetch_or: return words::fetch_or(word, operand);
      case Verb::fetch_xor: return words::fetch_xor(word, operand);
      default: break;
    }
  return T{};
}

template <typename T>
void change_and_tell(std::byte* there, const WireTransfer& transfer) {
  const T before = change(reinterpret_cast<T*>(there), transfer);
  if (transfer.here != nullptr) words::store(reinterpret_cast<T*>(transfer.here), before);
}

class MappedWire final : public Wire {
 public:
  explicit MappedWire(Heap& heap) : group_(heap.handle().group) {
    IMBREX_EXPECTS(heap.device() == Device::cpu, "a wire of mapped memory needs a heap in memory of one host");
  }

  bool begin(const WireTransfer& transfer) override {
    std::byte* there = device::at_rank(group_, reinterpret_cast<std::byte*>(group_.own), transfer.pe) + transfer.there;
    switch (transfer.verb) {
      case Verb::put: copy_between(there, transfer.here, transfer.bytes); break;
      case Verb::get: copy_between(transfer.here, there, transfer.bytes); break;
      case Verb::put_word:
        copy_between(there, reinterpret_cast<const std::byte*>(&transfer.operand), transfer.bytes);
        break;
      default:
        if (transfer.type == WordType::floating_point && transfer.verb == Verb::fetch_add)
          transfer.bytes == 4 ? change_and_tell<float>(there, transfer) : change_and_tell<double>(there, transfer);
        else
          transfer.bytes == 4 ? change_and_tell<std::uint32_t>(there, transfer)
                              : change_and_tell<std::uint64_t>(there, transfer);
    }
    done_.push_back(transfer.token);
    return true;
  }

  std::size_t poll(std::span<std::uint64_t> tokens) override {
    const std::size_t count = std::min(tokens.size(), done_.size());
    std::copy_n(done_.end() - static_cast<std::ptrdiff_t>(count), count, tokens.begin());
    done_.resize(done_.size() - count);
    return count;
  }

  bool keeps_order() const override { return true; }

 private:
  device::Group group_;
  std::vector<std::uint64_t> done_;
};

}  // namespace

std::unique_ptr<Wire> mapped_wire(Heap& heap) { return std::make_unique<MappedWire>(heap); }

}  // namespace imbrex::shmem::ring
