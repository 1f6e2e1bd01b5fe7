#include "program/reference.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>
#include <set>
#include <system_error>
#include <thread>

#include "base/blas.hpp"
#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "plan/problem.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::program {
namespace {

double half_denormal(Type type) { return type == Type::fp16 ? 0x1p-25 : type == Type::bf16 ? 0x1p-134 : 0x1p-150; }

std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

std::vector<double> magnitudes(std::vector<double> values) {
  for (double& v : values) v = std::abs(v);
  return values;
}

// Some rows of a rank's A, times their scales.
std::vector<double> scaled_rows(const OperandSource& operands, int rank, const std::vector<std::int64_t>& rows) {
  std::vector<double> values = widened(operands.rows_of_a(rank, rows));
  const std::vector<float> scales = operands.scales(true, rank);
  const std::size_t length = rows.empty() ? 1 : values.size() / rows.size();
  for (std::size_t i = 0; !scales.empty() && i < values.size(); ++i)
    values[i] *= static_cast<double>(scales[scales.size() == 1 ? 0 : static_cast<std::size_t>(rows[i / length])]);
  return values;
}

// Some columns of a rank's B of that product, times their scales. The memory is taken once, and used again.
class Columns {
 public:
  const std::vector<double>& read(const OperandSource& operands, int rank, int product, std::int64_t first,
                                  std::int64_t count) {
    operands.read_columns_of_b(rank, product, first, count, floats_);
    values_.assign(floats_.begin(), floats_.end());
    const std::vector<float> scales = operands.scales(false, rank);
    for (std::size_t i = 0; !scales.empty() && i < values_.size(); ++i) {
      const auto col = static_cast<std::size_t>(first) + i % static_cast<std::size_t>(count);
      values_[i] *= static_cast<double>(scales[scales.size() == 1 ? 0 : col]);
    }
    return values_;
  }
  const std::vector<double>& magnitudes() {
    for (double& v : values_) v = std::abs(v);
    return values_;
  }

 private:
  std::vector<float> floats_;
  std::vector<double> values_;
};

double largest_of(const std::vector<float>& values) {
  double most = 0;
  for (const float v : values) most = std::max(most, std::abs(static_cast<double>(v)));
  return most;
}

// For stretches of so many columns, each in a thread of its own: one after the other where a rank's share of the cores,
// or of the work, is that of one thread. Throws what one of them throws.
template <typename Work>
void over_columns(std::int64_t cols, int ranks, double operations, const Work& work) {
  constexpr double least = 2e9;  // operations that outlast a thread's start by far
  constexpr std::int64_t most = 16;
  const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
  const std::int64_t threads = std::clamp(std::min(cores / ranks, static_cast<std::int64_t>(operations / least)),
                                          std::int64_t{1}, std::min(most, cols));
  base::reserve_blas(static_cast<int>(threads));
  const std::int64_t stretch = base::ceil_div(cols, threads);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(threads));
  {
    std::vector<std::jthread> others;
    for (std::int64_t first = stretch; first < cols; first += stretch) {
      const std::int64_t count = std::min(stretch, cols - first);
      std::exception_ptr& failure = failures[static_cast<std::size_t>(first / stretch)];
      try {
        others.emplace_back([&work, &failure, first, count] {
          try {
            work(first, count);
          } catch (...) {
            failure = std::current_exception();
          }
        });
      } catch (const std::system_error&) {
        work(first, count);
      }
    }
    work(0, std::min(stretch, cols));
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// So many columns of a product, which begin at `result`, `cols` after each other: += rows of A times columns of B,
// which lie without gaps.
struct Multiply {
  std::int64_t rows, width, depth, cols;

  void operator()(const std::vector<double>& a, const std::vector<double>& b, double* result) const {
    add(a, b, 0, depth, result, cols);
  }

  // Over `columns` of A from k on.
  void add(const std::vector<double>& a, const std::vector<double>& b, std::int64_t k, std::int64_t columns,
           double* result, std::int64_t pitch) const {
    if (rows == 0) return;
    base::multiply({static_cast<int>(rows), static_cast<int>(width), static_cast<int>(columns), a.data() + k,
                    static_cast<int>(depth), b.data() + k * width, static_cast<int>(width), false, 1.0, result,
                    static_cast<int>(pitch)});
  }

  // How much Hopper's instructions may lose of each element, added to `lost`.
  void add_alignment_error(const std::vector<double>& a, const std::vector<double>& b, double* lost) const {
    constexpr std::int64_t at_once = 32, interval = 128;
    // The sum so far is the instruction's, which itself has lost some.
    constexpr double unit = (at_once + 1) * 0x1p-12 * 1.02;
    std::vector<double> sum(static_cast<std::size_t>(rows * width)), in_row(static_cast<std::size_t>(rows)),
        in_col(static_cast<std::size_t>(width));
    for (std::int64_t k = 0; k < depth; k += at_once) {
      const std::int64_t columns = std::min(at_once, depth - k);
      if (k % interval == 0) std::fill(sum.begin(), sum.end(), 0.0);
      std::fill(in_row.begin(), in_row.end(), 0.0);
      std::fill(in_col.begin(), in_col.end(), 0.0);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t c = 0; c < columns; ++c) {
          double& most = in_row[static_cast<std::size_t>(i)];
          most = std::max(most, std::abs(a[static_cast<std::size_t>(i * depth + k + c)]));
        }
      for (std::int64_t c = 0; c < columns; ++c)
        for (std::int64_t j = 0; j < width; ++j) {
          double& most = in_col[static_cast<std::size_t>(j)];
          most = std::max(most, std::abs(b[static_cast<std::size_t>((k + c) * width + j)]));
        }
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < width; ++j) {
          const double product = in_row[static_cast<std::size_t>(i)] * in_col[static_cast<std::size_t>(j)];
          lost[i * cols + j] += unit * std::max(std::abs(sum[static_cast<std::size_t>(i * width + j)]), product);
        }
      add(a, b, k, columns, sum.data(), width);
    }
  }
};

