#!/usr/bin/env python3
"""What scripts/test runs on machines without a GPU, with one, and with several, and what it does with MPS: with stubs for
the build, for ctest, for NVIDIA's tools and for the program. usage: test_script_test.py ROOT
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]

# Each writes down its words, and the folder in which it finds an MPS.
TELL = """#!/bin/bash
echo "$(basename "$0") $* [${CUDA_MPS_PIPE_DIRECTORY-none}]" >>"$TOLD"
"""
CTEST = TELL + """
while (($#)); do
  if [[ $1 == --output-junit ]]; then report=$2; fi
  if [[ $1 == --test-dir && $2 == build ]]; then built=1; fi
  if [[ $1 == '^mps$' && $before == -L ]]; then mps=1; fi
  before=$1
  shift
done
if [[ -n ${report-} && -n ${built-} ]]; then cp "$STUBS/${mps:+mps}report.xml" "$report"; fi
exit $(cat "$STUBS/ctest_code")
"""
MPS = TELL + """
if [[ $1 == -d ]]; then
  echo 4711 >"$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
  cat "$STUBS/mps_says" >&2
  if [[ $(cat "$STUBS/mps_code") == 0 ]]; then
    touch "$CUDA_MPS_PIPE_DIRECTORY/control"
    # A daemon that keeps its standard output.
    (sleep 20 & echo $! >"$STUBS/daemon") 2>/dev/null
  fi
  exit $(cat "$STUBS/mps_code")
fi
echo "mps is told to $(cat)" >>"$TOLD"
kill "$(cat "$STUBS/daemon")" 2>/dev/null
rm -f "$CUDA_MPS_PIPE_DIRECTORY/control"
"""
PROGRAM = TELL + """
if [[ $1 == doctor ]]; then cat "$STUBS/doctor" >"$3"; fi
"""
PYTHON = TELL + """
echo "Python's tensors on ${IMBREX_TEST_DEVICE-cpu}" >>"$TOLD"
"""
REPORT = """<testsuite><testcase name="gpu_run_test" status="run"><system-out>test_a (__main__.GpuRun.test_a)
What it does. ... skipped '4 GPUs wanted, 1 found'
test_b (__main__.GpuRun.test_b) ... skipped '2 GPUs wanted, 1 found'
test_c (__main__.GpuRun.test_c) ... ok
</system-out></testcase>
<testcase name="gpu_sharing_test" status="run"><system-out>[ RUN      ] GpuSharing.Runs
[       OK ] GpuSharing.Runs (3 ms)
[ RUN      ] GpuSharing.Waits
x.cpp:58: Skipped
tests skip copies then

[  SKIPPED ] GpuSharing.Waits (0 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] GpuSharing.Waits
</system-out></testcase>
<testcase name="gpu_hosts_test" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>SKIPPED: 4 GPUs wanted, 1 found
</system-out></testcase></testsuite>
"""
MPS_REPORT = """<testsuite><testcase name="gpu_mps_process_test" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>SKIPPED: no MPS runs</system-out></testcase></testsuite>
"""


class TestScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree, self.bin, self.stubs, self.told, self.temporary = (
            Path(folder.name, name) for name in ("tree", "bin", "stubs", "told", "tmp"))
        for path in (self.bin, self.stubs, self.temporary, self.tree / "build/bin"):
            path.mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.tree / "scripts")
        for script, text in (("build", TELL), ("test-python", PYTHON)):
            self.program(self.tree / "scripts" / script, text)
        self.program(self.bin / "ctest", CTEST)
        self.program(self.tree / "build/bin/imbrex", PROGRAM)
        for name, text in (("report.xml", REPORT), ("mpsreport.xml", MPS_REPORT), ("ctest_code", "0"), ("mps_code", "0"),
                           ("mps_says", ""), ("doctor", '{"gpus": [\n {"name": "NVIDIA H200"}]}')):
            (self.stubs / name).write_text(text)

    def program(self, path, text):
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def machine(self, gpus, mps=True):
        self.program(self.tree / "scripts/has-gpu", f"#!/bin/sh\nexit {0 if gpus else 1}\n")
        lines = "".join(f"echo 'GPU {i}: NVIDIA H200 (UUID: GPU-{i})'\n" for i in range(gpus))
        self.program(self.bin / "nvidia-smi", "#!/bin/sh\n" + lines)
        if mps:
            self.program(self.bin / "nvidia-cuda-mps-control", MPS)

    def run_script(self, *arguments, code=0, **environment):
        self.told.write_text("")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_MPS")}
        run = subprocess.run(["scripts/test", *arguments], cwd=self.tree, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
                             env={**inherited, "PATH": f"{self.bin}:{os.environ['PATH']}", "TOLD": str(self.told),
                                  "STUBS": str(self.stubs), "TMPDIR": str(self.temporary), **environment})
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        self.assertEqual(list(self.temporary.iterdir()), [], "a folder is left behind")
        return run.stdout, run.stderr

    def calls(self, name):
        return [line for line in self.told.read_text().splitlines() if line.startswith(name + " ")]

    def expect_python_on(self, *devices):
        self.assertEqual(self.calls("Python's"), [f"Python's tensors on {device}" for device in devices])

    def test_without_a_gpu(self):
        self.machine(0)
        _, errors = self.run_script()
        self.assertIn("no GPU found", errors)
        ctests = self.calls("ctest")
        self.assertEqual(len(ctests), 1)
        self.assertIn("--test-dir build -LE ^gpu$ ", ctests[0])
        self.assertEqual(self.calls("nvidia-cuda-mps-control"), [])
        self.expect_python_on("cpu")

    def test_with_several(self):
        self.machine(4)
        self.run_script()
        ctests = self.calls("ctest")
        self.assertEqual(len(ctests), 1)
        self.assertNotIn("-L", ctests[0])
        self.assertEqual(self.calls("nvidia-cuda-mps-control"), [])
        self.expect_python_on("cpu", "cuda")

    def test_with_one_mps_is_started_used_and_ended(self):
        self.machine(1)
        self.run_script()
        first, second = self.calls("ctest")
        self.assertIn("--test-dir build -LE ^mps$", first)
        self.assertIn("[none]", first, "threads of one process run without MPS")
        self.assertIn("-L ^mps$", second)
        on_cpu, on_gpu, killed = self.calls("test-python")
        pipes = [re.search(r"\[(.*)\]$", line)[1] for line in (second, on_gpu)]
        self.assertNotEqual(*pipes)
        for pipe in pipes:
            self.assertTrue(pipe.startswith(str(self.temporary)), pipe)
        self.assertEqual(self.calls("nvidia-cuda-mps-control"),
                         [f"nvidia-cuda-mps-control {word} [{pipe}]" for pipe in pipes for word in ("-d", "")])
        self.assertEqual(self.calls("mps"), ["mps is told to quit"] * 2)
        for line in (on_cpu, killed):
            self.assertIn("[none]", line)
        self.assertIn("-k killed", killed)
        self.expect_python_on("cpu", "cuda", "cuda")

    def test_skipped_tests_are_counted_and_named(self):
        self.machine(1)
        out, _ = self.run_script()
        self.assertTrue(out.endswith("""5 skipped:
  gpu_run_test: GpuRun.test_a: 4 GPUs wanted, 1 found
  gpu_run_test: GpuRun.test_b: 2 GPUs wanted, 1 found
  gpu_sharing_test: GpuSharing.Waits: tests skip copies then
  gpu_hosts_test, all of it: 4 GPUs wanted, 1 found
  gpu_mps_process_test, all of it: no MPS runs
"""), out)

    def test_failures_do_not_stop_it(self):
        self.machine(1)
        (self.stubs / "ctest_code").write_text("8")
        out, _ = self.run_script(code=8)
        self.assertEqual(len(self.calls("ctest")), 2)
        self.assertEqual(self.calls("mps"), ["mps is told to quit"] * 2)
        self.expect_python_on("cpu", "cuda", "cuda")
        self.assertIn("5 skipped:", out)

    def test_failures_of_the_python_package_count(self):
        self.machine(0)
        self.program(self.tree / "scripts/test-python", PYTHON + "exit 1\n")
        self.run_script(code=1)

    def test_failures_of_the_python_package_on_gpus_count(self):
        self.program(self.tree / "scripts/test-python", PYTHON + "[[ ${IMBREX_TEST_DEVICE-cpu} == cpu ]]\n")
        for gpus in (1, 4):
            self.machine(gpus)
            self.run_script(code=1)

    def expect_without_mps(self, *says):
        out, errors = self.run_script()
        for text in (*says, "ranks that share the GPU ran by time slices only"):
            self.assertIn(text, errors)
        last = self.calls("ctest")[-1]
        self.assertIn("-L ^mps$", last)
        self.assertIn("[none]", last)
        self.assertIn("gpu_mps_process_test, all of it", out)

    def test_without_the_control_program(self):
        self.machine(1, mps=False)
        self.expect_without_mps("no nvidia-cuda-mps-control")

    def test_an_mps_that_does_not_start(self):
        self.machine(1)
        (self.stubs / "mps_code").write_text("1")
        (self.stubs / "mps_says").write_text("Failed to start\nthe daemon")
        self.expect_without_mps("MPS does not start (Failed to start the daemon")

    def test_an_mps_that_serves_nobody(self):
        self.machine(1)
        (self.stubs / "doctor").write_text('{"gpus": [],\n "reason": "mps"}')
        self.expect_without_mps("MPS does not start")
        self.assertEqual(self.calls("mps"), ["mps is told to quit"] * 2)

    def test_one_that_runs_is_used_and_stays(self):
        self.machine(1)
        (self.stubs / "control").touch()
        self.run_script(CUDA_MPS_PIPE_DIRECTORY=str(self.stubs))
        self.assertEqual(self.calls("nvidia-cuda-mps-control"), [])
        self.assertIn(f"[{self.stubs}]", self.calls("ctest")[-1])

    def test_arguments_go_to_ctest(self):
        self.machine(1)
        self.run_script("-R", "plan_test")
        [line] = self.calls("ctest")
        self.assertIn("--test-dir build -R plan_test", line)
        self.assertEqual(self.calls("test-python"), [])


if __name__ == "__main__":
    unittest.main()
