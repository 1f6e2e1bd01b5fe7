#!/usr/bin/env python3
"""Help that fits the terminal, short and whole; what a wrong name may have meant; completion in shells."""

import os
import re
import shutil
import subprocess
import threading
import unittest

from program import COMMANDS, PROGRAM, Case, on_terminal

OPERATORS = ["all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all", "embedding_all_to_all", "all_reduce", "jacobi",
             "sparse_triangular_solve"]


class Help(Case):
    def test_lines_fit_the_terminal(self):
        commands = [[], *([name] for name in COMMANDS), *(["run", op] for op in OPERATORS), ["bench", "shmem"]]
        for columns, arguments in [(n, c) for n in (60, 80, 200) for c in commands]:
            for flag in ("--help", "--help-all"):
                with self.subTest(columns=columns, arguments=arguments, flag=flag):
                    text = on_terminal(*arguments, flag, columns=columns)
                    longest = max(text.splitlines(), key=len)
                    self.assertLessEqual(len(longest), min(columns, 120), longest)
        for arguments in commands:
            text, _ = self.run_program(*arguments, "--help-all")
            self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def test_sentences_are_broken_where_the_terminal_ends(self):
        """Not where the source has a line's end: a line that goes on has no room for the next one's first word."""
        tried = 0
        for command in COMMANDS:
            for columns in (60, 100, 120):
                lines = on_terminal(command, "--help", columns=columns).split("\nUsage: ")[0].split("\n")
                for line, following in zip(lines, lines[1:]):
                    if re.match(r"  [^ ]", following) and not line.startswith(" ") and not line.endswith((".", ":")):
                        tried += 1
                        self.assertGreater(len(line) + 1 + len(following.split()[0]), columns - 4, f"{command}: {line} / {following}")
        self.assertGreater(tried, 30)

    def test_words_are_whole(self):
        """Narrow help has the words of wide help, in their order."""
        for arguments in (["--help-all"], ["run", "--help-all"], ["tune", "--help"], ["run", "jacobi", "--help"]):
            wide, narrow = (on_terminal(*arguments, columns=columns).replace("\\\n", "\n").split() for columns in (120, 50))
            self.assertEqual(wide, narrow)

    def test_help_is_short_unless_all_is_asked_for(self):
        short, _ = self.run_program("run", "--help")
        whole, _ = self.run_program("run", "--help-all")
        self.assertLess(short.count("\n"), 80)
        self.assertGreater(whole.count("\n"), 150)
        for option in ("--m", "--strategy", "--verify", "--device"):
            self.assertIn(f"  {option} ", short)
        for option in ("--tile-m", "--lda", "--sweeps", "--a-scale", "--workers"):
            self.assertNotIn(f"  {option} ", short)
            self.assertIn(f"  {option} ", whole)
        self.assertRegex(" ".join(short.split()), "All options, also of .*Knobs.*: imbrex run --help-all. Options of one operator: imbrex run OP --help")
        self.assertNotIn("All options, also of", whole)

    def test_an_operator_has_a_page(self):
        for op in OPERATORS:
            text, _ = self.run_program("run", op, "--help")
            with self.subTest(op=op):
                self.assertTrue(text.startswith(op), text[:80])
                self.assertIn(f"Usage: imbrex run {op} [OPTIONS]", text)
                self.assertIn(f"imbrex run {op}", text.split("Example")[1])
                for option, owners in (("--sweeps", ["jacobi"]), ("--matrix", ["sparse_triangular_solve"]), ("--algorithm", ["all_reduce"]),
                                       ("--tables", ["embedding_all_to_all"]), ("--k", OPERATORS[:4]), ("--lda", OPERATORS[:4]),
                                       ("--verify", OPERATORS)):
                    (self.assertIn if op in owners else self.assertNotIn)(f"\n  {option} ", text)
        plan, _ = self.run_program("plan", "gemm_all_reduce", "--help")
        self.assertIn("Usage: imbrex plan gemm_all_reduce [OPTIONS]", plan)
        self.assertIn("  --tile-m ", plan)


