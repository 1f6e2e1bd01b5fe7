#include "groups.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>

#include "interface.hpp"
#include "stream.hpp"

namespace imbrex_torch {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Group>> groups;
  imbrex_torch_connect_function* connect = nullptr;

  Group* find(std::string_view name) {
    const std::lock_guard lock(mutex);
    for (const auto& group : groups)
      if (group->name == name) return group.get();
    return nullptr;
  }
};

Registry& registry() {
  static auto* const made = new Registry;  // worlds that Python did not end are left to the end of the process
  return *made;
}

std::array<std::atomic<std::int64_t>, static_cast<std::size_t>(Count::count_)> counts{};

// Runs what may throw for a caller in C.
template <typename Body>
imbrex_status guarded(const Body& body) noexcept {
  try {
    body();
    return IMBREX_OK;
  } catch (const std::exception&) {
    return last_code() == IMBREX_OK ? IMBREX_RUNTIME_FAILURE : last_code();
  }
}

}  // namespace

void Made::destroy() const noexcept {
  imbrex_operator_destroy(product);
  imbrex_collective_destroy(collective);
}

// The ranks destroy objects together, in one order: that in which they made them. A rank that refuses a call does not
// come to its object, so who used one last is not the same on every rank.
Group::~Group() {
  std::vector<Made> all;
  for (const auto& [key, one] : made) all.push_back(one);
  std::ranges::sort(all, {}, &Made::number);
  for (const Made& one : all) one.destroy();
}

void Group::end_oldest() {
  auto oldest = made.end();
  std::size_t on_cpu = 0;
  for (auto one = made.begin(); one != made.end(); ++one) {
    if (one->second.on_gpu) continue;
    ++on_cpu;
    if (oldest == made.end() || one->second.number < oldest->second.number) oldest = one;
  }
  if (on_cpu <= most_on_cpu) return;
  if (oldest->second.collective == last) last = nullptr;
  oldest->second.destroy();
  ready.clear();
  made.erase(oldest);
}

// All ranks have made theirs before one ends the oldest, so all end the same one. One whose making is refused ends
// none.
Made& keep(Group& group, const Key& key, Made made, bool on_gpu) {
  made.on_gpu = on_gpu;
  made.number = ++group.objects;
  count(Count::made);
  Made& kept = group.made.emplace(key, made).first->second;
  if (!on_gpu) group.end_oldest();
  return kept;
}

void grow(const Group& group, Made& product, std::int64_t m, void* stream) {
  if (product.on_gpu) expect_no_capture(stream);
  const auto power = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(m)));
  const std::int64_t largest = (power + group.size - 1) / group.size * group.size;
  imbrex_status status = imbrex_operator_grow(product.product, largest);
  // All ranks have that error: memory for these rows alone may be there, or allowed.
  const bool no_memory =
      status == IMBREX_RUNTIME_FAILURE || (status == IMBREX_INVALID_INPUT && group.gpu_heap_limit != 0);
  if (no_memory && largest != m) {
    status = imbrex_operator_grow(product.product, m);
    if (status == IMBREX_OK) product.largest = m;
  } else if (status == IMBREX_OK) {
    product.largest = largest;
  }
  check(status);
  count(Count::made);
}

Group* connected_group(std::string_view name) { return registry().find(name); }

Group& find_group(std::string_view given) {
  Registry& all = registry();
  if (Group* found = all.find(given)) return *found;
  const std::string name(given);
  if (!all.connect) refuse("group '" + name + "' is not connected; import imbrex.torch, or call imbrex.torch.connect");
  std::string message(1024, '\0');
  const imbrex_status status = all.connect(for_c("group", name), message.data(), message.size());
  if (status != IMBREX_OK) fail(status, message.c_str());
  if (Group* found = all.find(name)) return *found;
  fail(IMBREX_RUNTIME_FAILURE, "group '" + name + "' was not connected");
}

void refuse_call(Group& group, const char* reason) noexcept { imbrex_world_refuse_call(group.world, reason); }

void skip_call(Group& group, const std::string& reason) { check(imbrex_world_skip_call(group.world, reason.c_str())); }

