#include "plan/check/dataflow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/narrow.hpp"
#include "plan/builder.hpp"
#include "plan/check/writes.hpp"
#include "plan/problem.hpp"

namespace imbrex::plan {
namespace {

struct Refused {
  Finding finding;
};

class Dataflow {
 public:
  Dataflow(const Plan& plan, Graph& graph)
      : plan_(plan), graph_(graph), index_(plan.ranks.size() * plan.buffers.size()) {}

  void run() {
    collect_writes();
    for (TaskId id : graph_.order()) evaluate(id);
    for (int rank = 0; rank < plan_.problem.ranks; ++rank) check_outputs(rank);
    // Last, because a missing wait or tile also loosens the order between epochs, and is what should be named.
    if (reuse_) throw Refused{*reuse_};
  }

 private:
  [[noreturn]] void refuse(Fault fault, TaskId task, const std::string& text) {
    throw Refused{graph_.finding(fault, task, text)};
  }

  const Buffer& buffer(const Region& region) const { return plan_.buffers[static_cast<std::size_t>(region.buffer)]; }
  WriteIndex& index_of(int rank, int buffer) {
    return index_[static_cast<std::size_t>(rank) * plan_.buffers.size() + static_cast<std::size_t>(buffer)];
  }
  std::string text(const Region& r) const {
    return fmt::format("rows {}+{} cols {}+{} of {} on rank {}", r.row, r.rows, r.col, r.cols, buffer(r).name, r.rank);
  }
  std::string name(TaskId id) const {
    const TaskNode& node = graph_.nodes()[id];
    return task_name(plan_, node.rank, node.queue, node.index);
  }

  // ------------------------------------------------------------------------------------------------------ writes

  void collect_writes() {
    for (TaskId id = 0; id < graph_.nodes().size(); ++id)
      for_each_written(id, [&](const Region& region) { index_of(region.rank, region.buffer).add({region, id, {}}); });
    for (int rank = 0; rank < plan_.problem.ranks; ++rank)
      for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
        WriteIndex& index = index_of(rank, base::narrow<int>(b, "buffers"));
        if (const auto both = index.build(plan_.buffers[b])) {
          const auto& [later, earlier] = *both;
          refuse(Fault::coverage, later.task,
                 fmt::format("writes {}, which {} writes too", text(later.region), name(earlier.task)));
        }
        for (const Write& write : index.writes())
          check_caller_memory(write.task, write.region, graph_.entered_at_end(write.task), "writes");
      }
  }

  // The caller may touch its memory until its rank enters the epoch and again when its rank has left it.
  void check_caller_memory(TaskId id, const Region& region, RankMask entered, const char* verb) {
    if (buffer(region).role == BufferRole::workspace || region.rank == graph_.nodes()[id].rank) return;
    if ((entered & bit(region.rank)) == 0)
      refuse(Fault::race, id,
             fmt::format("{} {} before that rank is known to have entered the epoch", verb, text(region)));
    if ((graph_.holds(id) & bit(region.rank)) == 0)
      refuse(Fault::race, id,
             fmt::format("{} {}, and that rank may leave the epoch before it is done", verb, text(region)));
  }

  template <typename F>
  void for_each_written(TaskId id, F&& f) const {
    const auto& work = graph_.nodes()[id].task->work;
    if (const auto* tile = std::get_if<Tile>(&work))
      for (const Store& store : tile->stores) f(store.to);
    else if (const auto* transfer = std::get_if<Transfer>(&work)) {
      if (!transfer->to.empty()) f(transfer->to);
    } else if (const auto* reduction = std::get_if<Reduction>(&work))
      for (const Region& to : reduction->to) f(to);
    else if (const auto* product = std::get_if<Product>(&work))
      for_each_of(*product, [&](const Region&, const Region& to) { f(to); });
    else {
      const auto& c = std::get<Collective>(work);
      // Parts from different ranks have different values, and so are writes of their own.
      const bool by_rank = c.kind == CollectiveKind::all_gather || c.kind == CollectiveKind::all_to_all;
      const std::int64_t h = by_rank ? c.to.rows / std::ssize(ranks_of(c, plan_)) : c.to.rows;
      for (std::int64_t row = 0; row < c.to.rows; row += h)
        f(Region{c.to.rank, c.to.buffer, c.to.row + row, 0, h, c.to.cols});
    }
  }