class OnTerminals(Case):
    """A check takes as long as its input is open; what it reads then is no plan."""

    def test_progress_is_shown_in_place(self):
        reads, writes = os.pipe()
        timer = threading.Timer(10, os.close, [writes])  # a busy machine starts programs late
        timer.start()
        text = on_terminal("check", "-", columns=100, stdin=reads)
        timer.join()
        os.close(reads)
        self.assertRegex(text, r"^(\rimbrex: checking -: \d+ s so far\x1b\[K){2,}\r\x1b\[K(?:\x1b\[31m)?imbrex:(?:\x1b\[0m)? -: [^\r]*\n$")

    def test_a_verified_run_says_its_share_and_the_time_left(self):
        text = on_terminal("run", "gemm_all_reduce", "--m", "64", "--n", "64", "--k", "64", "--ranks", "2", "--device", "cpu", "--repeat", "1000",
                           "--delays", "1", "--verify", columns=120)
        # Each rank's repeats, and its two sources.
        self.assertRegex(text, r"\rimbrex: running and verifying gemm_all_reduce over 2 ranks: \d+ of 2004 done \(\d+ %\), \d+ s so far, about \d+ s left\x1b\[K")
        self.assertRegex(text, r"\r\x1b\[Kgemm_all_reduce 64 x 64 x 64")

    def test_files_get_lines(self):
        with subprocess.Popen([PROGRAM, "check", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            errors = process.stderr.readline()
            process.stdin.close()
            errors += process.stderr.read()
        self.assertRegex(errors, r"^(imbrex: checking -: \d+ s so far\n)+imbrex: -: [^\r]*\n$")


class Meant(Case):
    SIZES = ["--m", "8", "--n", "8", "--k", "8"]

    def test_names_that_are_nearly_right(self):
        run = ["run", "gemm_all_reduce", *self.SIZES]
        for arguments, meant in ((["rnu"], "run"), (["simulat"], "simulate"), (["run", "gemm_allreduce", *self.SIZES], "gemm_all_reduce"),
                                 (["run", "gemm_reduce", *self.SIZES], "gemm_reduce_scatter"), ([*run, "--rank", "2"], "--ranks"),
                                 ([*run, "--stratgey", "fused"], "--strategy"), ([*run, "--stratgey=fused"], "--strategy"),
                                 ([*run, "--strategy", "fusd"], "fused"), ([*run, "--order", "owner-major"], "owner_major"),
                                 # Options and names that the applications bring.
                                 (["run", "jacobi", "--sweps", "3"], "--sweeps"), (["run", "jacobi", "--way", "in_kernl"], "in_kernel"),
                                 (["run", "sparse_triangular_solve", "--generate", "power-law"], "power_law"),
                                 (["run", "all_reduce", "--m", "8", "--n", "8", "--algorithm", "twoshot"], "two_shot"),
                                 (["run", "embedding_all_to_all", "--optimizer", "sgdd"], "sgd"), (["bench", "shmem", "--mesures", "rate"], "--measures"),
                                 (["simulate", "gemm_all_reduce", *self.SIZES, "--machine", "4xh20"], "4xh200"), ([*run, "--device", "cda"], "cuda")):
            with self.subTest(arguments=arguments):
                self.refuse(*arguments, says=f"did you mean {meant}?")

    def test_options_of_bench_all(self):
        done = subprocess.run([PROGRAM, "bench", "all", "--minuts", "3"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("unrecognized arguments: --minuts 3; did you mean --minutes?", done.stderr)

    def test_names_that_are_far_off(self):
        for arguments in (["nonsense"], ["run", "x", *self.SIZES], ["run", "gemm_all_reduce", *self.SIZES, "--zebra", "1"],
                          ["run", "gemm_all_reduce", *self.SIZES, "--strategy", "quickest"], ["x" * 5000]):
            done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertNotIn("did you mean", done.stderr, arguments)


class Completion(Case):
    def completed(self, line):
        """What bash offers at the end of the line."""
        words = line.split(" ")
        script = (f"source <({PROGRAM} completion bash)\nCOMP_WORDS=({' '.join(map(repr, words))})\nCOMP_CWORD={len(words) - 1}\n"
                  "_imbrex\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")
        done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=60, check=True, cwd=self.folder)
        return set(done.stdout.split())

    def test_bash(self):
        self.assertEqual(self.completed("imbrex "), set(COMMANDS))
        self.assertEqual(self.completed("imbrex ru"), {"run"})
        self.assertEqual(self.completed("imbrex run gemm_r"), {"gemm_reduce_scatter"})
        self.assertEqual(self.completed("imbrex run jac"), {"jacobi"})
        self.assertEqual(self.completed("imbrex plan jac"), set())
        self.assertEqual(self.completed("imbrex run gemm_all_reduce --strat"), {"--strategy"})
        self.assertEqual(self.completed("imbrex run gemm_all_reduce --strategy "), {"auto", "sequential", "decomposed", "fused", "signaled"})
        self.assertEqual(self.completed("imbrex run --device c"), {"cpu", "cuda"})
        self.assertEqual(self.completed("imbrex bench s"), {"shmem"})
        self.write("plan.json", "")
        self.assertEqual(self.completed("imbrex check pla"), {"plan.json"})

    def test_every_option_is_offered(self):
        for command in COMMANDS:
            whole, _ = self.run_program(command, "--help-all")
            options = {word.rstrip(",") for line in whole.splitlines() if line.startswith("  -")
                       for word in line[2:].split()[0].split(",") if word.startswith("--")}
            self.assertLessEqual(options, self.completed(f"imbrex {command} --"), command)

    def test_other_shells(self):
        for shell in ("zsh", "fish"):
            text, _ = self.run_program("completion", shell)
            self.assertIn("gemm_reduce_scatter", text)
            if shutil.which(shell):
                subprocess.run([shell, "-n", "/dev/stdin"], input=text, text=True, check=True, timeout=60)
        self.refuse("completion", "tcsh", says="shell 'tcsh': it must be bash, zsh or fish")
        self.refuse("completion", says="SHELL")


if __name__ == "__main__":
    unittest.main()
