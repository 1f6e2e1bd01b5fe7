// imbrex_all_reduce_*, imbrex_exchange_* and imbrex_collective_*.
#include <type_traits>
#include <utility>
#include <variant>

#include "c/convert.hpp"
#include "c/worlds.hpp"
#include "imbrex/collectives.hpp"

namespace imbrex::c {
namespace {

using AnyCollective =
    std::variant<std::unique_ptr<AllReduce>, std::unique_ptr<AllReduceRmsNorm>, std::unique_ptr<Exchange>>;

struct CollectiveHandle {
  Member member;
  runtime::Calls& calls;
  AnyCollective collective;
  bool quantized = false;
};

CollectiveHandle& collective_of(imbrex_collective* collective) {
  expect_given(collective, "collective");
  return *static_cast<CollectiveHandle*>(static_cast<void*>(collective));
}

const CollectiveObject& base_of(const imbrex_collective* collective) {
  expect_given(collective, "collective");
  const auto* handle = static_cast<const CollectiveHandle*>(static_cast<const void*>(collective));
  return std::visit([](const auto& c) -> const CollectiveObject& { return *c; }, handle->collective);
}

constexpr std::size_t first_all_reduce = 64, first_rms_norm = 32, first_exchange = 32;
static_assert(sizeof(imbrex_all_reduce_options) == first_all_reduce);
static_assert(sizeof(imbrex_rms_norm_options) == first_rms_norm + sizeof(const imbrex_type*));
static_assert(sizeof(imbrex_exchange_options) == first_exchange);
static_assert(sizeof(imbrex_report) == first_report);
static_assert(exact_below_measured == IMBREX_EXACT_BELOW_MEASURED);
static_assert(static_cast<int>(ExchangeKind::reduce_scatter) == IMBREX_REDUCE_SCATTER &&
              static_cast<int>(ExchangeKind::all_gather) == IMBREX_ALL_GATHER &&
              static_cast<int>(ExchangeKind::all_to_all) == IMBREX_ALL_TO_ALL);

AllReduceAlgorithm algorithm_of(const char* name) {
  return parsed(name, parse_all_reduce_algorithm).value_or(AllReduceAlgorithm::automatic);
}

/// `make` gets the world and what `convert` returned, and gives a collective.
template <typename Convert, typename Make>
imbrex_status make(imbrex_world* world, imbrex_collective** made, Convert&& convert, Make&& make) noexcept {
  if (made != nullptr) *made = nullptr;
  return guarded([&] {
    WorldObject& object = world_object(world);
    World& own = *object.world;
    const auto wanted = converted(own, [&] {
      expect_given(made, "made");
      return convert();
    });
    AnyCollective collective = make(own, wanted);
    *made = static_cast<imbrex_collective*>(static_cast<void*>(
        new CollectiveHandle{Member(object), runtime::calls_of(own), std::move(collective), wanted.quantized}));
  });
}

imbrex_report told(const AllReduceReport& report, bool /*quantized*/) {
  return {.size = 0,
          .largest_error = report.largest_error,
          .non_finite = report.non_finite,
          .groups = report.groups,
          .raw_groups = report.raw_groups,
          .exact = report.exact ? 1 : 0,
          .reserved = 0,
          .algorithm = name_of(report.algorithm).data()};  // a literal
}

imbrex_report told(const ExchangeReport& report, bool quantized) {
  return {.size = 0,
          .largest_error = report.largest_error,
          .non_finite = report.non_finite,
          .groups = report.groups,
          .raw_groups = 0,
          .exact = quantized ? 0 : 1,
          .reserved = 0,
          .algorithm = nullptr};
}

}  // namespace
}  // namespace imbrex::c

using namespace imbrex;
using imbrex::c::guarded;

imbrex_status imbrex_all_reduce_make(imbrex_world* world, int64_t max_count, imbrex_type type,
                                     const imbrex_all_reduce_options* options, imbrex_collective** made) noexcept {
  struct Wanted {
    Type type;
    AllReduceOptions options;
    Device device;
    bool quantized;
  };
  return c::make(
      world, made,
      [&] {
        const auto read = c::options_of(options, c::first_all_reduce, "imbrex_all_reduce_options");
        AllReduceOptions wanted;
        wanted.codec = c::parsed(read.codec, parse_codec_pair);
        wanted.algorithm = c::algorithm_of(read.algorithm);
        if (read.tolerance != nullptr) wanted.tolerance = *read.tolerance;
        wanted.whole_call = read.whole_call != 0;
        wanted.exact_below = read.exact_below;
        wanted.batch_invariant = read.batch_invariant != 0;
        wanted.report = read.no_report == 0;
        wanted.ctas = read.ctas;
        return Wanted{c::type_of(type), wanted, c::device_of(read.device), wanted.codec.has_value()};
      },
      [&](World& own, const Wanted& w) {
        return std::make_unique<AllReduce>(own, max_count, w.type, w.options, w.device);
      });
}