  // Calls f(a, to) for the products of a batch.
  template <typename F>
  static void for_each_of(const Product& product, F&& f) {
    Region a = product.a, to = product.to;
    for (int i = 0; i < product.batch; ++i) {
      f(a, to);
      a.row += product.a_step;
      to.row += product.to_step;
    }
  }

  void store(const Region& region, const Value& value) {
    index_of(region.rank, region.buffer).for_each_overlap(region, [&](Write& write) { write.value = value; });
  }

  // What a collective has left in `region`, one of its writes.
  void store(const Region& region, std::vector<Piece> pieces) {
    if (pieces.size() == 1 && pieces.front().region == region) return store(region, pieces.front().value);
    std::sort(pieces.begin(), pieces.end(), [](const Piece& x, const Piece& y) {
      return std::pair(x.region.row, x.region.col) < std::pair(y.region.row, y.region.col);
    });
    std::int64_t tallest = 0;
    for (const Piece& piece : pieces) tallest = std::max(tallest, piece.region.rows);
    index_of(region.rank, region.buffer).for_each_overlap(region, [&](Write& write) {
      write.pieces = pieces;
      write.tallest = tallest;
    });
  }

  // ------------------------------------------------------------------------------------------------------- reads

  enum class Along : std::uint8_t { columns, rows };  // which side of an operand runs along K

  // What `region` holds when `id` reads it at its load point (an operand) or at its end.
  Value read(TaskId id, const Region& region, bool operand, Along k = Along::columns) {
    const Moment end;
    return read_at(id, region, operand, [&](const Region& w) {
      if (!operand) return end;
      return Moment{false, std::max<std::int64_t>(0, k == Along::columns ? w.col - region.col : w.row - region.row)};
    });
  }

  // The same where `moment_of` says when what a write to `w` has left is read.
  template <typename MomentOf>
  Value read_at(TaskId id, const Region& region, bool operand, MomentOf&& moment_of) {
    const Buffer& b = buffer(region);
    check_caller_memory(id, region, operand ? graph_.entered_at_load(id) : graph_.entered_at_end(id), "reads");
    if (b.role == BufferRole::input) return input_value(plan_.problem, region.rank, region.buffer);
    std::optional<Value> value;
    std::int64_t area = 0;
    index_of(region.rank, region.buffer).for_each_overlap(region, [&](const Write& write) {
      check_order(id, region, write, moment_of(write.region));
      for_each_piece(write, region, [&](const Region& piece, const Value& held) {
        if (value && !(*value == held))
          refuse(Fault::coverage, id, fmt::format("reads {}, whose parts do not belong together", text(region)));
        value = held;
        area += piece.rows * piece.cols;
      });
    });
    check_all_written(id, region, area);
    return *value;
  }

  void check_order(TaskId id, const Region& region, const Write& write, Moment moment) {
    if (std::holds_alternative<Collective>(graph_.nodes()[id].task->work)) moment = {false, 0};
    if (write.task == id || !graph_.ordered(write.task, id, moment))
      refuse(Fault::race, id, fmt::format("may read {} before {} has written it", text(region), name(write.task)));
    const int copies = buffer(region).copies;
    if (!reuse_ && !graph_.ordered_across(id, write.task, copies))
      reuse_ = graph_.finding(Fault::reuse, id,
                              fmt::format("may still read {} of epoch e when {} writes it in epoch e+{}", text(region),
                                          name(write.task), copies));
  }

