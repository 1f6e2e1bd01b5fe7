// A timeline as one self-contained SVG, for a browser or a document.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "execute/timeline_rows.hpp"
#include "imbrex/timeline.hpp"

namespace imbrex {
namespace {

constexpr double width = 1200, left = 150, right = 24, top = 92;
constexpr double run_title_height = 22;
constexpr double row_height = 16, row_gap = 3, band_height = 44, rank_gap = 16;
constexpr std::size_t most_worker_rows = 8;  // more workers of a rank become one occupancy band
constexpr double least_pixels = 0.35;        // shorter spans are drawn merged with their neighbours

struct Style {
  Span::Kind kind;
  std::string_view fill, label;
};
// Colours that stay apart for colour-blind readers (Okabe and Ito); waits are hatched, never a plain colour.
constexpr std::array<Style, 6> styles{{{Span::Kind::compute, "#4477aa", "compute"},
                                       {Span::Kind::reduction, "#228833", "reduction"},
                                       {Span::Kind::copy, "#ee9944", "copy, link"},
                                       {Span::Kind::collective, "#aa3377", "library collective"},
                                       {Span::Kind::signal, "#bbaa22", "signal"},
                                       {Span::Kind::wait, "url(#wait)", "waits"}}};

const Style& style_of(Span::Kind kind) {
  for (const Style& style : styles)
    if (style.kind == kind) return style;
  return styles.front();
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // XML allows no control characters
    }
  }
  return out;
}

std::string duration(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} µs", seconds * 1e6);
}

class Drawing {
 public:
  Drawing(std::string title, std::string source, std::vector<const Timeline*> runs)
      : title_(std::move(title)), source_(std::move(source)), runs_(std::move(runs)) {
    for (bool& used : used_) used = false;
    for (const Timeline* run : runs_) {
      end_ = std::max(end_, end_of(*run));
      for (const Span& span : run->spans) used_[static_cast<std::size_t>(span.kind)] = true;
    }
  }

  std::string draw() {
    y_ = top;
    for (const Timeline* run : runs_) {
      if (runs_.size() > 1) run_title(*run);
      rows_ = execute::rows_of(*run);
      for (std::size_t i = 0; i < rows_.size();) {
        std::size_t next = i;
        while (next < rows_.size() && rows_[next].rank == rows_[i].rank) ++next;
        rank_band(i, next);
        i = next;
      }
    }
    const double bottom = y_;
    axis(bottom);
    return header(bottom + 34) + body_ + "</svg>\n";
  }

 private:
  static double end_of(const Timeline& run) {
    double end = 0;
    for (const Span& span : run.spans)
      if (std::isfinite(span.end)) end = std::max(end, span.end);
    return end;
  }

  void run_title(const Timeline& run) {
    text(14, y_ + 12, "run", fmt::format("{}: {}", run.title, duration(end_of(run))));
    y_ += run_title_height;
  }

  double x_of(double seconds) const {
    return left + (end_ > 0 ? std::clamp(seconds / end_, 0.0, 1.0) : 0) * (width - left - right);
  }

