// Plans to JSON, one task a line. docs/dev/plan-format.md describes the format.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "imbrex/plan.hpp"
#include "plan/json/names.hpp"
#include "plan/json/node.hpp"
#include "plan/wave_groups.hpp"

namespace imbrex {
namespace {

class Writer {
 public:
  std::string take() { return std::move(text_); }

  void write(const Plan& plan) {
    put("{{\"imbrex_plan\": {},\n\"problem\": {},\n", plan::plan_format_version, plan::to_json(plan.problem));
    put("\"strategy\": \"{}\",\n\"knobs\": ", name_of(plan.strategy));
    text_ += plan::to_json(plan.knobs);
    put(",\n\"signal_copies\": {},\n\"buffers\": [", plan.signal_copies);
    list(plan.buffers, ",", [&](const Buffer& b) {
      put("\n {{\"name\": {}, \"role\": \"{}\", \"layout\": \"{}\", \"type\": \"{}\", \"rows\": {}, \"cols\": {}, "
          "\"copies\": {}}}",
          quoted(b.name), plan::name_of(b.role), plan::name_of(b.layout), name_of(b.type), b.rows, b.cols, b.copies);
    });
    put("],\n\"ranks\": [");
    list(plan.ranks, ",", [&](const RankPlan& rank) {
      put("\n {{\"signals\": {}, \"queues\": [", rank.signals);
      list(rank.queues, ",", [&](const Queue& queue) {
        put("\n  {{\"engine\": \"{}\", \"workers\": {}, ", name_of(queue.engine), queue.workers);
        if (queue.tile != Extent{}) put("\"tile\": [{}, {}], ", queue.tile.rows, queue.tile.cols);
        if (queue.cluster != ClusterMode::any) put("\"cluster\": \"{}\", ", name_of(queue.cluster));
        if (queue.kept_free != 0) put("\"kept_free\": {}, ", queue.kept_free);
        put("\"tasks\": [");
        list(queue.tasks, ",", [&](const Task& task) { write(task); });
        put("]}}");
      });
      put("]}}");
    });
    put("]}}\n");
  }

 private:
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  template <typename T, typename F>
  void list(const std::vector<T>& items, std::string_view separator, F&& f) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text_ += separator;
      f(items[i]);
    }
  }

  static std::string quoted(const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  }

  void write(const Region& r) { put("[{}, {}, {}, {}, {}, {}]", r.rank, r.buffer, r.row, r.col, r.rows, r.cols); }
  void write(const std::vector<Region>& regions) {
    put("[");
    list(regions, ", ", [&](const Region& r) { write(r); });
    put("]");
  }

  void write(const std::vector<Store>& stores) {
    put("\"stores\": [");
    list(stores, ", ", [&](const Store& s) {
      const Region& r = s.to;
      put("[{}, {}, {}, {}, {}, {}, {}, {}]", r.rank, r.buffer, r.row, r.col, r.rows, r.cols, s.row, s.col);
    });
    put("]");
  }