imbrex_status imbrex_all_reduce_rms_norm_make(imbrex_world* world, int64_t max_rows, int64_t hidden, imbrex_type type,
                                              const imbrex_rms_norm_options* options,
                                              imbrex_collective** made) noexcept {
  struct Wanted {
    Type type;
    AllReduceRmsNormOptions options;
    Device device;
    bool quantized = false;
  };
  return c::make(
      world, made,
      [&] {
        const auto read = c::options_of(options, c::first_rms_norm, "imbrex_rms_norm_options");
        AllReduceRmsNormOptions wanted;
        wanted.algorithm = c::algorithm_of(read.algorithm);
        if (read.eps != nullptr) wanted.eps = *read.eps;
        wanted.ctas = read.ctas;
        if (read.weight_type != nullptr) wanted.weight_type = c::type_of(*read.weight_type);
        return Wanted{c::type_of(type), wanted, c::device_of(read.device)};
      },
      [&](World& own, const Wanted& w) {
        return std::make_unique<AllReduceRmsNorm>(own, max_rows, hidden, w.type, w.options, w.device);
      });
}

imbrex_status imbrex_exchange_make(imbrex_world* world, imbrex_exchange_kind kind, int64_t max_count, imbrex_type type,
                                   const imbrex_exchange_options* options, imbrex_collective** made) noexcept {
  struct Wanted {
    ExchangeKind kind;
    Type type;
    ExchangeOptions options;
    Device device;
    bool quantized;
  };
  return c::make(
      world, made,
      [&] {
        const auto read = c::options_of(options, c::first_exchange, "imbrex_exchange_options");
        ExchangeOptions wanted;
        wanted.codec = c::parsed(read.codec, parse_codec);
        wanted.report = read.no_report == 0;
        wanted.ctas = read.ctas;
        return Wanted{static_cast<ExchangeKind>(c::kind_of(kind, 3, "kind")), c::type_of(type), wanted,
                      c::device_of(read.device), wanted.codec.has_value()};
      },
      [&](World& own, const Wanted& w) {
        return std::make_unique<Exchange>(own, w.kind, max_count, w.type, w.options, w.device);
      });
}

imbrex_status imbrex_collective_destroy(imbrex_collective* collective) noexcept {
  if (collective == nullptr) return IMBREX_OK;
  return guarded([&] { delete &c::collective_of(collective); });
}

imbrex_status imbrex_collective_run(imbrex_collective* collective, const imbrex_operand* operands, size_t count,
                                    void* stream) noexcept {
  return guarded([&] {
    c::CollectiveHandle& object = c::collective_of(collective);
    c::call(object.calls, operands, count, [&](const Operands& given) {
      std::visit([&](auto& own) { own->run(given, static_cast<CudaStream>(stream)); }, object.collective);
    });
  });
}

imbrex_status imbrex_collective_report(imbrex_collective* collective, imbrex_report* report) noexcept {
  return guarded([&] {
    c::CollectiveHandle& object = c::collective_of(collective);
    c::write_structure(report,
                       std::visit(
                           [&](auto& own) -> imbrex_report {
                             if constexpr (std::is_same_v<std::decay_t<decltype(*own)>, AllReduceRmsNorm>)
                               throw Error(ErrorCode::invalid_input,
                                           "an all-reduce with RMSNorm is exact, and has no report");
                             else
                               return c::told(own->report(), object.quantized);
                           },
                           object.collective),
                       c::first_report, "imbrex_report");
  });
}

imbrex_status imbrex_collective_synchronize(imbrex_collective* collective) noexcept {
  return guarded([&] { std::visit([](auto& own) { own->synchronize(); }, c::collective_of(collective).collective); });
}

imbrex_device imbrex_collective_device(const imbrex_collective* collective) noexcept {
  return c::guarded_value(-1, [&] { return c::number_of(c::base_of(collective).device()); });
}

const char* imbrex_collective_why_cpu(const imbrex_collective* collective) noexcept {
  return c::guarded_value("", [&] { return c::base_of(collective).why_cpu().c_str(); });
}
