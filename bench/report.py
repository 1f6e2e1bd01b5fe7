"""What the scripts of this folder share: results in files, what documents say of them, and plots."""

import json
import math
import statistics
import sys
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
END = "<!-- end -->\n"
COLOURS = {"all_gather_gemm": "#1b6ca8", "gemm_reduce_scatter": "#c0392b", "gemm_all_reduce": "#27864a", "gemm_all_to_all": "#8e5ea2"}


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def line(cells):
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"


def heading(names):
    return [line(names), "|---" * len(names) + "|"]


def with_section(document, maker, body):
    """The document with what stands between its maker's mark and the next end mark replaced."""
    begin = f"<!-- made by {maker} -->\n"
    before, rest = document.split(begin)
    return before + begin + body + END + rest.split(END, 1)[1]


def write_or_check(wanted, check, maker):
    """Writes text to each path; with `check`, changes nothing and exits where a file differs."""
    for path, text in wanted.items():
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} does not match the results; run {maker}")


def write_rows(path, result):
    """A result file, of each list a row a line."""
    parts = []
    for key, value in result.items():
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(row) for row in value)
            parts.append(f' {json.dumps(key)}: [\n{rows}\n ]' if value else f" {json.dumps(key)}: []")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    Path(path).write_text("{\n" + ",\n".join(parts) + "\n}\n")


def write_result(path, machine, date, rows):
    """What `imbrex bench --json` gives, as a result file."""
    write_rows(path, {"machine": machine, "date": date, "rows": rows})


def merge(out, machine, paths):
    """Joins outputs of `imbrex bench --json`, or files like them, in one result file."""
    parts = [json.loads(Path(path).read_text()) for path in paths]
    rows = [row for part in parts for row in part["rows"]]
    problems = [json.dumps(row["problem"], sort_keys=True) for row in rows]
    if twice := {problem for problem in problems if problems.count(problem) > 1}:
        raise ValueError(f"measured more than once: {', '.join(sorted(twice))}")
    write_result(out, machine, parts[0]["date"], rows)


def joined(turns):
    """One row of several measurements of a problem: the median of each time."""
    row = json.loads(json.dumps(turns[0]))
    for key in ("cublas_us", "wire_us"):
        row[key] = round(statistics.median(turn[key] for turn in turns), 2)
    for i, plan in enumerate(row["plans"]):
        if any(turn["plans"][i]["name"] != plan["name"] for turn in turns):
            raise ValueError(f"plan {i} of {row['problem']} is not the same in all turns")
        plan["us"] = round(statistics.median(turn["plans"][i]["us"] for turn in turns), 2)
    return row


class Plot:
    """An SVG with two axes that say what they are, y from 0; x is what the caller makes of it, from 0 to 1. No text lies on another: a label
    of the x axis that would is left out, and the legend stands to the right, a row a curve."""

    def __init__(self, title, y_max, y_step, x_title, y_title, y_format="{:.1f}"):
        self.y_max = y_max
        self.out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 416" font-family="sans-serif" font-size="12">',
                    '<rect width="960" height="416" fill="white"/>', f'<text x="60" y="24" font-size="14">{escape(title)}</text>',
                    f'<text x="{self.x(0.5):.1f}" y="404" text-anchor="middle">{escape(x_title)}</text>',
                    f'<text x="14" y="200" text-anchor="middle" transform="rotate(-90 14 200)">{escape(y_title)}</text>']
        self.labels = 0
        self.ends = {}  # of what was written, by row of the x axis
        for i in range(int(y_max / y_step + 1e-9) + 1):
            y = self.y(i * y_step)
            self.out.append(f'<line x1="60" x2="660" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                            f'<text x="52" y="{y + 4:.1f}" text-anchor="end">{y_format.format(i * y_step)}</text>')

    @staticmethod
    def x(part):
        return 60 + 600 * part

    def y(self, value):
        return 340 - 280 * value / self.y_max

    def tick(self, part, text, row=0):
        """From left to right in a row."""
        half = 0.6 * 12 * len(str(text)) / 2
        if self.x(part) - half < self.ends.get(row, -1e9) + 4:
            return
        self.ends[row] = self.x(part) + half
        self.out.append(f'<text x="{self.x(part):.1f}" y="{360 + 14 * row}" text-anchor="middle">{escape(str(text))}</text>')

    def dot(self, part, value, colour, opacity=1, says=""):
        """`says`: what a browser shows over it."""
        title = f"<title>{escape(says)}</title>" if says else ""
        self.out.append(f'<circle cx="{self.x(part):.1f}" cy="{self.y(value):.1f}" r="3" fill="{colour}" fill-opacity="{opacity}">{title}</circle>')

    def line(self, points, colour, label, dashed=False):
        path = " ".join(f"{self.x(part):.1f},{self.y(value):.1f}" for part, value in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        self.legend(colour, label)

    def level(self, value, label):
        """A line across, such as that of what is compared with, at 1."""
        self.out.append(f'<line x1="60" x2="660" y1="{self.y(value):.1f}" y2="{self.y(value):.1f}" stroke="#222" stroke-width="1.5"/>')
        self.legend("#222", label)

    def legend(self, colour, label):
        self.out.append(f'<text x="680" y="{80 + 22 * self.labels}" fill="{colour}">{escape(label)}</text>')
        self.labels += 1

    def svg(self):
        return "\n".join(self.out) + "\n</svg>\n"
