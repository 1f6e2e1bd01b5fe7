"""Options of `imbrex bench all`."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import NoReturn

import lists

ROOT = Path(__file__).resolve().parents[2]
# Where programs lie: a build's, copied ones, installed ones.
PLACES = (
    ROOT / "build/bin",
    ROOT / "build/cpu/bin",
    ROOT / "bin",
    ROOT.parents[1] / "bin" if len(ROOT.parents) > 1 else ROOT / "bin",
)


class Parser(argparse.ArgumentParser):
    """Says which option an unknown one may stand for."""

    def error(self, message: str) -> NoReturn:
        """Ends with 2."""
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        unknown = [word.split("=")[0] for word in message.split() if word.startswith("--")]
        near = difflib.get_close_matches(unknown[0], known, 1) if "unrecognized" in message and unknown else []
        super().error(message + (f"; did you mean {near[0]}?" if near else ""))


def parse(arguments: list[str], about: str) -> argparse.Namespace:
    """Options. Wrong ones end with 2."""
    parser = Parser(
        prog="imbrex bench all",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--minutes", type=float, default=10, help="the run ends by itself within so many (default 10)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench-all"),
        metavar="DIR",
        help="results; continued where there are some (default: bench-all)",
    )
    parser.add_argument(
        "--bin", type=Path, metavar="DIR", help="folder of the programs (default: build/bin, or bin beside bench)"
    )
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch (default: this one)")
    parser.add_argument(
        "--ranks",
        type=int,
        default=0,
        help="ranks (default: 2, 4 or 8, as GPUs are there; 4 that share one; 2 on the CPU)",
    )
    parser.add_argument(
        "--nvshmem", type=Path, metavar="DIR", help="folder with lib/ of NVSHMEM (default: this Python's package)"
    )
    parser.add_argument("--commit", default="", help="what the programs were built from (default: the checkout's)")
    parser.add_argument("--cpu", action="store_true", help="measure the CPU, though there are GPUs")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TOPIC", help=f"only these topics: {', '.join(lists.TOPICS)}"
    )
    parser.add_argument("--again", action="store_true", help="measure anew what failed in an earlier run")
    parser.add_argument("--dry-run", action="store_true", help="say what would run in this time, and run nothing")
    parser.add_argument(
        "--measurements",
        type=Path,
        metavar="FILE",
        help="take this list of measurements, JSON, in place of the fixed one",
    )
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= 24 * 60:
        parser.error(f"--minutes {options.minutes:g}: it must be more than 0, and at most {24 * 60}")
    if not 0 <= options.ranks <= 8:
        parser.error(f"--ranks {options.ranks}: it must be from 1 to 8, or 0 for what fits")
    if unknown := [topic for topic in options.only if topic not in lists.TOPICS]:
        parser.error(f"--only {unknown[0]}: it must be one of {', '.join(lists.TOPICS)}")
    if options.bin is None:
        options.bin = next((place for place in PLACES if (place / "imbrex").exists()), PLACES[0])
    if not (options.bin / "imbrex").exists():
        parser.error(f"--bin {options.bin}: there is no program imbrex in it")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out}: it is no folder")
    return options
