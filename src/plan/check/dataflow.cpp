#include "plan/check/dataflow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "plan/builder.hpp"
#include "plan/check/contents.hpp"
#include "plan/problem.hpp"
#include "problem/embedding.hpp"
#include "problem/products.hpp"

namespace imbrex::plan {
namespace {

class Dataflow {
 public:
  Dataflow(const Plan& plan, Graph& graph)
      : plan_(plan), graph_(graph), names_(plan.problem), memory_(plan, graph, sums_) {}

  void run() {
    for (TaskId id : graph_.order()) evaluate(id);
    for (int rank = 0; rank < plan_.problem.ranks; ++rank) check_outputs(rank);
    // Last, because a missing wait or tile also loosens the order between epochs, and is what should be named.
    if (memory_.reuse()) throw RefusedFlow{*memory_.reuse()};
  }

 private:
  [[noreturn]] void refuse(Fault fault, TaskId task, const std::string& text) const {
    memory_.refuse(fault, task, text);
  }
  std::string text(const Region& r) const { return memory_.text(r); }
  const Buffer& buffer(const Region& region) const { return memory_.buffer(region); }

  enum class Along : std::uint8_t { columns, rows };  // which side of an operand runs along K

  // What `region` holds when `id` reads it at its load point (an operand) or at its end.
  Value read(TaskId id, const Region& region, bool operand, Along k = Along::columns) {
    const Moment end;
    return memory_.read_at(id, region, operand, [&](const Region& w) {
      if (!operand) return end;
      return Moment{false, std::max<std::int64_t>(0, k == Along::columns ? w.col - region.col : w.row - region.row)};
    });
  }

  // A value placed so that its part at `from` comes to lie at `to`.
  static Value moved(Value value, const Region& from, const Region& to) {
    value.row += from.row - to.row;
    value.col += from.col - to.col;
    return value;
  }

  // A contribution to a sum whose element (0, 0) is element (row, col) of the space.
  struct Term {
    int space = 0;
    std::int64_t row = 0, col = 0;
    int sum = -1;
  };

  void add_bias(TaskId id, Term& total, const Region& region) {
    const Value value = read(id, region, false);
    if (region.col + value.col != total.col)
      refuse(Fault::coverage, id,
             fmt::format("adds {}, which belongs at col {}, to a sum at col {}", text(region), region.col + value.col,
                         total.col));
    const auto sum = sums_.add(total.sum, value.sum);
    if (!sum) refuse(Fault::coverage, id, fmt::format("adds {} to a sum that has a bias", text(region)));
    total.sum = *sum;
  }

  void add_term(TaskId id, std::optional<Term>& total, const Term& term, const std::string& what) {
    if (!total) {
      total = term;
      return;
    }
    if (total->space != term.space || total->row != term.row || total->col != term.col)
      refuse(Fault::coverage, id,
             fmt::format("adds {}, which belongs at row {} col {}, to a sum at row {} col {}", what, term.row, term.col,
                         total->row, total->col));
    const auto sum = sums_.add(total->sum, term.sum);
    if (!sum)
      refuse(Fault::coverage, id,
             fmt::format("adds {}: {} would be counted twice", what,
                         names_.twice(sums_, term.sum, sums_.first_common(total->sum, term.sum))));
    if (sums_.stretches(*sum).size() > Sums::most_stretches)
      refuse(Fault::coverage, id,
             fmt::format("adds {}: a sum over more than {} separate stretches of {} is not followed", what,
                         Sums::most_stretches, names_.axis));
    total->sum = *sum;
  }

  static Value sum_at(const Term& total, const Region& to) {
    return {total.space, total.row - to.row, total.col - to.col, total.sum};
  }
  void store_sum(const Term& total, const Region& to) { memory_.store(to, sum_at(total, to)); }

  Term term_at(TaskId id, const Region& region) {
    const Value value = read(id, region, false);
    if (value.sum < 0) refuse(Fault::coverage, id, fmt::format("adds {}, which holds no sum", text(region)));
    return {value.space, value.row + region.row, value.col + region.col, value.sum};
  }

  // ------------------------------------------------------------------------------------------------------- tasks

  void evaluate(TaskId id) {
    std::visit([&](const auto& work) { evaluate(id, work); }, graph_.nodes()[id].task->work);
  }