enum class Adding : std::uint8_t { tasks, collective, stages };

// The coarsest of what partial products and sums lie in before they are complete. Knobs do not tell: they say nothing
// of what runs.
struct Way {
  double roundoff = 0, half_denormal = 0;
};

Way way_of_sums(const Plan& plan) {
  Way way;
  const auto passes = [&](Type type) {
    way = {std::max(way.roundoff, unit_roundoff(type)), std::max(way.half_denormal, half_denormal(type))};
  };
  for (const Buffer& buffer : plan.buffers)
    if (buffer.role == BufferRole::workspace) passes(buffer.type);
  if (way.roundoff == 0) passes(output_type(plan.problem.type));
  return way;
}

// What codecs may cost each element of a rank's output.
class CodecError {
 public:
  /// `parts`: by source, the contributions to the rank's output, and how far each may be from what is sent.
  CodecError(const std::vector<std::vector<double>>& parts, const std::vector<std::vector<double>>& apart,
             std::int64_t cols)
      : parts_(parts), apart_(apart), cols_(cols) {}

  // Adds what the collective may lose in its rows, whose first element begins a group.
  void add(const Collective& c, std::vector<double>& errors) const {
    add(c, static_cast<std::size_t>(c.to.row * cols_), static_cast<std::size_t>(c.to.rows * cols_), false, errors);
  }

  // Adds what collectives like this one may lose that together send all tiles, in whatever order: any values may lie in
  // a group.
  void add_of_tiles(const Collective& c, std::vector<double>& errors) const { add(c, 0, errors.size(), true, errors); }

 private:
  void add(const Collective& c, std::size_t first, std::size_t count, bool mixed, std::vector<double>& errors) const {
    std::vector<double> sums(count), apart(count);
    for (std::size_t s = 0; s < parts_.size(); ++s) {
      add_step(c.codec->reduce_scatter, mixed, &parts_[s][first], &apart_[s][first], count, &errors[first]);
      for (std::size_t i = 0; i < count; ++i) {
        sums[i] += parts_[s][first + i];
        // The sum of what was decoded, which fp32 rounds.
        apart[i] +=
            apart_[s][first + i] + 0x1p-24 * static_cast<double>(parts_.size()) * std::abs(parts_[s][first + i]);
      }
    }
    if (c.kind != CollectiveKind::all_reduce) return;
    for (std::size_t i = 0; i < count; ++i) apart[i] += errors[first + i];
    add_step(c.codec->all_gather, mixed, sums.data(), apart.data(), count, &errors[first]);
  }

  // `mixed`: groups hold any of the values, and what fills up tiles at the edges, 0.
  static void add_step(const Codec& codec, bool mixed, const double* values, const double* apart, std::size_t count,
                       double* errors) {
    const std::size_t group = mixed ? count : static_cast<std::size_t>(codec.group);
    for (std::size_t begin = 0; begin < count; begin += group) {
      const std::size_t end = std::min(begin + group, count);
      double low = mixed ? 0 : values[begin] - apart[begin], high = mixed ? 0 : values[begin] + apart[begin];
      for (std::size_t i = begin; i < end; ++i) {
        low = std::min(low, values[i] - apart[i]);
        high = std::max(high, values[i] + apart[i]);
      }
      const float least = std::nextafter(static_cast<float>(low), -std::numeric_limits<float>::infinity()),
                  most = std::nextafter(static_cast<float>(high), std::numeric_limits<float>::infinity());
      const double error = std::isfinite(least) && std::isfinite(most)
                               ? static_cast<double>(error_bound(codec, least, most))
                               : std::numeric_limits<double>::infinity();
      for (std::size_t i = begin; i < end; ++i) errors[i] += error;
    }
  }