  void check_all_written(TaskId id, const Region& region, std::int64_t area) {
    if (area != region.rows * region.cols)
      refuse(Fault::coverage, id,
             fmt::format("reads {}, of which {} elements are never written", text(region),
                         region.rows * region.cols - area));
  }

  // What a collective takes: it carries along whatever its rows hold, one value or a piece each, and, behind a row's
  // last one, elements that nobody has written.
  std::vector<Piece> pieces_of(TaskId id, const Region& region) {
    check_caller_memory(id, region, graph_.entered_at_end(id), "reads");
    if (buffer(region).role == BufferRole::input)
      return {{region, input_value(plan_.problem, region.rank, region.buffer)}};
    std::vector<Piece> pieces;
    std::int64_t area = 0;
    bool same = true;
    index_of(region.rank, region.buffer).for_each_overlap(region, [&](const Write& write) {
      check_order(id, region, write, {});
      for_each_piece(write, region, [&](const Region& piece, const Value& value) {
        area += piece.rows * piece.cols;
        same = same && (pieces.empty() || pieces.front().value == value);
        pieces.push_back({piece, value});
      });
    });
    if (area == region.rows * region.cols && same) return {{region, pieces.front().value}};
    if (count_rows(pieces) != region.rows) check_all_written(id, region, area);
    return pieces;
  }

  // Rows in which some piece lies.
  static std::int64_t count_rows(const std::vector<Piece>& pieces) {
    std::vector<std::pair<std::int64_t, std::int64_t>> stretches;
    for (const Piece& piece : pieces) stretches.emplace_back(piece.region.row, piece.region.row + piece.region.rows);
    std::sort(stretches.begin(), stretches.end());
    std::int64_t rows = 0, end = 0;
    for (const auto& [first, last] : stretches) {
      rows += std::max<std::int64_t>(0, last - std::max(first, end));
      end = std::max(end, last);
    }
    return rows;
  }

  // A value placed so that its part at `from` comes to lie at `to`.
  static Value moved(Value value, const Region& from, const Region& to) {
    value.row += from.row - to.row;
    value.col += from.col - to.col;
    return value;
  }

  // A contribution to a sum whose element (0, 0) is element (row, col) of the product.
  struct Term {
    std::int64_t row = 0, col = 0;
    int sum = -1, bias = -1;
  };

  void add_bias(TaskId id, Term& total, const Region& region) {
    const Value value = read(id, region, false);
    if (region.col + value.col != total.col)
      refuse(Fault::coverage, id,
             fmt::format("adds {}, which belongs at col {}, to a sum at col {}", text(region), region.col + value.col,
                         total.col));
    if (total.bias >= 0) refuse(Fault::coverage, id, fmt::format("adds {} to a sum that has a bias", text(region)));
    total.bias = region.rank;
  }

  void add_term(TaskId id, std::optional<Term>& total, const Term& term, const std::string& what) {
    if (!total) {
      total = term;
      return;
    }
    if (total->row != term.row || total->col != term.col)
      refuse(Fault::coverage, id,
             fmt::format("adds {}, which belongs at row {} col {}, to a sum at row {} col {}", what, term.row, term.col,
                         total->row, total->col));
    const auto sum = sums_.add(total->sum, term.sum);
    if (!sum)
      refuse(Fault::coverage, id,
             fmt::format("adds {}: the sum over k {} would be counted twice", what, sums_.text(term.sum)));
    if (sums_.stretches(*sum).size() > Sums::most_stretches)
      refuse(Fault::coverage, id,
             fmt::format("adds {}: a sum over more than {} separate stretches of K is not followed", what,
                         Sums::most_stretches));
    total->sum = *sum;
    if (total->bias >= 0 && term.bias >= 0)
      refuse(Fault::coverage, id, fmt::format("adds {}: the bias would be counted twice", what));
    total->bias = std::max(total->bias, term.bias);
  }

