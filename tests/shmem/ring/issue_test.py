#!/usr/bin/env python3
"""What a put to a ring costs a kernel, as one descriptor and with every field: stores, bytes, loads, instructions and registers in
SASS; and that what a block wrote comes before the descriptor that tells of it.

usage: issue_test.py CUOBJDUMP OBJECT      prints a table; exits 1 where a descriptor is not one store, or saves nothing
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "mlx5"))
import builders_test  # noqa: E402


def faults_of(found):
    one, all_fields = found["put_descriptor"], found["put_fields"]
    expected = [(one, "put_descriptor", 1, 16), (all_fields, "put_fields", 4, 64)]
    faults = [f"{name}: {cost['stores']} stores of {cost['bytes']} bytes, not {stores} of {size}"
              for cost, name, stores, size in expected if (cost["stores"], cost["bytes"]) != (stores, size)]  # fmt: skip
    faults += [f"put_descriptor: {one[what]} {what}, put_fields has {all_fields[what]}: a template is to save some"
               for what in ("instructions", "registers", "loads") if one[what] >= all_fields[what]]  # fmt: skip
    if found["put_registered"]["fences"] == 0:
        faults.append("put_registered: no fence before its descriptor: the host may copy what its block has not written yet")
    return faults


if __name__ == "__main__":
    # Besides the slots: how far the ring has come.
    sys.exit(builders_test.main(sys.argv, faults_of, {"stores": 1, "bytes": 4}))