  const std::vector<std::vector<double>>&parts_, &apart_;
  std::int64_t cols_;
};

std::vector<const Collective*> quantized_collectives(const Plan& plan, int rank) {
  std::vector<const Collective*> list;
  for (const Queue& queue : plan.ranks[static_cast<std::size_t>(rank)].queues)
    for (const Task& task : queue.tasks)
      if (const auto* c = std::get_if<Collective>(&task.work); c != nullptr && c->codec) list.push_back(c);
  return list;
}

Adding adding_of(const Plan& plan) {
  for (const Queue& queue : plan.ranks.front().queues)
    for (const Task& task : queue.tasks)
      if (const auto* c = std::get_if<Collective>(&task.work);
          c != nullptr && (c->kind == CollectiveKind::reduce_scatter || c->kind == CollectiveKind::all_reduce))
        return c->ranks.empty() ? Adding::collective : Adding::stages;
  return Adding::tasks;
}

// How a rank's sums run along K: in how many tiles, and in how many pieces of each, which are summed one after another.
struct Cuts {
  std::int64_t parts = 1, slices = 1;
};

Cuts cuts_of(const Plan& plan, int rank) {
  std::set<std::int64_t> begins;
  Cuts cuts;
  for (const Queue& queue : plan.ranks[static_cast<std::size_t>(rank)].queues)
    for (const Task& task : queue.tasks) {
      const auto* tile = std::get_if<Tile>(&task.work);
      if (tile == nullptr) continue;
      begins.insert(tile->a.col);
      std::set<std::int64_t> pieces{0};
      for (const Wait& wait : task.waits) pieces.insert(wait.k_begin);
      cuts.slices = std::max(cuts.slices, std::ssize(pieces));
    }
  cuts.parts = std::max<std::int64_t>(cuts.parts, std::ssize(begins));
  return cuts;
}

// What ranks store of their split-K sums, before they add them up, loses against fp32. The last share's tile
// adds the others, and so stores the whole.
Way way_of_parts(const Plan& plan) {
  Way way;
  const std::int64_t depth = shapes_of(plan.problem).depth;
  plan::for_each_task(plan, [&](const plan::TaskPlace&, const Task& task) {
    const auto* tile = std::get_if<Tile>(&task.work);
    if (tile == nullptr || tile->a.cols == depth || !tile->adds.empty()) return;
    for (const Store& store : tile->stores)
      if (const Type type = plan.buffers[static_cast<std::size_t>(store.to.buffer)].type; type != Type::fp32)
        way = {std::max(way.roundoff, unit_roundoff(type)), std::max(way.half_denormal, half_denormal(type))};
  });
  return way;
}

// Rows of a rank's output to which a source contributes, the first of them, and that of the source's A.
struct Rows {
  std::int64_t count = 0, out = 0, a = 0;
};

// As the product lies in rows, however the output does.
Rows contribution_of(Problem problem, int rank, int source, int number) {
  problem.packed = {};
  const RankShapes shapes = shapes_of(problem);
  const problem::Held a = problem::held_by(problem, source, "a");
  const std::int64_t k = problem::descriptor_of(problem.op).stacked ? source * problem.k : a.col;
  Rows rows;
  problem::descriptor_of(problem.op).wanted(problem, rank, plan::name_of_out(number), [&](const problem::Wanted& w) {
    const bool adds = std::any_of(w.held.terms.begin(), w.held.terms.end(),
                                  [&](const problem::Stretch& s) { return s.begin <= k && k + shapes.depth <= s.end; });
    const std::int64_t first = std::max(w.row + w.held.row, a.row),
                       end = std::min(w.row + w.held.row + w.rows, a.row + shapes.a.rows);
    if (adds && first < end) rows = {end - first, first - w.held.row, first - a.row};
  });
  return rows;
}

}  // namespace

