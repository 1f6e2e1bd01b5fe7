#!/usr/bin/env python3
"""`imbrex doctor` on machines of all kinds: what it finds, what it advises, and what it says to do next."""

import os
import re
import resource
import shlex
import shutil
import stat
import subprocess
import unittest

from program import PROGRAM, Case

TOLD = "python 3.11.7, /somewhere/python3\n"


class Doctor(Case):
    def findings(self, environment=None, code=0):
        """By what they are about; several about one thing are one text."""
        self.report = self.json_of("doctor", environment=environment, code=code)
        result = {}
        for finding in self.report["findings"]:
            words = f"{finding['verdict']}: {finding['words']} -> {finding.get('remedy', '')}"
            result[finding["what"]] = "\n".join(filter(None, [result.get(finding["what"]), words]))
        return result

    def python(self, text):
        """An environment whose python3 answers so."""
        self.write("python3", f"#!/bin/sh\ncat <<'TOLD'\n{text}TOLD\n")
        os.chmod(self.path("python3"), os.stat(self.path("python3")).st_mode | stat.S_IXUSR)
        return {"PATH": f"{self.folder}:{os.environ['PATH']}"}

    def test_what_is_looked_at(self):
        found = self.findings()
        self.assertLessEqual({"cores", "memory", "BLAS", "memfd", "pidfd", "/dev/shm", "limits", "CUDA", "GPUs", "launcher"}, set(found))
        if self.report["gpus"]:
            self.assertLessEqual({"CUTLASS", "cuBLASLt", "NCCL", "GPU memory", "plans", "MPS"}, set(found))
        self.assertEqual(self.report["able"], "missing" not in {f["verdict"] for f in self.report["findings"]})

    def test_notes_with_a_remedy_say_it(self):
        text, _ = self.run_program("doctor")
        self.findings()
        for finding in self.report["findings"]:
            if "remedy" in finding:
                self.assertIn(f"to do: {finding['remedy']}\n", text)

    def test_the_secret_of_a_launch_is_not_shown(self):
        """People paste what these commands print, and schedulers keep it."""
        secret = "S3CRET-0123456789"
        environment = {"IMBREX_RANK": "0", "IMBREX_WORLD_SIZE": "2", "IMBREX_ADDRESS": "127.0.0.1", "IMBREX_RENDEZVOUS": secret}
        for value in (secret, secret[:10]):
            environment["IMBREX_RENDEZVOUS"] = value
            for command in ("doctor", "env"):
                with self.subTest(command, value=value):
                    done = subprocess.run([PROGRAM, command, "--json", self.path("told")], env={**os.environ, **environment},
                                          text=True, capture_output=True, check=False)
                    with open(self.path("told"), encoding="utf-8") as file:
                        told = done.stdout + done.stderr + file.read()
                    self.assertNotIn(secret[:6], told)
                    self.assertIn(f"(a secret of {len(value)} bytes, not shown)", told)

    def test_misspelt_variables_are_named(self):
        found = self.findings({"IMBREX_WAITLIMIT": "3", "IMBREX_WAIT_LIMIT": "30"})["environment"]
        self.assertIn("note: IMBREX_WAITLIMIT is set, and the library reads no variable of that name -> `imbrex env` lists", found)
        self.assertNotIn("IMBREX_WAIT_LIMIT is set", found)

    def test_what_every_process_has_is_not_noted(self):
        found = self.findings({"HOME": "/root", "TERM": "xterm", "NO_COLOR": "1"})["environment"]
        self.assertIn("note: NO_COLOR=1 (not empty: the program prints no colours)", found)
        self.assertNotIn("HOME=", found)
        self.assertNotIn("TERM=", found)

    def test_it_ends_with_what_to_do_next(self):
        text, _ = self.run_program("doctor")
        self.findings()
        end = text[text.index("What to do next:\n"):].splitlines()[1:]
        self.assertEqual([line.strip() for line in end], self.report["next"])
        self.assertIn("docs/troubleshooting.md", self.report["next"][-1])

    def test_what_to_do_next_can_be_done(self):
        environment = {"CUDA_VISIBLE_DEVICES": ""}  # other tests have the GPUs
        self.findings(environment)
        commands = [step for step in self.report["next"] if step.startswith("imbrex ")]
        self.assertEqual(len(commands), 2)
        for command in commands:
            self.run_program(*shlex.split(command)[1:], environment=environment)

    def test_a_machine_with_nothing(self):
        """Neither Python nor any command; the program needs none of them."""
        found = self.findings({"PATH": self.folder, "LD_LIBRARY_PATH": ""})
        self.assertRegex(found["Python"], "^note: no python3 on PATH; only the Python package needs it")
        self.assertNotIn("torch", found)
        self.assertTrue(self.report["able"])

    def test_python_that_ends_badly(self):
        self.write("python3", "#!/bin/sh\necho told nothing; exit 3\n")
        os.chmod(self.path("python3"), 0o700)
        found = self.findings({"PATH": f"{self.folder}:{os.environ['PATH']}"})
        self.assertRegex(found["Python"], "^note: no python3")

    def test_torch(self):
        self.assertRegex(self.findings(self.python(TOLD))["torch"], r"^note: not installed .* -> pip install 'torch>=2\.10', in a virtual environment$")
        found = self.findings(self.python(TOLD + "torch 2.9.1\ntorch_cuda 12.8\n"))
        self.assertRegex(found["torch"], r"^note: 2\.9\.1; imbrex\.torch needs 2\.10 or later -> pip install")
        for version in ("2.10.0", "2.11.0+cu128", "3.0.0"):
            found = self.findings(self.python(TOLD + f"torch {version}\ntorch_cuda 12.8\n"))
            self.assertEqual(found["torch"], f"ok: {version}, for CUDA 12.8 -> ")
        self.assertIn("for CPUs", self.findings(self.python(TOLD + "torch 2.11.0\ntorch_cuda none\n"))["torch"])

    def test_the_package(self):
        version = self.json_of("version")["version"]
        self.assertRegex(self.findings(self.python(TOLD))["package"], r"^note: imbrex is not installed .* -> pip install \.")
        there = f"imbrex {version}\nfolder /site-packages/imbrex\n"
        self.assertRegex(self.findings(self.python(TOLD + there))["package"], "^note: .* holds no compiled library -> pip install")
        found = self.findings(self.python(TOLD + there + "built with CUDA\n"))
        self.assertEqual(found["package"], f"ok: imbrex {version}, built with CUDA, in /site-packages/imbrex -> ")
        found = self.findings(self.python(TOLD + there.replace(version, "0.0.1") + "built without CUDA\n"))
        self.assertRegex(found["package"], rf"^note: imbrex 0\.0\.1, .*; this program is {re.escape(version)} -> pip install \. again")

    def test_a_real_python(self):
        """What this Python says of itself is what doctor says of it."""
        if not shutil.which("python3"):
            self.skipTest("no python3 here")
        says = subprocess.run(["python3", "-c", "import sys; print(sys.version.split()[0])"], capture_output=True, text=True, check=True).stdout.strip()
        self.assertTrue(self.findings()["Python"].startswith(f"ok: {says}, "))

    @unittest.skipIf(os.environ.get("IMBREX_SANITIZE"), "sanitizers reserve more addresses than the limit")
    def test_limits(self):
        def run(*limits):
            def set_limits():
                for limit, value in limits:
                    resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))
            result = subprocess.run([PROGRAM, "doctor"], capture_output=True, text=True, timeout=120, preexec_fn=set_limits)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            return result.stdout
        self.assertRegex(run((resource.RLIMIT_NOFILE, 256)), r"note +limits +256 open files.*\n +to do: ulimit -n 4096\n")
        self.assertRegex(run((resource.RLIMIT_AS, 1 << 40)), r"note +limits +1\.0 TiB of addresses.*\n +to do: ulimit -v unlimited\n")

    def library(self, name, code):
        """An environment whose library of that name is this."""
        if not shutil.which("cc"):
            self.skipTest("no C compiler here")
        self.write("library.c", code)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", name, "library.c"], cwd=self.folder, check=True)
        return {"LD_LIBRARY_PATH": f"{self.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}

    def test_libfabric(self):
        """A library that tells its version."""
        environment = self.library("libfabric.so.1", "unsigned fi_version(void) { return 1u << 16 | 23; }\n")
        self.assertEqual(self.findings(environment)["libfabric"], "ok: 1.23 -> ")

    def test_nccl(self):
        """A library that suits, one that is too old, and one that does not tell its version."""
        if "NCCL" not in self.findings({"NCCL_NVLS_ENABLE": "0", "NCCL_GRAPH_REGISTER": "0"}):
            self.skipTest("this build calls no NCCL")
        def told(body):
            environment = self.library("libnccl.so.2", f"int ncclGetVersion(int* v) {{ {body} }}\n")
            return self.findings({"NCCL_NVLS_ENABLE": "0", "NCCL_GRAPH_REGISTER": "0", **environment})["NCCL"]
        self.assertRegex(told("*v = 22803; return 0;"), rf"^ok: 2\.28\.3, {re.escape(self.folder)}/libnccl\.so\.2 -> $")
        self.assertRegex(told("*v = 21605; return 0;"), r"^note: 2\.16\.5, .*; signaled plans need 2\.17 -> install NCCL 2\.17 or later$")
        self.assertRegex(told("return 1;"), r"^note: libnccl\.so\.2 cannot be loaded; .* -> install libnccl2")

    def test_what_is_missing_comes_first(self):
        self.findings({"IMBREX_WAIT_LIMIT": "soon"}, code=3)
        self.assertRegex(self.report["next"][0], r"^environment: .*IMBREX_WAIT_LIMIT='soon'")


if __name__ == "__main__":
    unittest.main()