void expect_no_capture(void* stream) {
  if (is_capturing(stream))
    refuse(
        "the first call of a shape prepares it on all ranks, which no graph can capture: call "
        "imbrex.torch.warm_up, or the operator itself, with this shape before the capture");
}

void count(Count what) noexcept { counts[static_cast<std::size_t>(what)].fetch_add(1, std::memory_order_relaxed); }

}  // namespace imbrex_torch

using namespace imbrex_torch;

void imbrex_torch_set_connect(imbrex_torch_connect_function* connect) { registry().connect = connect; }

imbrex_status imbrex_torch_connect(const char* name, imbrex_world* world, int32_t cpu_workers,
                                   uint64_t gpu_heap_limit) {
  return guarded([&] {
    Registry& all = registry();
    if (all.find(name)) refuse(std::string("group '") + name + "' is connected already");
    auto group = std::make_unique<Group>();
    group->name = name;
    group->world = world;
    group->rank = imbrex_world_rank(world);
    group->size = imbrex_world_size(world);
    group->cpu_workers = cpu_workers;
    group->gpu_heap_limit = gpu_heap_limit;
    const std::lock_guard lock(all.mutex);
    all.groups.push_back(std::move(group));
  });
}

imbrex_status imbrex_torch_disconnect(const char* name) {
  return guarded([&] {
    Registry& all = registry();
    std::unique_ptr<Group> ended;
    const std::lock_guard lock(all.mutex);
    for (auto one = all.groups.begin(); one != all.groups.end(); ++one)
      if ((*one)->name == name) {
        ended = std::move(*one);
        all.groups.erase(one);
        break;
      }
  });
}

namespace {

imbrex_status with_world(const char* name, imbrex_status (*call)(imbrex_world*)) {
  return guarded([&] {
    Group& group = find_group(name);
    const std::lock_guard lock(group.mutex);
    check(call(group.world));
  });
}

}  // namespace

imbrex_status imbrex_torch_trim(const char* name) { return with_world(name, imbrex_world_trim); }

imbrex_status imbrex_torch_restore(const char* name) { return with_world(name, imbrex_world_restore); }

imbrex_status imbrex_torch_check(const char* name) {
  return guarded([&] {
    Group* group = registry().find(name);
    if (!group) return;
    const std::lock_guard lock(group->mutex);
    check(imbrex_world_check_calls(group->world));
    for (const auto& [key, one] : group->made)
      if (one.product) check(imbrex_operator_check(one.product));
  });
}

imbrex_status imbrex_torch_refuse(const char* name, const char* reason) {
  return guarded([&] {
    Group& group = find_group(name);
    const std::lock_guard lock(group.mutex);
    refuse_call(group, reason);
  });
}

imbrex_status imbrex_torch_ask(const char* name, const char* field, const char* value) {
  return guarded([&] {
    Group& group = find_group(name);
    const std::lock_guard lock(group.mutex);
    check(imbrex_world_ask(group.world, field, value));
  });
}

imbrex_status imbrex_torch_report(const char* name, imbrex_report* report) {
  return guarded([&] {
    Group* group = registry().find(name);
    if (!group || !group->last) refuse(std::string("group '") + name + "' has made no all-reduce yet");
    const std::lock_guard lock(group->mutex);
    check(imbrex_collective_report(group->last, report));
  });
}

imbrex_status imbrex_torch_last_code(void) { return last_code(); }
const char* imbrex_torch_last_message(void) { return last_message().c_str(); }

const char* imbrex_torch_counted(int32_t index) {
#define IMBREX_NAME(name, kind, sums) #name,
  constexpr std::array names{IMBREX_PRODUCTS(IMBREX_NAME) "all_reduce", "all_reduce_rms_norm", "made"};
#undef IMBREX_NAME
  static_assert(names.size() == counts.size());
  return index >= 0 && static_cast<std::size_t>(index) < names.size() ? names[static_cast<std::size_t>(index)]
                                                                      : nullptr;
}

int64_t imbrex_torch_count(int32_t index) {
  return index >= 0 && static_cast<std::size_t>(index) < counts.size() ? counts[static_cast<std::size_t>(index)].load()
                                                                       : -1;
}
