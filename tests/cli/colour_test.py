#!/usr/bin/env python3
"""Colour: on terminals that have it, unless NO_COLOR or TERM say otherwise, and nowhere else."""

import os
import re
import unittest

from program import Case, on_terminal

COLOUR = re.compile(r"\033\[[0-9;]*m")
RUN = ["run", "gemm_all_reduce", "--m", "16", "--n", "16", "--k", "16", "--device", "cpu", "--verify"]


class Colour(Case):
    def on_terminal(self, *arguments, **environment):
        inherited = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        return on_terminal(*arguments, cwd=self.folder, env=inherited | {"TERM": "xterm"} | environment)

    def test_verdicts_have_colours_on_terminals(self):
        self.assertIn("\033[32mright\033[0m: the largest error", self.on_terminal(*RUN))
        self.assertRegex(self.on_terminal("doctor"), r"\033\[32mok      \033\[0m memory|\033\[33mnote    \033\[0m")
        self.assertIn("\033[31mimbrex:\033[0m 'nonsense' is not a command", self.on_terminal("nonsense"))
        self.run_program("plan", *RUN[1:8], "--json", "plan.json")
        self.assertIn("\033[32msound\033[0m\n", self.on_terminal("check", "plan.json"))

    def test_they_are_the_same_words(self):
        self.run_program("plan", *RUN[1:8], "--json", "plan.json")
        for arguments in (["nonsense"], ["check", "plan.json"]):
            with self.subTest(arguments=arguments):
                with_colour, without = self.on_terminal(*arguments), self.on_terminal(*arguments, NO_COLOR="1")
                self.assertNotEqual(with_colour, without)
                self.assertEqual(COLOUR.sub("", with_colour), without)

    def test_not_where_the_environment_says_so_and_not_in_files(self):
        for environment in ({"NO_COLOR": "1"}, {"NO_COLOR": "0"}, {"TERM": "dumb"}):
            for arguments in (RUN, ["nonsense"]):
                self.assertNotIn("\033", self.on_terminal(*arguments, **environment), environment)
        self.assertIn("\033[32m", self.on_terminal(*RUN, NO_COLOR=""))  # an empty one counts as not set
        output, errors = self.run_program(*RUN)
        self.assertNotIn("\033", output + errors)
        # Standard output carries the JSON, and the words go to standard error.
        output, errors = self.run_program(*RUN, "--json", "-")
        self.assertNotIn("\033", output + errors)


if __name__ == "__main__":
    unittest.main()