  static Value sum_at(const Term& total, const Region& to) {
    return {Value::What::product, total.row - to.row, total.col - to.col, total.sum, 0, 0, total.bias};
  }
  void store_sum(const Term& total, const Region& to) { store(to, sum_at(total, to)); }

  Term term_at(TaskId id, const Region& region) {
    const Value value = read(id, region, false);
    if (value.what != Value::What::product)
      refuse(Fault::coverage, id, fmt::format("adds {}, which holds no product", text(region)));
    return {value.row + region.row, value.col + region.col, value.sum, value.bias};
  }

  // ------------------------------------------------------------------------------------------------------- tasks

  void evaluate(TaskId id) {
    std::visit([&](const auto& work) { evaluate(id, work); }, graph_.nodes()[id].task->work);
  }

  // The product of two operands, with its scales.
  Term multiply(TaskId id, const Region& a_region, const Region& b_region, const Region& a_scale) {
    const Value a = read(id, a_region, true, Along::columns), b = read(id, b_region, true, Along::rows);
    if (a.what != Value::What::a || b.what != Value::What::b)
      refuse(Fault::coverage, id, "multiplies something else than a part of A by a part of B");
    const std::int64_t k = a_region.col + a.col;
    if (k != b_region.row + b.row)
      refuse(Fault::coverage, id,
             fmt::format("multiplies columns of A from k = {} with rows of B from k = {}", k, b_region.row + b.row));
    if (plan_.problem.scales != Scales::none) check_scale(id, a_region, a_scale, a_region.row + a.row, k);
    return {a_region.row + a.row, b_region.col + b.col, sums_.of({k, k + a_region.cols})};
  }

  void evaluate(TaskId id, const Product& product) {
    for_each_of(product, [&](const Region& a, const Region& to) {
      Term total = multiply(id, a, product.b, product.a_scale);
      if (!product.bias.empty()) add_bias(id, total, product.bias);
      store_sum(total, to);
    });
  }

  void evaluate(TaskId id, const Tile& tile) {
    std::optional<Term> total = multiply(id, tile.a, tile.b, tile.a_scale);
    for (const Region& slot : tile.adds) {
      if (is_bias(plan_.problem, slot)) {
        add_bias(id, *total, slot);
        continue;
      }
      if (buffer(slot).layout == Layout::row_major) {
        add_term(id, total, term_at(id, slot), text(slot));
        continue;
      }
      const Value value = read(id, slot, false);
      if (value.tile_rows != tile.a.rows || value.tile_cols != tile.b.cols)
        refuse(Fault::coverage, id,
               fmt::format("adds {}, which holds a tile of {} x {}", text(slot), value.tile_rows, value.tile_cols));
      add_term(id, total, {value.row, value.col, value.sum, value.bias}, text(slot));
    }
    for (const Store& s : tile.stores) {
      if (buffer(s.to).layout == Layout::row_major)
        store(s.to, {Value::What::product, total->row + s.row - s.to.row, total->col + s.col - s.to.col, total->sum, 0,
                     0, total->bias});
      else
        store(s.to, {Value::What::product, total->row, total->col, total->sum, tile.a.rows, tile.b.cols, total->bias});
    }
  }

  // The scales belong to the rows of A that are multiplied, from `row` on, and to their stretch of K, from `k` on.
  void check_scale(TaskId id, const Region& a, const Region& a_scale, std::int64_t row, std::int64_t k) {
    const Value scale = read_at(id, a_scale, true, [&](const Region&) { return Moment{false, a.cols}; });
    if (scale.what != Value::What::a_scale)
      refuse(Fault::coverage, id, fmt::format("scales by {}, which holds no scales of A", text(a_scale)));
    const RankShapes shapes = shapes_of(plan_.problem);
    const bool one = plan_.problem.scales == Scales::tensor;
    const std::int64_t first = a_scale.row + scale.row, k_first = a_scale.col + scale.col;
    const std::int64_t end = first + (one ? shapes.a.rows : a.rows);
    if (first > row || row + a.rows > end || (!one && first != row))
      refuse(Fault::coverage, id,
             fmt::format("scales rows {}+{} of A by {}, which belongs to rows {}+{}", row, a.rows, text(a_scale), first,
                         end - first));
    if (k < k_first || k + a.cols > k_first + shapes.depth)
      refuse(Fault::coverage, id,
             fmt::format("scales products from k = {} by {}, which belongs to k {}..{}", k, text(a_scale), k_first,
                         k_first + shapes.depth - 1));
  }

