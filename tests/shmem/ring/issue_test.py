#!/usr/bin/env python3
"""What a put to a ring costs a kernel, as one descriptor and with every field: stores, bytes, loads, instructions and registers in
SASS.

usage: issue_test.py CUOBJDUMP OBJECT      prints a table; exits 1 where a descriptor is not one store, or saves nothing
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "mlx5"))
import builders_test  # noqa: E402

COLUMNS = ("stores", "bytes", "loads", "instructions", "registers")


def faults_of(found):
    one, all_fields = found["put_descriptor"], found["put_fields"]
    expected = [(one, "put_descriptor", 1, 16), (all_fields, "put_fields", 4, 64)]
    faults = [f"{name}: {cost['stores']} stores of {cost['bytes']} bytes, not {stores} of {size}"
              for cost, name, stores, size in expected if (cost["stores"], cost["bytes"]) != (stores, size)]  # fmt: skip
    faults += [f"put_descriptor: {one[what]} {what}, put_fields has {all_fields[what]}: a template is to save some"
               for what in ("instructions", "registers", "loads") if one[what] >= all_fields[what]]  # fmt: skip
    return faults


def main(argv):
    cuobjdump, path = argv[1:]
    run = lambda option: subprocess.run([cuobjdump, option, path], check=True, capture_output=True, text=True).stdout
    # Beside the slots: how far the ring has come.
    found = builders_test.costs(run("-sass"), run("-res-usage"), {"stores": 1, "bytes": 4})
    print(f"{'':16}" + "".join(f"{column:>14}" for column in COLUMNS))
    for name, cost in found.items():
        print(f"{name:16}" + "".join(f"{cost[column]:14}" for column in COLUMNS))
    faults = faults_of(found)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