  // The product of two operands, with its scales.
  Term multiply(TaskId id, const Region& a_region, const Region& b_region, const Region& a_scale) {
    const Value a = read(id, a_region, true, Along::columns), b = read(id, b_region, true, Along::rows);
    if (a.space != problem::space_a || b.space != problem::space_b)
      refuse(Fault::coverage, id, "multiplies something else than a part of A by a part of B");
    const std::int64_t k = a_region.col + a.col;
    if (k != b_region.row + b.row)
      refuse(Fault::coverage, id,
             fmt::format("multiplies columns of A from k = {} with rows of B from k = {}", k, b_region.row + b.row));
    if (plan_.problem.scales != Scales::none) check_scale(id, a_region, a_scale, a_region.row + a.row, k);
    return {problem::space_product, a_region.row + a.row, b_region.col + b.col, sums_.of({k, k + a_region.cols})};
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
      add_term(id, total, {value.space, value.row, value.col, value.sum}, text(slot));
    }
    for (const Store& s : tile.stores) {
      if (buffer(s.to).layout == Layout::row_major)
        memory_.store(s.to, {total->space, total->row + s.row - s.to.row, total->col + s.col - s.to.col, total->sum});
      else
        memory_.store(s.to, {total->space, total->row, total->col, total->sum, tile.a.rows, tile.b.cols});
    }
  }

  // The scales belong to the rows of A that are multiplied, from `row` on, and to their stretch of K, from `k` on.
  void check_scale(TaskId id, const Region& a, const Region& a_scale, std::int64_t row, std::int64_t k) {
    const Value scale = memory_.read_at(id, a_scale, true, [&](const Region&) { return Moment{false, a.cols}; });
    if (scale.space != problem::space_a_scale)
      refuse(Fault::coverage, id, fmt::format("scales by {}, which holds no scales of A", text(a_scale)));
    const RankShapes shapes = shapes_of(plan_.problem);
    const bool one = plan_.problem.scales == Scales::tensor;
    const std::int64_t first = a_scale.row + scale.row, k_first = a_scale.col + scale.col;
    const std::int64_t end = first + (one ? shapes.a.rows : a.rows);
    if (first > row || row + a.rows > end)
      refuse(Fault::coverage, id,
             fmt::format("scales rows {}+{} of A by {}, which belongs to rows {}+{}", row, a.rows, text(a_scale), first,
                         end - first));
    if (k < k_first || k + a.cols > k_first + shapes.depth)
      refuse(Fault::coverage, id,
             fmt::format("scales products from k = {} by {}, which belongs to k {}..{}", k, text(a_scale), k_first,
                         k_first + shapes.depth - 1));
  }

  void evaluate(TaskId id, const Block& block) {
    std::vector<ReadPart> reads;
    for (const Region& region : block.reads) {
      const Value v = memory_.read_at(id, region, true, [](const Region&) { return Moment{false, 0}; });
      reads.push_back({v.space, v.row + region.row, v.col + region.col,
                       v.sum < 0 ? std::vector<Stretch>{} : sums_.stretches(v.sum)});
    }
    std::vector<Piece> parts;  // as they lie in the block
    if (shards_.empty()) shards_ = problem::shards_of_ranks(plan_.problem);
    const BlockPlace place{plan_, block, graph_.nodes()[id].rank, &shards_};
    const std::string wrong = descriptor_of(block.kind).value(place, reads, [&](const BlockPart& part) {
      parts.push_back({{0, 0, part.row, part.col, part.rows, part.cols}, value_of(part.held, sums_)});
    });
    if (!wrong.empty()) refuse(Fault::coverage, id, wrong);
    for (const Store& s : block.stores) {
      const Region from{0, 0, s.row, s.col, s.to.rows, s.to.cols};
      std::vector<Piece> pieces;
      for (const Piece& part : parts) {
        if (!overlap(part.region, from)) continue;
        const Region both = intersection(part.region, from), at = shifted(both, from, s.to);
        Value v = part.value;  // counted from the part's own corner
        v.row += both.row - part.region.row - at.row;
        v.col += both.col - part.region.col - at.col;
        pieces.push_back({at, v});
      }
      memory_.store(s.to, std::move(pieces));
    }
  }