  void write(const Tile& tile) {
    put("\"tile\": {{\"a\": ");
    write(tile.a);
    put(", \"b\": ");
    write(tile.b);
    if (!tile.a_scale.empty()) {
      put(", \"a_scale\": ");
      write(tile.a_scale);
    }
    put(", \"adds\": ");
    write(tile.adds);
    put(", \"own\": {}, ", tile.own);
    write(tile.stores);
    put("}}");
  }
  void write(const Transfer& transfer) {
    put("\"transfer\": {{\"from\": ");
    write(transfer.from);
    put(", \"to\": ");
    write(transfer.to);
    put("}}");
  }
  void write(const Reduction& reduction) {
    put("\"reduction\": {{\"from\": ");
    write(reduction.from);
    put(", \"to\": ");
    write(reduction.to);
    put("}}");
  }
  void write(const Collective& c) {
    put("\"collective\": {{\"kind\": \"{}\", \"group\": {}, \"from\": ", name_of(c.kind), c.group);
    write(c.from);
    put(", \"to\": ");
    write(c.to);
    if (!c.ranks.empty()) {
      put(", \"ranks\": [");
      list(c.ranks, ", ", [&](int rank) { put("{}", rank); });
      put("]");
    }
    if (c.backend != Backend::nccl) put(", \"backend\": \"{}\"", name_of(c.backend));
    if (c.codec) put(", \"codec\": \"{}\"", name_of(*c.codec));
    if (c.send_to != -1) put(", \"send_to\": {}", c.send_to);
    if (c.receive_from != -1) put(", \"receive_from\": {}", c.receive_from);
    put("}}");
  }
  void write(const Product& product) {
    put("\"product\": {{\"a\": ");
    write(product.a);
    put(", \"b\": ");
    write(product.b);
    put(", \"to\": ");
    write(product.to);
    if (product.batch != 1)
      put(", \"batch\": {}, \"a_step\": {}, \"to_step\": {}", product.batch, product.a_step, product.to_step);
    if (!product.bias.empty()) {
      put(", \"bias\": ");
      write(product.bias);
    }
    if (!product.a_scale.empty()) {
      put(", \"a_scale\": ");
      write(product.a_scale);
    }
    if (product.algorithm != LibraryAlgorithm{})
      put(", \"algorithm\": [{}, {}]", product.algorithm.tile, product.algorithm.parts);
    put("}}");
  }

  void write(const Block& block) {
    put("\"block\": {{\"kind\": \"{}\", ", name_of(block.kind));
    if (!block.reads.empty()) {
      put("\"reads\": ");
      write(block.reads);
      put(", ");
    }
    put("\"args\": [{}], ", fmt::join(block.args, ", "));
    write(block.stores);
    if (block.share != 0 || block.shares != 1) put(", \"share\": {}, \"shares\": {}", block.share, block.shares);
    put("}}");
  }

  void write(const Task& task) {
    put("\n   {{");
    std::visit([&](const auto& work) { write(work); }, task.work);
    put(", \"waits\": [");
    list(task.waits, ", ",
         [&](const Wait& w) { put("[{}, {}, \"{}\", {}]", w.signal, w.count, plan::name_of(w.point), w.k_begin); });
    put("], \"posts\": [");
    list(task.posts, ", ", [&](const Post& p) { put("[{}, {}]", p.rank, p.signal); });
    put("]");
    if (task.mate != 0) put(", \"mate\": {}", task.mate);
    put("}}");
  }

  std::string text_;
};

}  // namespace

std::string to_json(const Plan& plan) {
  Writer writer;
  writer.write(plan);
  return writer.take();
}

// Files of other strategies go without them.
static std::string of_groups(const Knobs& k) {
  std::string text;
  if (k.groups.front() != 0) text += fmt::format(", \"groups\": [{}]", plan::text_of(k.groups));
  if (k.packed) text += ", \"packed\": true";
  if (k.kept_free != 0) text += fmt::format(", \"kept_free\": {}", k.kept_free);
  return text;
}

std::string plan::to_json(const Knobs& k) {
  return fmt::format(
      "{{\"tile_m\": {}, \"tile_n\": {}, \"cluster\": {}, \"cluster_k\": {}, \"group\": {}, \"order\": \"{}\", "
      "\"transport\": \"{}\", \"reducer\": \"{}\", \"comm_rows\": {}, \"k_slices\": {}, \"split_k\": {}, "
      "\"chunks\": {}, \"nodes\": {}, \"library_tile\": {}, \"library_parts\": {}, \"own_shift\": {}, \"abreast\": {}, "
      "\"span_shards\": {}, \"one_shot\": {}, "
      "\"partial\": \"{}\"{}{}}}",
      k.tile_m, k.tile_n, k.cluster, k.cluster_k, k.group, name_of(k.order), name_of(k.transport), name_of(k.reducer),
      k.comm_rows, k.k_slices, k.split_k, k.chunks, k.nodes, k.library_tile, k.library_parts, k.own_shift, k.abreast,
      k.span_shards, k.one_shot, name_of(k.partial),
      k.codec ? fmt::format(", \"codec\": \"{}\"", name_of(*k.codec)) : "", of_groups(k));
}

}  // namespace imbrex
