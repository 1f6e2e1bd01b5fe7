#!/usr/bin/env python3
"""A kernel with a context and a put that it never makes takes at most 8 registers more than without: dormant_test.py OBJECT."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "execute"))
import spill_test

MOST = 8

found = {}
for image in spill_test.images(pathlib.Path(sys.argv[1]).read_bytes()):
    _, kernels = spill_test.kernels(image)
    for name, registers, local in kernels:
        for number, where in enumerate(("nowhere", "behind", "within", "widely")):
            if f"WhereE{number}" in name:
                found[where] = registers
                if local:
                    sys.exit(f"dormant_test: {local} bytes of local memory with the put {where}")
if len(found) != 4:
    sys.exit(f"dormant_test: found {found}, not four kernels")
print("registers with a put", ", ".join(f"{where}: {registers}" for where, registers in found.items()))
more = {where: registers - found["nowhere"] for where, registers in found.items()}
worst = max(more["behind"], more["within"])
if worst > MOST:
    sys.exit(f"dormant_test: a put that is never made takes {worst} registers, more than {MOST}")
if more["widely"] <= MOST:
    sys.exit("dormant_test: eight loads under way take no registers: what is compared here cannot fail")
