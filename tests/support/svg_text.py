"""Where text lies in an SVG, as boxes of so many pixels: wide enough for any usual font without serifs."""

import math
import re
import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"
# A character's width in the mean, and a line's height above and below its foot, as shares of the font's size.
WIDTH, ABOVE, BELOW = 0.55, 0.72, 0.2
NUMBER = re.compile(r"-?[\d.]+(?:e-?\d+)?")


def sizes_by_class(root):
    """class -> (font size, anchor), as the SVG's style sheet has them."""
    found = {}
    for style in root.iter(f"{SVG}style"):
        for name, rule in re.findall(r"\.([\w-]+)\s*\{([^}]*)\}", style.text or ""):
            size, anchor = re.search(r"font-size:\s*([\d.]+)", rule), re.search(r"text-anchor:\s*(\w+)", rule)
            found[name] = (float(size[1]) if size else None, anchor[1] if anchor else None)
    return found


def boxes(svg):
    """[(text, left, top, right, bottom)] of all that is written."""
    root = ElementTree.fromstring(svg)
    classes = sizes_by_class(root)
    usual = float(root.get("font-size", 16))
    found = []
    for one in root.iter(f"{SVG}text"):
        words = "".join(one.itertext())
        if not words.strip():
            continue
        size, anchor = classes.get(one.get("class"), (None, None))
        size = float(one.get("font-size", size or usual))
        anchor = one.get("text-anchor", anchor or "start")
        x, y, width = float(one.get("x", 0)), float(one.get("y", 0)), WIDTH * size * len(words)
        left = x - {"start": 0, "middle": width / 2, "end": width}[anchor]
        box = (left, y - ABOVE * size, left + width, y + BELOW * size)
        if "rotate" in one.get("transform", ""):
            angle, about_x, about_y = map(float, NUMBER.findall(one.get("transform")))
            sin, cos = math.sin(math.radians(angle)), math.cos(math.radians(angle))
            corners = [(about_x + (cx - about_x) * cos - (cy - about_y) * sin, about_y + (cx - about_x) * sin + (cy - about_y) * cos)
                       for cx in (box[0], box[2]) for cy in (box[1], box[3])]
            box = (min(c[0] for c in corners), min(c[1] for c in corners), max(c[0] for c in corners), max(c[1] for c in corners))
        found.append((words, *box))
    return found


def overlaps(svg):
    """Pairs of texts whose boxes share an area, and texts that leave the picture."""
    placed = boxes(svg)
    faults = []
    for i, (one, left, top, right, bottom) in enumerate(placed):
        for other, other_left, other_top, other_right, other_bottom in placed[i + 1:]:
            if min(right, other_right) - max(left, other_left) > 0.5 and min(bottom, other_bottom) - max(top, other_top) > 0.5:
                faults.append(f"'{one}' lies on '{other}'")
    _, _, width, height = map(float, ElementTree.fromstring(svg).get("viewBox").split())
    faults += [f"'{one}' leaves the picture" for one, left, top, right, bottom in placed
               if left < -0.5 or top < -0.5 or right > width + 0.5 or bottom > height + 0.5]
    return faults