  void evaluate(TaskId id, const Transfer& transfer) {
    if (transfer.from.empty()) return;
    Value value = read(id, transfer.from, false);
    const bool slots = buffer(transfer.from).layout == Layout::fragment;
    store(transfer.to, slots ? value : moved(value, transfer.from, transfer.to));
  }

  void evaluate(TaskId id, const Reduction& reduction) {
    std::optional<Term> total;
    for (const Region& from : reduction.from) {
      if (is_bias(plan_.problem, from))
        add_bias(id, *total, from);
      else
        add_term(id, total, term_at(id, from), text(from));
    }
    for (const Region& to : reduction.to) store_sum(*total, to);
  }

  // All parts at once, when the last one comes up.
  void evaluate(TaskId id, const Collective&) {
    const auto& parts = graph_.collectives()[static_cast<std::size_t>(graph_.nodes()[id].collective)];
    if (id != parts.back()) return;
    const auto part = [&](TaskId task) -> const Collective& {
      return std::get<Collective>(graph_.nodes()[task].task->work);
    };
    const std::int64_t ranks = std::ssize(parts);
    const CollectiveKind kind = part(id).kind;
    // What rank r takes of rank s.
    const auto taken = [&](std::int64_t s, std::int64_t r) {
      const Region& from = part(parts[static_cast<std::size_t>(s)]).from;
      if (kind == CollectiveKind::all_gather || kind == CollectiveKind::all_reduce) return from;
      return Region{from.rank, from.buffer, from.row + r * (from.rows / ranks), from.col, from.rows / ranks, from.cols};
    };
    std::vector<Piece> sums;  // as they lie in the first rank's part
    for (std::int64_t r = 0; r < ranks; ++r) {
      const Region& to = part(parts[static_cast<std::size_t>(r)]).to;
      if (kind == CollectiveKind::all_gather || kind == CollectiveKind::all_to_all) {
        for (std::int64_t s = 0; s < ranks; ++s) {
          const Region from = taken(s, r);
          const Region place{to.rank, to.buffer, to.row + s * from.rows, to.col, from.rows, from.cols};
          std::vector<Piece> pieces = pieces_of(parts[static_cast<std::size_t>(s)], from);
          for (Piece& piece : pieces) {
            const Region at = shifted(piece.region, from, place);
            piece = {at, moved(piece.value, piece.region, at)};
          }
          store(place, std::move(pieces));
        }
        continue;
      }
      if (r == 0 || kind == CollectiveKind::reduce_scatter) {
        sums = pieces_of(parts.front(), taken(0, r));
        for (Piece& piece : sums) {
          std::optional<Term> total;
          for (std::int64_t s = 0; s < ranks; ++s) {
            const TaskId source = parts[static_cast<std::size_t>(s)];
            const Region from = shifted(piece.region, taken(0, r), taken(s, r));
            add_term(source, total, term_at(source, from), text(from));
          }
          piece.value = sum_at(*total, piece.region);
        }
        // What only others have written would be lost.
        for (std::int64_t s = 1; s < ranks; ++s) check_same_area(parts[static_cast<std::size_t>(s)], taken(s, r), sums);
      }
      std::vector<Piece> pieces = sums;
      for (Piece& piece : pieces) {
        const Region at = shifted(piece.region, taken(0, r), to);
        piece = {at, moved(piece.value, piece.region, at)};
      }
      store(to, std::move(pieces));
    }
  }