std::int64_t compared_stride(const Problem& problem) {
  constexpr std::int64_t most = 32;
  const RankShapes shapes = shapes_of(problem);
  const double sources = problem::descriptor_of(problem.op).sums ? problem.ranks : 1;
  double multiplied = 0;
  for (int product = 0; product < plan::count_products(problem); ++product)
    multiplied += static_cast<double>(shapes.out.rows) * static_cast<double>(plan::cols_of(problem, product)) *
                  static_cast<double>(shapes.depth) * sources;
  return static_cast<std::int64_t>(std::clamp(std::ceil(multiplied / most_multiplied), 1.0, double{most}));
}

std::int64_t compared_stride(const Plan& plan) {
  for (int rank = 0; rank < plan.problem.ranks; ++rank)
    if (!quantized_collectives(plan, rank).empty()) return 1;
  return compared_stride(plan.problem);
}

Reference reference_of(const Plan& plan, const OperandSource& operands, int rank, Device device, int number,
                       const std::vector<std::int64_t>* rows_asked, const std::function<void()>& source_done) {
  constexpr std::int64_t block = 256;  // columns of B at a time: their memory is taken once, and used again
  const Problem& problem = plan.problem;
  const RankShapes shapes = shapes_of(problem);
  const std::int64_t cols = plan::cols_of(problem, number), out_rows = shapes.out.rows, ranks = problem.ranks;
  std::vector<std::int64_t> lines(static_cast<std::size_t>(rows_asked == nullptr ? out_rows : 0));
  std::iota(lines.begin(), lines.end(), std::int64_t{0});
  if (rows_asked != nullptr) lines = *rows_asked;
  const auto count = lines.size() * static_cast<std::size_t>(cols);
  Reference ref{std::vector<double>(count), std::vector<double>(count), 0};
  std::vector<double> absolute(count), partials(count), lost(count);
  // Sums through a codec: the contributions of each source, and of their magnitudes.
  const std::vector<const Collective*> quantized = quantized_collectives(plan, rank);
  IMBREX_EXPECTS(quantized.empty() || rows_asked == nullptr,
                 "a codec's groups go over rows: the reference of some rows is not defined");
  std::vector<std::vector<double>> sent, magnitudes_sent;
  const Type result = output_type(problem.type);
  double underflow = 0;  // what products, or their shares of K, lose that are scaled by A's first
  const Cuts cuts = cuts_of(plan, rank);
  const auto parts = static_cast<double>(cuts.parts);
  const problem::OperatorDescriptor& op = problem::descriptor_of(problem.op);
  // Each rank's rows by its own B, what is gathered by this rank's, or parts of sums over all ranks.
  const bool exchange = op.stacked, gather = !op.stacked && !op.sums;
  for (int source = 0; source < problem.ranks; ++source) {
    const auto [rows, out_row, a_row] = contribution_of(problem, rank, source, number);
    const int owner_of_b = gather ? rank : source;
    if ((!gather || source == 0) && problem.scales != Scales::none)
      underflow += parts * (1 + largest_of(operands.scales(false, owner_of_b))) * half_denormal(Type::fp32);
    if (!quantized.empty()) sent.emplace_back(count), magnitudes_sent.emplace_back(count);
    const auto first_line = std::lower_bound(lines.begin(), lines.end(), out_row),
               end_line = std::lower_bound(first_line, lines.end(), out_row + rows);
    std::vector<std::int64_t> a_rows(first_line, end_line);
    for (std::int64_t& row : a_rows) row += a_row - out_row;
    const std::vector<double> a = scaled_rows(operands, source, a_rows), a_magnitudes = magnitudes(a);
    const std::int64_t begin = (first_line - lines.begin()) * cols, line_count = std::ssize(a_rows);
    const auto work = [&](std::int64_t first, std::int64_t width, Columns& columns, std::vector<double>& partial) {
      const Multiply product{line_count, width, shapes.depth, cols};
      const std::vector<double>& b = columns.read(operands, owner_of_b, number, first, width);
      partial.assign(static_cast<std::size_t>(line_count * width), 0.0);
      product.add(a, b, 0, shapes.depth, partial.data(), width);
      if (problem.type == Type::e4m3 && device == Device::cuda)
        product.add_alignment_error(a, b, lost.data() + begin + first);
      product(a_magnitudes, columns.magnitudes(),
              (quantized.empty() ? absolute : magnitudes_sent.back()).data() + begin + first);
      for (std::int64_t line = 0; line < line_count; ++line)
        for (std::int64_t col = 0; col < width; ++col) {
          const auto at = static_cast<std::size_t>(begin + line * cols + first + col);
          const double value = partial[static_cast<std::size_t>(line * width + col)];
          ref.value[at] += value;
          partials[at] += std::abs(value);
          if (quantized.empty()) continue;
          sent.back()[at] = value;
          absolute[at] += magnitudes_sent.back()[at];
        }
    };
    // To make an element of B takes as long as some multiplications.
    const double operations =
        (2.0 * static_cast<double>(line_count) + 40) * static_cast<double>(cols) * static_cast<double>(shapes.depth);
    if (line_count > 0)
      over_columns(cols, problem.ranks, operations, [&](std::int64_t first, std::int64_t stretch) {
        Columns columns;
        std::vector<double> partial;
        for (std::int64_t done = 0; done < stretch; done += block)
          work(first + done, std::min(block, stretch - done), columns, partial);
      });
    if (source_done) source_done();
  }
  std::vector<float> bias;
  for (std::size_t line = 0; problem.bias && line < lines.size(); ++line) {
    const std::int64_t row_block = exchange ? out_rows / ranks : out_rows;
    if (line == 0 || lines[line] / row_block != lines[line - 1] / row_block)
      bias = operands.bias_as_float(exchange ? static_cast<int>(lines[line] / row_block) : rank, number);
    for (std::int64_t col = 0; col < cols; ++col) {
      const double value = static_cast<double>(bias[static_cast<std::size_t>(col)]);
      const std::size_t at = line * static_cast<std::size_t>(cols) + static_cast<std::size_t>(col);
      ref.value[at] += value;
      absolute[at] += std::abs(value);
    }
  }
  const bool sums = op.sums && (ranks > 1 || problem.bias);
  const double n = static_cast<double>(problem.k + ranks + cuts.slices + (problem.bias ? 3 : 2) +
                                       (problem.scales == Scales::none ? 0 : 2)),
               u = 0x1p-24, g = n * u / (1 - n * u);
  IMBREX_EXPECTS(n * u < 0.5,
                 "k = {}: a sum in fp32 of {} terms and more can be verified no more, its bound is too wide", problem.k,
                 1 << 23);
  const Adding adding = adding_of(plan);
  const Way way = way_of_sums(plan), way_of_part = way_of_parts(plan);
  // The parts' magnitudes are together no more than those of the products that they sum.
  const double part_roundoff = way_of_part.roundoff * (1 + g),
               part_denormal = parts * static_cast<double>(ranks) * way_of_part.half_denormal;
  const bool in_partial_type =
      adding == Adding::stages || (adding == Adding::collective && (problem.bias || device == Device::cuda));
  const double u_out = unit_roundoff(result), roundings = in_partial_type ? static_cast<double>(ranks) : 1,
               u_partial = roundings * way.roundoff,
               g_partial = in_partial_type ? u_partial / (1 - u_partial) : u_partial;
  std::vector<double> coding(count);
  if (!quantized.empty()) {
    std::vector<std::vector<double>> apart = magnitudes_sent;
    for (std::size_t s = 0; s < apart.size(); ++s)
      for (std::size_t i = 0; i < count; ++i) {
        const double accumulated = g * apart[s][i] + lost[i] + underflow;
        apart[s][i] = accumulated + way.roundoff * (std::abs(sent[s][i]) + accumulated) + way.half_denormal;
      }
    const CodecError error(sent, apart, cols);
    // Where sums are packed, tiles follow each other in a workspace of another shape and are put back afterwards.
    const auto in_place = [&](const Collective* c) {
      const Buffer& to = plan.buffers[static_cast<std::size_t>(c->to.buffer)];
      return to.cols == cols && to.rows * to.cols == static_cast<std::int64_t>(count);
    };
    for (const Collective* c : quantized)
      if (in_place(c)) error.add(*c, coding);
    const auto packed =
        std::find_if(quantized.begin(), quantized.end(), [&](const Collective* c) { return !in_place(c); });
    if (packed != quantized.end()) error.add_of_tiles(**packed, coding);
    ref.codec_bound = *std::max_element(coding.begin(), coding.end());
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double accumulated =
        g * absolute[i] + lost[i] + underflow + coding[i] + part_roundoff * absolute[i] + part_denormal;
    const double rounded =
        sums ? g_partial * (partials[i] + accumulated) + static_cast<double>(ranks) * way.half_denormal : 0;
    ref.bound[i] =
        accumulated + rounded + u_out * (std::abs(ref.value[i]) + accumulated + rounded) + half_denormal(result);
  }
  return ref;
}

Reference gathered_reference(const Problem& problem, const OperandSource& operands) {
  Reference ref;
  for (int source = 0; source < problem.ranks; ++source) {
    const std::vector<float> part = operands.part_as_float(true, source);
    ref.value.insert(ref.value.end(), part.begin(), part.end());
  }
  ref.bound.assign(ref.value.size(), 0);
  return ref;
}

}  // namespace imbrex::program
