"""Runs the program under test, and reads and writes .npy files without NumPy."""

import array
import fcntl
import json
import os
import pty
import struct
import subprocess
import tempfile
import termios
import unittest

PROGRAM = os.environ["IMBREX_PROGRAM"]
COMMANDS = ["run", "plan", "check", "simulate", "machine", "trace", "bench", "tune", "launch", "doctor", "env", "completion", "version"]
OPERATORS = ["all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all"]


def on_terminal(*arguments, columns=None, stdin=subprocess.DEVNULL, **options):
    """What the program prints where both its outputs are a terminal, of so many columns if they are given. Options are Popen's."""
    ours, theirs = pty.openpty()
    if columns is not None:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen([PROGRAM, *arguments], stdout=theirs, stderr=theirs, stdin=stdin, **options) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # its end, on Linux
                part = b""
            if not part:
                break
            text += part
        process.wait(60)
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


class Case(unittest.TestCase):
    """A test with a folder of its own, in which the program runs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, *arguments, code=0, stdin="", environment=None, timeout=120):
        """Standard output and standard error; the exit code must be `code`."""
        result = subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.folder, input=stdin, text=True,
                                capture_output=True, timeout=timeout, env={**os.environ, **(environment or {})})
        self.assertEqual(result.returncode, code, f"imbrex {' '.join(map(str, arguments))}\n{result.stdout}{result.stderr}")
        return result.stdout, result.stderr

    def refuse(self, *arguments, says, code=2, **keywords):
        """The program exits with `code`, and its message has every word of `says`."""
        _, errors = self.run_program(*arguments, code=code, **keywords)
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, errors)

    def json_of(self, *arguments, **keywords):
        return json.loads(self.run_program(*arguments, "--json", "-", **keywords)[0])

    def read(self, name, mode="r"):
        with open(self.path(name), mode) as file:
            return file.read()

    def write(self, name, content):
        with open(self.path(name), "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        return name

    def write_npy(self, name, rows, cols, values, descr="<f4", code="f"):
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {cols}), }}\n".encode()
        return self.write(name, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header +
                          array.array(code, values).tobytes())

    def read_npy(self, name):
        """Rows, columns and values."""
        data = self.read(name, "rb")
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        end = 10 + int.from_bytes(data[8:10], "little")
        header = eval(data[10:end], {"__builtins__": {}})
        self.assertEqual((header["descr"], header["fortran_order"]), ("<f4", False))
        values = array.array("f")
        values.frombytes(data[end:])
        rows, cols = header["shape"]
        self.assertEqual(len(values), rows * cols)
        return rows, cols, list(values)