  // The rectangle that lies in `to` as `piece` does in `from`.
  static Region shifted(const Region& piece, const Region& from, const Region& to) {
    return {to.rank, to.buffer, piece.row - from.row + to.row, piece.col - from.col + to.col, piece.rows, piece.cols};
  }

  void check_same_area(TaskId id, const Region& region, const std::vector<Piece>& sums) {
    const auto area = [](const std::vector<Piece>& pieces) {
      std::int64_t sum = 0;
      for (const Piece& piece : pieces) sum += piece.region.rows * piece.region.cols;
      return sum;
    };
    if (const std::int64_t own = area(pieces_of(id, region)), first = area(sums); own != first)
      refuse(
          Fault::coverage, id,
          fmt::format("adds {}, of which {} elements are written, to sums of {} elements", text(region), own, first));
  }

  // ------------------------------------------------------------------------------------------------------ output

  void check_outputs(int rank) {
    const Problem& problem = plan_.problem;
    for (int product = 0; product < count_products(problem); ++product) {
      for (const Write& write : index_of(rank, buffer_out_of(problem, product)).writes())
        for_each_piece(write, [&](const Region& r, const Value& v) { check_product(rank, product, write.task, r, v); });
      check_whole(rank, buffer_out_of(problem, product));
    }
    if (!problem.gathered_a) return;
    for (const Write& write : index_of(rank, buffer_gathered(problem)).writes())
      for_each_piece(write, [&](const Region& r, const Value& v) {
        if (v.what != Value::What::a || v.row != 0 || v.col != 0)
          refuse(Fault::coverage, write.task, fmt::format("writes {} with what belongs elsewhere", text(r)));
      });
    check_whole(rank, buffer_gathered(problem));
  }

  void check_product(int rank, int product, TaskId task, const Region& r, const Value& v) {
    for (std::int64_t row = r.row; row < r.row + r.rows;) {
      const Wanted wanted = wanted_output(plan_.problem, rank, row, product);
      if (v.what != Value::What::product || v.row != wanted.value.row || v.col != wanted.value.col)
        refuse(Fault::coverage, task, fmt::format("writes {} with what belongs elsewhere", text(r)));
      const auto& k = sums_.stretches(v.sum);
      if (k.size() != 1 || !(k.front() == wanted.k))
        refuse(Fault::coverage, task,
               fmt::format("writes {} with the sum over k {} instead of {}..{}", text(r), sums_.text(v.sum),
                           wanted.k.begin, wanted.k.end - 1));
      if (!wanted.wants_bias(plan_.problem, v.bias))
        refuse(Fault::coverage, task,
               fmt::format("writes {} {}", text(r), v.bias < 0 ? "without the bias" : "with another rank's bias"));
      row = wanted.rows_end;
    }
  }

  // Writes do not overlap.
  void check_whole(int rank, int buffer) {
    std::int64_t area = 0;
    for (const Write& write : index_of(rank, buffer).writes())
      for_each_piece(write, [&](const Region& r, const Value&) { area += r.rows * r.cols; });
    const Buffer& out = plan_.buffers[static_cast<std::size_t>(buffer)];
    if (area != out.rows * out.cols)
      throw Refused{{Fault::coverage, rank, -1, -1,
                     fmt::format("rank {}: {} elements of the output{} are never written", rank,
                                 out.rows * out.cols - area, buffer == buffer_out ? "" : " " + out.name)}};
  }

  const Plan& plan_;
  Graph& graph_;
  Sums sums_;
  std::vector<WriteIndex> index_;
  std::optional<Finding> reuse_;
};

}  // namespace

std::optional<Finding> find_dataflow_fault(const Plan& plan, Graph& graph) {
  try {
    Dataflow(plan, graph).run();
  } catch (const Refused& refused) {
    return refused.finding;
  }
  return std::nullopt;
}

}  // namespace imbrex::plan