  void evaluate(TaskId id, const Transfer& transfer) {
    if (transfer.from.empty()) return;
    Value value = read(id, transfer.from, false);
    const bool slots = buffer(transfer.from).layout == Layout::fragment;
    memory_.store(transfer.to, slots ? value : moved(value, transfer.from, transfer.to));
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
    if (kind == CollectiveKind::send_receive) {
      for (const TaskId target : parts)
        carry(graph_.nodes()[target].source, part(graph_.nodes()[target].source).from, part(target).to);
      return;
    }
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
          carry(parts[static_cast<std::size_t>(s)], from,
                {to.rank, to.buffer, to.row + s * from.rows, to.col, from.rows, from.cols});
        }
        continue;
      }
      if (r == 0 || kind == CollectiveKind::reduce_scatter) {
        sums = memory_.pieces_of(parts.front(), taken(0, r));
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
      memory_.store(to, std::move(pieces));
    }
  }

  // What `source`, a part of a collective, finds in `from` comes to lie in `to`.
  void carry(TaskId source, const Region& from, const Region& to) {
    std::vector<Piece> pieces = memory_.pieces_of(source, from);
    for (Piece& piece : pieces) {
      const Region at = shifted(piece.region, from, to);
      piece = {at, moved(piece.value, piece.region, at)};
    }
    memory_.store(to, std::move(pieces));
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
    if (const std::int64_t own = area(memory_.pieces_of(id, region)), first = area(sums); own != first)
      refuse(
          Fault::coverage, id,
          fmt::format("adds {}, of which {} elements are written, to sums of {} elements", text(region), own, first));
  }

  // ------------------------------------------------------------------------------------------------------ output

  void check_outputs(int rank) {
    const problem::OperatorDescriptor& op = problem::descriptor_of(plan_.problem.op);
    for (int b = 0; b < std::ssize(memory_.operands()); ++b) {
      const Buffer& out = memory_.operands()[static_cast<std::size_t>(b)];
      if (out.role != BufferRole::output) continue;
      op.wanted(plan_.problem, rank, out.name, [&](const problem::Wanted& w) {
        const Region where{rank, b, w.row, w.col, w.rows, w.cols};
        const Value wanted = value_of(w.held, sums_);
        memory_.index_of(rank, b).for_each_overlap(where, [&](const Write& write) {
          for_each_piece(write, where, [&](const Region& r, const Value& v) { check_output(write, r, v, wanted); });
        });
      });
      check_whole(rank, b);
    }
  }

  void check_output(const Write& write, const Region& r, const Value& v, const Value& wanted) {
    if (v.space != wanted.space || v.row != wanted.row || v.col != wanted.col)
      refuse(Fault::coverage, write.task, fmt::format("writes {} with what belongs elsewhere", text(r)));
    if (v.sum != wanted.sum)
      refuse(Fault::coverage, write.task,
             fmt::format("writes {} {}", text(r), names_.difference(sums_, v.sum, wanted.sum)));
  }

  // Writes do not overlap.
  void check_whole(int rank, int buffer) {
    std::int64_t area = 0;
    for (const Write& write : memory_.index_of(rank, buffer).writes())
      for_each_piece(write, [&](const Region& r, const Value&) { area += r.rows * r.cols; });
    const Buffer& out = memory_.operands()[static_cast<std::size_t>(buffer)];
    if (area != out.rows * out.cols)
      throw RefusedFlow{{Fault::coverage, rank, -1, -1,
                         fmt::format("rank {}: {} elements of the output{} are never written", rank,
                                     out.rows * out.cols - area, out.name == "out" ? "" : " " + out.name)}};
  }

  const Plan& plan_;
  std::vector<problem::OwnShards> shards_;  // of each rank, once there is a block
  Graph& graph_;
  TermNames names_;
  Sums sums_;
  Contents memory_;
};

}  // namespace

std::optional<Finding> find_dataflow_fault(const Plan& plan, Graph& graph) {
  try {
    Dataflow(plan, graph).run();
  } catch (const RefusedFlow& refused) {
    return refused.finding;
  }
  return std::nullopt;
}

}  // namespace imbrex::plan
