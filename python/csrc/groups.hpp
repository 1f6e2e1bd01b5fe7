// Worlds by the names of torch's groups, and the operators that were made for them.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "errors.hpp"
#include "products.hpp"

namespace imbrex_torch {

/// What is counted: calls of each operator, and operators made.
#define IMBREX_COUNT(name, kind, sums) name,
enum class Count : std::uint8_t { IMBREX_PRODUCTS(IMBREX_COUNT) all_reduce, all_reduce_rms_norm, made, count_ };
#undef IMBREX_COUNT
void count(Count what) noexcept;

/// Everything that one operator is made for.
struct Key {
  std::array<std::int64_t, 19> numbers{};
  std::string text;

  bool operator==(const Key&) const = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const noexcept {
    std::uint64_t hash = std::hash<std::string>{}(key.text);
    for (const std::int64_t number : key.numbers)
      hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9E3779B97F4A7C15ULL;
    return hash ^ (hash >> 32);
  }
};

/// An operator or a collective of the library: one of both is null.
struct Made {
  imbrex_operator* product = nullptr;
  imbrex_collective* collective = nullptr;
  bool on_gpu = false;
  std::int64_t largest = 0;  ///< M that a product takes at most
  std::uint64_t number = 0;  ///< the group's objects are made in one order on every rank

  void destroy() const noexcept;
};

/// What the tensors of a plain call say of themselves, except their addresses.
using Form = std::array<std::int64_t, 22>;

struct FormHash {
  std::size_t operator()(const Form& form) const noexcept {
    std::uint64_t hash = 0;
    for (const std::int64_t number : form) hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9E3779B97F4A7C15ULL;
    return hash ^ (hash >> 32);
  }
};

/// What became of a plain call, which is the same for every other of its form: nothing is checked or worked out again.
struct Ready {
  Made* made = nullptr;
  std::array<imbrex_operand, 3> operands{};  ///< a, b and out, except their addresses
  int dims = 0;                              ///< of the result as torch sees it, and so on
  std::int32_t dtype = 0;
  std::array<std::int64_t, 3> sizes{}, strides{};
};
inline constexpr std::size_t most_forms = 4096;

/// So many objects of a group are kept for tensors on the CPU, where each has threads of its own. Those on GPUs are all
/// kept: a captured graph may hold them.
inline constexpr std::size_t most_on_cpu = 32;

struct Group {
  std::string name;
  imbrex_world* world = nullptr;
  std::int32_t rank = 0, size = 0, cpu_workers = 1;
  std::uint64_t gpu_heap_limit = 0;
  std::mutex mutex;  ///< one call at a time, as worlds want it
  std::unordered_map<Key, Made, KeyHash> made;
  std::unordered_map<Form, Ready, FormHash> ready;
  std::uint64_t objects = 0;          ///< made so far
  imbrex_collective* last = nullptr;  ///< of which a report tells

  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();
  void end_oldest();  ///< where there are too many on the CPU. Collective
};

/// This rank refuses its next call: the other ranks' call fails with the reason. The error of the calling thread stays.
void refuse_call(Group& group, const char* reason) noexcept;

/// The group of that name, or null where it is not connected.
Group* connected_group(std::string_view name);

/// The group of that name. One that is not known yet is asked of Python, which connects it: collective then.
Group& find_group(std::string_view name);

/// What comes before the library's own call, with the group's mutex held. Where it fails, the other ranks' call fails,
/// too, with the reason.
template <typename Prepare>
void prepare_call(Group& group, const Prepare& prepare) {
  try {
    prepare();
  } catch (const std::exception& error) {
    refuse_call(group, error.what());
    throw;
  }
}

/// This rank's call has no rows: over where the other ranks' have none either, else refused on every rank.
void skip_call(Group& group, const std::string& reason);

/// Refuses a call that would make an operator while a graph is captured on `stream`.
void expect_no_capture(void* stream);

/// Keeps what was made for `key`.
Made& keep(Group& group, const Key& key, Made made, bool on_gpu);

/// Collective: the product takes `m` rows from now on.
void grow(const Group& group, Made& product, std::int64_t m, void* stream);

/// What `make` makes for `key`, once. The group's mutex is held.
template <typename Make>
Made& find_or_make(Group& group, const Key& key, bool on_gpu, void* stream, const Make& make) {
  const auto found = group.made.find(key);
  if (found != group.made.end()) return found->second;
  if (on_gpu) expect_no_capture(stream);
  return keep(group, key, make(), on_gpu);
}

/// The product of `key` for a call of `m` rows, which takes any M up to a largest one. The first call makes it for its
/// own M, so that a model of one size has the best plan; one that needs more lets it grow to the next power of two. The
/// group's mutex is held.
template <typename Make>
Made& find_or_make_of_any_m(Group& group, const Key& key, std::int64_t m, bool on_gpu, void* stream, const Make& make) {
  const auto found = group.made.find(key);
  if (found != group.made.end()) {
    if (m > found->second.largest) grow(group, found->second, m, stream);
    return found->second;
  }
  if (on_gpu) expect_no_capture(stream);
  Made made = make();
  made.largest = m;
  return keep(group, key, made, on_gpu);
}

}  // namespace imbrex_torch
