// imbrex_world_*.
#include "c/worlds.hpp"

#include "c/convert.hpp"
#include "c/error.hpp"
#include "collectives/backend.hpp"
#include "imbrex/ops.hpp"
#include "runtime/calls.hpp"

namespace imbrex::c {

WorldObject& world_object(imbrex_world* world) {
  expect_given(world, "world");
  return *static_cast<WorldObject*>(static_cast<void*>(world));
}

namespace {

const World& world_of(const imbrex_world* world) {
  expect_given(world, "world");
  return *static_cast<const WorldObject*>(static_cast<const void*>(world))->world;
}

constexpr std::size_t first_world_options = 24;
static_assert(offsetof(imbrex_world_options, gpu) == first_world_options);

WorldOptions world_options(const imbrex_world_options* given) {
  const auto read = c::options_of(given, first_world_options, "imbrex_world_options");
  WorldOptions options;
  if (read.heap_bytes != 0) options.heap_bytes = read.heap_bytes;
  options.wait_limit = read.wait_limit;
  options.entry_limit = read.entry_limit;
  if (read.gpu != nullptr) options.gpu = *read.gpu;
  if (read.ranks_per_gpu != 0) options.ranks_per_gpu = read.ranks_per_gpu;
  options.sms_for_others = read.sms_for_others;
  return options;
}

imbrex_world* handle_of(std::unique_ptr<World> world) {
  auto object = std::make_unique<WorldObject>();
  object->world = std::move(world);
  return static_cast<imbrex_world*>(static_cast<void*>(object.release()));
}

template <typename Make>
imbrex_status make(imbrex_world** world, Make&& make) noexcept {
  return guarded([&] {
    expect_given(world, "world");
    *world = nullptr;
    *world = handle_of(make());
  });
}

}  // namespace
}  // namespace imbrex::c

using namespace imbrex;
using imbrex::c::guarded;

imbrex_status imbrex_make_unique_id(imbrex_unique_id* id) noexcept {
  return guarded([&] {
    c::expect_given(id, "id");
    static_assert(sizeof(id->bytes) == sizeof(UniqueId::bytes));
    const UniqueId made = World::make_unique_id();
    std::memcpy(id->bytes, made.bytes.data(), sizeof id->bytes);
  });
}

imbrex_status imbrex_world_connect(const imbrex_unique_id* id, int32_t rank, int32_t size,
                                   const imbrex_world_options* options, imbrex_world** world) noexcept {
  return c::make(world, [&] {
    c::expect_given(id, "id");
    UniqueId given;
    std::memcpy(given.bytes.data(), id->bytes, sizeof id->bytes);
    return World::connect(given, rank, size, c::world_options(options));
  });
}

imbrex_status imbrex_world_from_environment(const imbrex_world_options* options, imbrex_world** world) noexcept {
  return c::make(world, [&] { return World::from_environment(c::world_options(options)); });
}

imbrex_status imbrex_world_destroy(imbrex_world* world) noexcept {
  if (world == nullptr) return IMBREX_OK;
  return guarded([&] {
    c::WorldObject& object = c::world_object(world);
    const int objects = object.objects;
    IMBREX_EXPECTS(objects == 0, "the world has {} operators or collectives; they are destroyed before it", objects);
    IMBREX_EXPECTS(object.outputs.empty(),
                   "{} outputs of the world's operators are allocated; they are freed before it",
                   object.outputs.size());
    delete &object;
  });
}

int32_t imbrex_world_rank(const imbrex_world* world) noexcept {
  return c::guarded_value(-1, [&] { return c::world_of(world).rank(); });
}

int32_t imbrex_world_size(const imbrex_world* world) noexcept {
  return c::guarded_value(-1, [&] { return c::world_of(world).size(); });
}

imbrex_status imbrex_world_barrier(imbrex_world* world) noexcept {
  return guarded([&] { c::world_object(world).world->barrier(); });
}

imbrex_status imbrex_world_all_gather(imbrex_world* world, const void* mine, void* all, size_t bytes) noexcept {
  return guarded([&] {
    World& own = *c::world_object(world).world;
    if (bytes > 0) c::expect_given(mine, "mine"), c::expect_given(all, "all");
    own.all_gather(mine, all, bytes);
  });
}

imbrex_status imbrex_world_fail(imbrex_world* world, const char* message) noexcept {
  return guarded([&] {
    World& own = *c::world_object(world).world;
    c::expect_given(message, "message");
    own.fail(message);
  });
}

imbrex_status imbrex_world_check(const imbrex_world* world) noexcept {
  return guarded([&] { c::world_of(world).throw_if_failed(); });
}

imbrex_status imbrex_world_refuse_call(imbrex_world* world, const char* reason) noexcept {
  return guarded([&] {
    const Error error(ErrorCode::invalid_input, reason != nullptr ? reason : "reason is null");
    runtime::calls_of(*c::world_object(world).world).refuse(error);
  });
}

imbrex_status imbrex_world_ask(imbrex_world* world, const char* field, const char* value) noexcept {
  return guarded([&] {
    World& own = *c::world_object(world).world;
    c::expect_given(field, "field");
    c::expect_given(value, "value");
    runtime::calls_of(own).ask(field, value);
  });
}

imbrex_status imbrex_world_skip_call(imbrex_world* world, const char* reason) noexcept {
  return guarded(
      [&] { runtime::calls_of(*c::world_object(world).world).skip(reason != nullptr ? reason : "reason is null"); });
}

imbrex_status imbrex_world_check_calls(imbrex_world* world) noexcept {
  return guarded([&] {
    World& own = *c::world_object(world).world;
    collectives::check_gpus(own);
    own.throw_if_failed();
    runtime::calls_of(own).expect_none_refused();
  });
}

imbrex_status imbrex_world_trim(imbrex_world* world) noexcept {
  return guarded([&] { trim(*c::world_object(world).world); });
}

imbrex_status imbrex_world_restore(imbrex_world* world) noexcept {
  return guarded([&] { restore(*c::world_object(world).world); });
}
