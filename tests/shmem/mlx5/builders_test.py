#!/usr/bin/env python3
"""What a put costs a kernel, by each way to write its work request: stores, bytes, instructions and registers in SASS.

usage: builders_test.py CUOBJDUMP OBJECT      prints a table; exits 1 where a template does not save what it is for
"""

import re
import subprocess
import sys

FUNCTION = re.compile(r"Function : (\w+)")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]*)[^;]*;", re.M)
REGISTERS = re.compile(r"Function (\w+):\s+REG:(\d+)")
STORE = re.compile(r"ST(?:G|\.|$)")
SIZES = {"128": 16, "64": 8, "U16": 2, "U8": 1}
# Beside the request: how far the queue has come, the doorbell record, the doorbell.
OTHERS = {"stores": 3, "bytes": 16}


def bytes_of(opcode):
    return next((size for part in opcode.split(".")[1:] if (size := SIZES.get(part))), 4)


def costs(sass, usage, others):
    """By kernel: stores and bytes of the request, without `others`, instructions, loads, registers; and the GPU's fences before
    its first store of 16 bytes."""
    registers = {name: int(count) for name, count in REGISTERS.findall(usage)}
    found = {}
    parts = FUNCTION.split(sass)
    for name, text in zip(parts[1::2], parts[2::2]):
        opcodes = [one for one in INSTRUCTION.findall(text) if not one.startswith("NOP")]
        end = max((i for i, one in enumerate(opcodes) if one.startswith("EXIT")), default=len(opcodes) - 1)
        opcodes = opcodes[: end + 1]
        stores = [one for one in opcodes if STORE.match(one)]
        first = next((i for i, one in enumerate(opcodes) if STORE.match(one) and bytes_of(one) == 16), 0)
        found[name] = {
            "stores": len(stores) - others["stores"],
            "bytes": sum(map(bytes_of, stores)) - others["bytes"],
            "loads": sum(one.startswith("LDG") or one == "LD" or one.startswith("LD.") for one in opcodes),
            "instructions": len(opcodes),
            "registers": registers[name],
            "fences": sum(one.startswith("MEMBAR.") and one.endswith(".GPU") for one in opcodes[:first]),
        }
    return found


def faults_of(found):
    filled, whole, words = (found[name] for name in ("put_filled", "put_whole", "put_words"))
    expected = [(filled, "put_filled", 4, 24), (whole, "put_whole", 3, 48), (words, "put_words", 12, 48)]
    faults = [f"{name}: {one['stores']} stores of {one['bytes']} bytes, not {stores} of {size}"
              for one, name, stores, size in expected if (one["stores"], one["bytes"]) != (stores, size)]
    for name, other in (("put_whole", whole), ("put_words", words)):
        faults += [f"put_filled: {filled[what]} {what}, {name} has {other[what]}: a template is to save some"
                   for what in ("instructions", "registers", "loads") if filled[what] >= other[what]]
    return faults


def main(argv, faults_of=faults_of, others=OTHERS):
    cuobjdump, path = argv[1:]
    run = lambda option: subprocess.run([cuobjdump, option, path], check=True, capture_output=True, text=True).stdout
    found = costs(run("-sass"), run("-res-usage"), others)
    columns = ("stores", "bytes", "loads", "instructions", "registers")
    print(f"{'':16}" + "".join(f"{column:>14}" for column in columns))
    for name, cost in found.items():
        print(f"{name:16}" + "".join(f"{cost[column]:14}" for column in columns))
    faults = faults_of(found)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