  void text(double x, double y, std::string_view css, const std::string& content) {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, css, escaped(content));
  }

  void rank_band(std::size_t begin, std::size_t end) {
    const double start = y_;
    text(14, y_ + 12, "rank", fmt::format("rank {}", rows_[begin].rank));
    const std::size_t insert = body_.size();
    for (std::size_t i = begin; i < end;) {
      const std::string stem = execute::stem_of_many(rows_[i].name);
      std::size_t next = i + 1;
      while (!stem.empty() && next < end && execute::stem_of_many(rows_[next].name) == stem) ++next;
      if (next - i > most_worker_rows)
        occupancy(i, next, stem);
      else
        for (std::size_t r = i; r < next; ++r) row(rows_[r]);
      i = next;
    }
    body_.insert(insert, fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" fill=\"#f6f7f9\"/>\n",
                                     left, start - 2, width - left - right, y_ - start + 1));
    y_ += rank_gap;
  }

  void row(const execute::TimelineRow& row) {
    text(left - 8, y_ + row_height - 4, "row", row.name);
    // Neighbours of one kind that are too short to see apart are drawn as one, which keeps big timelines small.
    const double pixel = least_pixels * end_ / (width - left - right);
    for (std::size_t i = 0; i < row.spans.size();) {
      const Span& first = *row.spans[i];
      double end = first.end;
      std::size_t next = i + 1;
      while (next < row.spans.size() && row.spans[next]->kind == first.kind && row.spans[next]->begin - end < pixel &&
             (end - first.begin < 4 * pixel || row.spans[next]->end - row.spans[next]->begin < pixel)) {
        end = std::max(end, row.spans[next]->end);
        ++next;
      }
      std::string title = fmt::format("{} ({})", first.name, duration(end - first.begin));
      if (next > i + 1) title = fmt::format("{} spans from {} ({})", next - i, first.name, duration(end - first.begin));
      bar(first.begin, end, y_, row_height, first.kind, title);
      i = next;
    }
    y_ += row_height + row_gap;
  }

  void bar(double begin, double end, double y, double height, Span::Kind kind, const std::string& title) {
    const double x = x_of(begin), w = std::max(0.3, x_of(end) - x);
    // A light edge separates tiles that follow each other, where they are wide enough to afford it.
    const bool edge = w > 2.5;
    body_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"{}>", x, y, w,
                         height, style_of(kind).fill, edge ? " stroke=\"#fff\" stroke-width=\"0.5\"" : "");
    body_ += fmt::format("<title>{}</title></rect>\n", escaped(title));
  }

  // How many of rows alike do what, over time: stacked columns of one pixel.
  void occupancy(std::size_t begin, std::size_t end, const std::string& stem) {
    const auto columns = static_cast<std::size_t>(width - left - right);
    constexpr std::array<Span::Kind, 6> order{Span::Kind::compute,    Span::Kind::reduction, Span::Kind::copy,
                                              Span::Kind::collective, Span::Kind::signal,    Span::Kind::wait};
    std::array<std::vector<double>, 6> busy;
    for (auto& column : busy) column.assign(columns, 0.0);
    const double per_column = end_ / static_cast<double>(columns);
    for (std::size_t r = begin; r < end; ++r)
      for (const Span* span : rows_[r].spans) {
        if (!(span->end > span->begin) || !(per_column > 0)) continue;
        auto& sums = busy[static_cast<std::size_t>(std::find(order.begin(), order.end(), span->kind) - order.begin())];
        const auto first =
            static_cast<std::size_t>(std::clamp(span->begin / per_column, 0.0, static_cast<double>(columns - 1)));
        const auto last =
            static_cast<std::size_t>(std::clamp(span->end / per_column, 0.0, static_cast<double>(columns - 1)));
        for (std::size_t c = first; c <= last; ++c) {
          const double from = std::max(span->begin, static_cast<double>(c) * per_column);
          const double to = std::min(span->end, static_cast<double>(c + 1) * per_column);
          sums[c] += std::max(0.0, to - from) / per_column;
        }
      }
    const double count = static_cast<double>(end - begin);
    const std::string what = stem == "sm" ? "SMs" : stem == "worker" ? "workers" : stem;
    text(left - 8, y_ + band_height / 2, "row", fmt::format("{} {}", end - begin, what));
    text(left - 8, y_ + band_height / 2 + 12, "note", "height = share busy");
    std::vector<double> base(columns, 0.0);
    for (std::size_t k = 0; k < order.size(); ++k) area(busy[k], base, count, order[k]);
    body_ += fmt::format(
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#ccd\" stroke-width=\"0.7\"/>\n",
        left, y_, columns, band_height);
    y_ += band_height + row_gap;
  }

  // One kind's layer: a stepped outline over what is already stacked.
  void area(const std::vector<double>& sums, std::vector<double>& base, double count, Span::Kind kind) {
    const auto level = [&](double workers) { return y_ + band_height * (1 - std::min(1.0, workers / count)); };
    for (std::size_t c = 0; c < sums.size();) {
      if (sums[c] <= 1e-9) {
        ++c;
        continue;
      }
      std::string upper, lower;
      std::size_t last = c;
      for (; last < sums.size() && sums[last] > 1e-9; ++last) {
        const double x = left + static_cast<double>(last);
        upper += fmt::format("L{:.0f} {:.1f}L{:.0f} {:.1f}", x, level(base[last] + sums[last]), x + 1,
                             level(base[last] + sums[last]));
        lower = fmt::format("L{:.0f} {:.1f}L{:.0f} {:.1f}", x + 1, level(base[last]), x, level(base[last])) + lower;
        base[last] += sums[last];
      }
      upper[0] = 'M';
      body_ += fmt::format("<path d=\"{}{}Z\" fill=\"{}\"/>\n", upper, lower, style_of(kind).fill);
      c = last;
    }
  }

  void axis(double bottom) {
    if (!(end_ > 0)) return;
    double step = std::pow(10.0, std::floor(std::log10(end_ / 6)));
    for (const double factor : {2.0, 5.0, 10.0})
      if (end_ / step > 10) step = std::pow(10.0, std::floor(std::log10(end_ / 6))) * factor;
    const bool micro = end_ < 2e-3, milli = end_ < 2;
    const double unit = micro ? 1e-6 : milli ? 1e-3 : 1;
    for (double t = 0; t <= end_ * (1 + 1e-9); t += step) {
      body_ += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#889\" stroke-opacity=\"0.35\" "
          "stroke-width=\"0.6\"/>\n",
          x_of(t), top - 6, bottom - rank_gap + 4);
      text(x_of(t), bottom - rank_gap + 18, "tick", fmt::format("{:.6g}", t / unit));
    }
    text(left - 8, bottom - rank_gap + 18, "row", micro ? "time, µs" : milli ? "time, ms" : "time, s");
  }

  std::string header(double height) {
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" viewBox=\"0 0 {0} {1:.0f}\" "
        "font-family=\"Helvetica, Arial, sans-serif\">\n"
        "<defs><pattern id=\"wait\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\">"
        "<rect width=\"5\" height=\"5\" fill=\"#fbe9e9\"/><rect width=\"1.6\" height=\"5\" "
        "fill=\"#cc5555\"/></pattern></defs>\n"
        "<style>.title{{font-size:17px;font-weight:bold;fill:#222}}.source{{font-size:12px;fill:#556}}"
        ".run{{font-size:14px;font-weight:bold;fill:#222}}.rank{{font-size:13px;font-weight:bold;fill:#223}}"
        ".row{{font-size:11px;fill:#334;text-anchor:end}}.note{{font-size:9px;fill:#778;text-anchor:end}}"
        ".tick{{font-size:11px;fill:#445;text-anchor:middle}}.legend{{font-size:11px;fill:#334}}</style>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        width, height);
    std::swap(out, body_);
    const std::string drawn = std::move(out);
    text(14, 26, "title", title_.empty() ? "timeline" : title_);
    const std::string total = runs_.size() == 1 ? fmt::format("total {}", duration(end_)) : std::string();
    text(14, 45, "source", fmt::format("{}{}{}", source_, source_.empty() || total.empty() ? "" : ", ", total));
    double x = left;
    for (const Style& style : styles) {
      if (!used_[static_cast<std::size_t>(style.kind)]) continue;
      body_ += fmt::format("<rect x=\"{:.0f}\" y=\"58\" width=\"22\" height=\"12\" fill=\"{}\"/>\n", x, style.fill);
      text(x + 28, 68, "legend", std::string(style.label));
      x += 50 + 6.2 * static_cast<double>(style.label.size());
    }
    std::string head = std::move(body_);
    body_ = drawn;
    return head;
  }

  std::string title_, source_;
  std::vector<const Timeline*> runs_;
  std::vector<execute::TimelineRow> rows_;  // of the run that is drawn
  std::string body_;
  double y_ = 0, end_ = 0;
  std::array<bool, 6> used_{};
};

}  // namespace

std::string to_svg(const Timeline& timeline) { return Drawing(timeline.title, timeline.source, {&timeline}).draw(); }

std::string to_svg(const std::string& title, const std::vector<Timeline>& runs) {
  std::vector<const Timeline*> list;
  for (const Timeline& run : runs) list.push_back(&run);
  return Drawing(title, runs.empty() ? "" : runs.front().source, list).draw();
}

}  // namespace imbrex
