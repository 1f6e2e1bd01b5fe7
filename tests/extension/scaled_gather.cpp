#include "extension/scaled_gather.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "plan/builder.hpp"
#include "plan/work.hpp"

namespace imbrex::test {
namespace {

enum Space { space_x, space_factor, space_scaled };
constexpr int buffer_x = 0, buffer_factor = 1, buffer_output = 2;

// --------------------------------------------------------------------------------------------------- the operator

std::vector<OperandInfo> operands(const Problem& p) {
  const std::int64_t rows = p.m / p.ranks;
  return {{"x", OperandRole::input, Type::fp32, rows, p.n},
          {"factor", OperandRole::input, Type::fp32, rows, 1},
          {"out", OperandRole::output, Type::fp32, p.m, p.n}};
}

problem::Held input(const Problem& p, int rank, std::string_view name) {
  return {name == "x" ? space_x : space_factor, rank * (p.m / p.ranks), 0};
}

void wanted(const Problem& p, int, std::string_view, const std::function<void(const problem::Wanted&)>& visit) {
  visit({0, 0, p.m, p.n, {space_scaled, 0, 0, {{0, 1}}}});
}

problem::OperatorDescriptor scaled_gather() {
  problem::OperatorDescriptor op;
  op.name = "scaled_gather";
  op.sizes = {"rows", "cols", ""};
  op.splits = {true, false, false};
  op.validate = [](const Problem& p) { problem::expect_divides(p, "rows", p.m); };
  op.operands = operands;
  op.input = input;
  op.wanted = wanted;
  op.wire_bytes = [](const Problem& p) {
    return 4.0 * static_cast<double>((p.ranks - 1) * (p.m / p.ranks)) * static_cast<double>(p.n);
  };
  return op;
}

// ------------------------------------------------------------------------------------------------------- its work

Extent extent(const plan::BlockPlace& place) {
  return place.block.reads.size() == 2 ? Extent{place.block.reads[0].rows, place.block.reads[0].cols} : Extent{};
}

std::string check_block(const plan::BlockPlace& place) {
  const Region &x = place.block.reads[0], &factor = place.block.reads[1];
  for (const Region& r : {x, factor})
    if (place.plan.buffers[static_cast<std::size_t>(r.buffer)].type != Type::fp32) return "reads what is not fp32";
  if (factor.rows == x.rows && factor.cols == 1) return "";
  return fmt::format("scales {} rows by {} x {} factors", x.rows, factor.rows, factor.cols);
}

std::string value(const plan::BlockPlace& place, std::span<const plan::ReadPart> reads,
                  const std::function<void(const plan::BlockPart&)>& visit) {
  const plan::ReadPart &x = reads[0], &factor = reads[1];
  if (x.space != space_x || factor.space != space_factor) return "scales something else than x by its factors";
  if (x.row != factor.row) return fmt::format("scales rows from {} by the factors of rows from {}", x.row, factor.row);
  const auto [rows, cols] = extent(place);
  visit({0, 0, rows, cols, {space_scaled, x.row, x.col, {{0, 1}}}});
  return "";
}

plan::WorkCost cost(const plan::BlockPlace& place) {
  const auto [rows, cols] = extent(place);
  return {static_cast<double>(rows * cols)};
}

plan::BlockRows run(const plan::BlockPlace& place, const plan::WorkMemory& memory, float* result) {
  const auto& [kind, reads, args, stores, share, shares] = place.block;
  const auto [rows, cols] = extent(place);
  const plan::BlockRows own{rows * share / shares, rows * (share + 1) / shares};
  const auto at = [&](const Region& r, std::int64_t row) {
    return reinterpret_cast<const float*>(memory.at(r) + row * memory.pitch(r));
  };
  for (std::int64_t i = own.begin; i < own.end; ++i)
    for (std::int64_t j = 0; j < cols; ++j) result[i * cols + j] = at(reads[0], i)[j] * *at(reads[1], i);
  return own;
}

struct Registered {
  Operator op;
  WorkKind kind;
};

const Registered& registered() {
  static const Registered own = [] {
    plan::WorkDescriptor work;
    work.name = "scale_rows";
    work.extent = extent;
    work.check = check_block;
    work.value = value;
    work.cost = cost;
    work.run = run;
    return Registered{problem::register_operator(scaled_gather()), plan::register_work(work)};
  }();
  return own;
}

}  // namespace

Problem problem_of(const ScaledGather& size) {
  return {registered().op, size.rows, size.cols, 0, size.ranks, Type::fp32};
}

// ------------------------------------------------------------------------------------------------------ its plans

Plan scaled_gather_plan(const ScaledGather& size, Way way, std::int64_t step) {
  Knobs knobs;
  knobs.cluster = 1;
  plan::Builder b(problem_of(size), Strategy::fused, knobs);
  const int ranks = size.ranks, queue = b.queue(Engine::compute);
  const std::int64_t rows = size.rows / ranks;
  const std::vector<plan::Range> pieces = plan::cut(rows, step);
  const int shares = way == Way::shares ? 3 : 1;
  const auto tasks = static_cast<std::uint32_t>(std::ssize(pieces) * shares);
  const auto block = [&](int rank, const plan::Range& piece) {
    return Block{registered().kind,
                 {b.region(rank, buffer_x, piece.begin, piece.size, 0, size.cols),
                  b.region(rank, buffer_factor, piece.begin, piece.size, 0, 1)},
                 {},
                 {}};
  };
  if (way == Way::collective) {
    const int scaled = b.workspace("scaled", Layout::row_major, Type::fp32, rows, size.cols, 1),
              library = b.queue(Engine::library);
    for (int rank = 0; rank < ranks; ++rank) {
      const int done = b.signals(rank);
      for (const plan::Range& piece : pieces) {
        Block own = block(rank, piece);
        own.stores = {{b.rows_of(rank, scaled, piece.begin, piece.size), 0, 0}};
        b.add(rank, queue, {std::move(own), {}, {{rank, done}}});
      }
      b.add(rank, library,
            {Collective{CollectiveKind::all_gather, 0, b.rows_of(rank, scaled, 0, rows),
                        b.rows_of(rank, buffer_output, 0, size.rows)},
             {{done, tasks}},
             {}});
    }
    return b.take();
  }
  int entered = 0, arrived = 0;
  for (int rank = 0; rank < ranks; ++rank) entered = b.signals(rank), arrived = b.signals(rank);
  const auto others = static_cast<std::uint32_t>(ranks - 1);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Post> to_all, arrivals;
    for (int other = 0; other < ranks; ++other)
      if (other != rank) to_all.push_back({other, entered}), arrivals.push_back({other, arrived});
    std::vector<Wait> peers;
    if (ranks > 1) {
      peers = {{entered, others}};
      b.add(rank, queue, plan::signal_task({}, to_all));
    }
    for (const plan::Range& piece : pieces)
      for (int share = 0; share < shares; ++share) {
        Block own = block(rank, piece);
        own.share = share;
        own.shares = shares;
        for (int to = 0; to < ranks; ++to)
          own.stores.push_back({b.rows_of(to, buffer_output, rank * rows + piece.begin, piece.size), 0, 0});
        b.add(rank, queue, {std::move(own), peers, arrivals});
      }
    if (ranks > 1) b.add(rank, queue, plan::signal_task({{arrived, others * tasks}}, {}));
  }
  return b.take();
}

}  // namespace imbrex::test
