"""Progress of long scripts: on a terminal a line that is shown in place, with share and time left; elsewhere nothing."""

import sys
import time


class Progress:
    """`what` of `total` parts. It is shown on `stream` where that is a terminal."""

    def __init__(self, what, total, stream=None, clock=time.monotonic):
        self.what, self.total, self.clock = what, total, clock
        self.stream = sys.stderr if stream is None else stream
        self.begin = clock()
        self.shown = False

    def show(self, done, note=""):
        """So many parts are done; `note`: what is next."""
        if not self.stream.isatty():
            return
        seconds = self.clock() - self.begin
        line = f"{self.what}: {done} of {self.total} done ({100 * done // max(self.total, 1)} %), {seconds:.0f} s so far"
        if done:
            line += f", about {seconds * (self.total - done) / done:.0f} s left"
        self.stream.write(f"\r{line}{': ' + note if note else ''}\033[K")
        self.stream.flush()
        self.shown = True

    def clear(self):
        """Makes room for a line that is printed next."""
        if self.shown:
            self.stream.write("\r\033[K")
            self.stream.flush()
            self.shown = False
