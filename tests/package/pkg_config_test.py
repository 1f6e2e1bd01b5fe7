#!/usr/bin/env python3
"""A program in C++ and one in C are built by what pkg-config says of an installation, and run, also where it was moved.

usage: pkg_config_test.py PREFIX LIBDIR CXX CC PKG_CONFIG SANITIZERS; exits with 77 where there is no pkg-config
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(prefix, libdir, cxx, cc, pkg_config, sanitizers):
    if not pkg_config or not os.path.exists(pkg_config):
        print("no pkg-config here: what it says was not looked at")
        return 77
    with tempfile.TemporaryDirectory() as name:
        moved = Path(name, "moved here")
        for part in (libdir, "include"):
            shutil.copytree(Path(prefix, part), moved / part, symlinks=True)
        for where in (Path(prefix), moved):
            env = {**os.environ, "PKG_CONFIG_PATH": str(where / libdir / "pkgconfig")}

            def said(*arguments):
                done = subprocess.run([pkg_config, *arguments], env=env, capture_output=True, text=True, check=True)
                # A blank within a path is behind a backslash.
                return [word.replace("\0", " ") for word in done.stdout.replace("\\ ", "\0").split()]

            assert said("--modversion", "imbrex") == said("--modversion", "imbrex_shmem")
            assert "-limbrex_shmem" in said("--libs", "imbrex_shmem")
            more = [f"-fsanitize={sanitizers}"] if sanitizers else []
            for compiler, language, sources in ((cxx, ["-std=c++20"], ["consumer/main.cpp"]), (cc, [], ["c_consumer/infer.c", "c_consumer/main.c"])):
                program = Path(name, "program")
                subprocess.run([compiler, *language, *more, *said("--cflags", "imbrex"), *[HERE / source for source in sources], "-o", program,
                                *said("--libs", "imbrex")], check=True)
                subprocess.run([program], check=True, timeout=120, stdout=subprocess.DEVNULL)
    print("built and run by pkg-config, where it was installed and elsewhere")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
