#include "output/chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace imbrex::cli {
namespace {

constexpr double left = 70, width = 600, top = 70, legend = left + width + 24, row = 20;
// A character is at most so wide, in the font's size; what is wider is cut.
constexpr double character = 0.62;
constexpr std::array<const char*, 8> colours{"#1b6ca8", "#c0392b", "#27864a", "#8e5ea2",
                                             "#b8860b", "#117a8b", "#7f4f24", "#555555"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text)
    result += c == '&'   ? std::string("&amp;")
              : c == '<' ? std::string("&lt;")
              : c == '>' ? std::string("&gt;")
                         : std::string(1, c);
  return result;
}

std::string number(double value) { return fmt::format("{:g}", value); }

// The text, or its beginning, so that it fits.
std::string fitting(const std::string& text, double room, double size) {
  const auto most = static_cast<std::size_t>(std::max(1.0, room / (character * size)));
  return text.size() <= most ? text : text.substr(0, most - 1) + "…";
}

// 1, 2 or 5 times a power of ten, with which `range` has at most `most` steps.
double step_of(double range, int most) {
  const double least = range / most, power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    for (const Curve& curve : chart.curves)
      for (const auto& [x, y] : curve.points) {
        xs_.push_back(x);
        highest_ = std::max(highest_, y);
      }
    std::sort(xs_.begin(), xs_.end());
    xs_.erase(std::unique(xs_.begin(), xs_.end()), xs_.end());
    highest_ = std::max(highest_, chart.line) * 1.08;
    height_ = std::max(300.0, row * static_cast<double>(chart.curves.size() + 1));
  }

  std::string svg() {
    const double whole = top + height_ + 64;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 {:.0f}\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"1000\" height=\"{:.0f}\" fill=\"white\"/>\n",
        whole, whole);
    text(left, 24, fitting(chart_.title, 1000 - left - 10, 16), "start", 16);
    text(left, 44, fitting(chart_.source, 1000 - left - 10, 12), "start");
    y_axis();
    x_axis();
    line_of_its_own();
    for (std::size_t i = 0; i < chart_.curves.size(); ++i) curve(i);
    return out_ + "</svg>\n";
  }

 private:
  double x(double value) const {
    if (xs_.size() < 2) return left + width / 2;
    const auto place = [&](double v) { return chart_.log_x ? std::log2(v) : v; };
    return left + width * (place(value) - place(xs_.front())) / (place(xs_.back()) - place(xs_.front()));
  }
  double y(double value) const { return top + height_ * (1 - value / highest_); }

  void text(double at_x, double at_y, const std::string& words, const char* anchor, double size = 12,
            const std::string& more = "") {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{:g}\"{}>{}</text>\n", at_x,
                        at_y, anchor, size, more, escaped(words));
  }

  void y_axis() {
    const double step = step_of(highest_, 8);
    for (int i = 0; i * step <= highest_; ++i) {
      out_ += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n", left,
                          left + width, y(i * step));
      text(left - 8, y(i * step) + 4, number(i * step), "end");
    }
    const double middle = top + height_ / 2;
    text(18, middle, fitting(chart_.y_title, height_, 12), "middle", 12,
         fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle));
  }

  // A label stays away where it would touch the one before it.
  void x_axis() {
    double end = -std::numeric_limits<double>::infinity();
    for (const double value : xs_) {
      const std::string label = number(value);
      const double half = static_cast<double>(label.size()) * character * 12 / 2;
      out_ += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#999\"/>\n",
                          x(value), top + height_, top + height_ + 5);
      if (x(value) - half < end + 6) continue;
      text(x(value), top + height_ + 20, label, "middle");
      end = x(value) + half;
    }
    text(left + width / 2, top + height_ + 46, fitting(chart_.x_title, width, 12), "middle");
  }

  void line_of_its_own() {
    out_ += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#222\" stroke-width=\"1.5\"/>\n", left,
        left + width, y(chart_.line));
    legend_row(0, "#222", chart_.line_name);
  }

  void curve(std::size_t i) {
    const Curve& one = chart_.curves[i];
    const char* colour = colours[i % colours.size()];
    std::string path;
    for (const auto& [px, py] : one.points) {
      path += fmt::format("{:.1f},{:.1f} ", x(px), y(py));
      out_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" stroke=\"{}\"/>\n", x(px), y(py),
                          one.dots ? 6 : 3, one.dots ? "none" : colour, colour);
    }
    if (!one.dots && !path.empty())
      out_ += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path, colour,
                          i >= colours.size() ? " stroke-dasharray=\"6 4\"" : "");
    legend_row(i + 1, colour, one.name, one.dots);
  }

  void legend_row(std::size_t place, const char* colour, const std::string& name, bool dots = false) {
    const double at = top + row * static_cast<double>(place) + 8;
    if (dots)
      out_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"6\" fill=\"none\" stroke=\"{}\"/>\n", legend + 9, at - 4,
                          colour);
    else
      out_ += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\" stroke=\"{3}\" stroke-width=\"3\"/>\n",
                          legend, legend + 18, at - 4, colour);
    text(legend + 24, at, fitting(name, 1000 - legend - 28, 12), "start");
  }

  const Chart& chart_;
  std::vector<double> xs_;
  double highest_ = 0, height_ = 0;
  std::string out_;
};

}  // namespace

std::string to_svg(const Chart& chart) { return Drawing(chart).svg(); }

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) {
    std::string text = cell;
    if (text.find_first_of(",\"\n") != std::string::npos) {
      for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
      text = "\"" + text + "\"";
    }
    line += (&cell == cells.data() ? "" : ",") + text;
  }
  return line + "\n";
}

}  // namespace imbrex::cli
