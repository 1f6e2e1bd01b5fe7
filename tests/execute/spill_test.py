#!/usr/bin/env python3
"""No kernel of the library and the applications, except those named below, keeps anything in local memory: what ptxas spills, and arrays that it cannot hold in registers.

Reads the code for every GPU that the objects in an archive hold: spill_test.py ARCHIVE CUDA_SOURCES, where CUDA_SOURCES
says how many sources brought at least one kernel each. Layouts: nvFatBinary's container, ELF, and .nv.info, whose
entries are (format, attribute, size, payload), as cuobjdump --dump-resource-usage reads them.
"""
import re
import struct
import sys

FATBIN, ELF_IMAGE = 0xBA55ED50, 2
REGCOUNT, FRAME_SIZE, SIZED = 0x2F, 0x11, 4  # attributes of functions; format: a size, then as many bytes
# Part of a kernel's name: how many bytes it may, and why.
EXEMPT = {
    "quantized_staged": (16, "20 warps leave 96 registers, 23 leave 80; what a role needs once a chunk may wait in memory"),
    "put_back_rows": (224, "two blocks of 512 threads an SM leave 64 registers, three 40; norms were measured so (docs/dev/derivations/signaled.md)"),
    "9embedding7look_upILNS_9TableRowsE3ELi8": (24, "int8, 8 columns a lane: eight rows in flight take scales and biases too, of 80 registers"),
    "5bandsILb1E": (528, "by rings: the transport's own words, and the eight templates, looked up by number; the host's thread takes longer"),
    "4ring9Transport": (96, "the solve by rings: the transport's own words, whose address goes into calls; the host's thread takes longer"),
    "6jacobi": (208, "arrays of the two fields and the four sides, looked up by number a few times a sweep"),
    "sum_tiles": (8, "a row of sums and two in flight take all of 80 registers, 128 where rows are long"),
    "9sm80_gemm": (8, "255 registers: a wait that looks who is late leaves one in memory"),
    "two_shot_all_reduceILNS_4TypeE2ELi8ELi2ELb1E": (16, "fp32, 8 ranks, 2 packets at once, with a report: the packets take 64 of 128 registers"),
}


def images(data):
    """The ELF images of all fatbins in the bytes of an archive, objects or programs."""
    magic = struct.pack("<I", FATBIN)
    at = data.find(magic)
    while at >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", data, at)
        step = 4
        if version == 1 and header == 16 and at + header + size <= len(data):
            entry, end = at + header, at + header + size
            step = header + size
            while entry < end:
                kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, entry)
                if kind == ELF_IMAGE:
                    image = data[entry + entry_header:entry + entry_header + entry_size]
                    if not image.startswith(b"\x7fELF"):
                        sys.exit("spill_test: a compressed image; compile with --compress-mode=default")
                    yield image
                entry += entry_header + entry_size
        at = data.find(magic, at + step)


def text(data, at):
    return data[at:data.index(b"\0", at)].decode()


def kernels(image):
    """The compute capability, in tenths, and (name, registers, bytes of local memory a thread) of each function."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    (flags,) = struct.unpack_from("<I", image, 0x30)
    count, names_index = struct.unpack_from("<HH", image, 0x3C)
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + 64 * i) for i in range(count)]
    names = {text(image, sections[names_index][4] + s[0]): s for s in sections}
    symbols = names[".symtab"]
    strings = sections[symbols[6]][4]
    found = {}
    info = names[".nv.info"]
    at, end = info[4], info[4] + info[5]
    while at < end:
        form, attribute, size = struct.unpack_from("<BBH", image, at)
        at += 4
        if form != SIZED:
            continue
        if attribute in (REGCOUNT, FRAME_SIZE):
            symbol, value = struct.unpack_from("<II", image, at)
            (name,) = struct.unpack_from("<I", image, symbols[4] + 24 * symbol)
            found.setdefault(text(image, strings + name), {})[attribute] = value
        at += size
    return flags >> 8 & 0xFF, [(name, f[REGCOUNT], f[FRAME_SIZE]) for name, f in found.items() if REGCOUNT in f and FRAME_SIZE in f]


def short(name):
    """What tells kernels apart in a mangled name, roughly."""
    return re.sub(r"_GLOBAL__N__\w{8}_\d+_|^_ZN6imbrex", "", name)[:140]


def main(path, sources):
    with open(path, "rb") as file:
        data = file.read()
    total, spilling = 0, []
    for image in images(data):
        gpu, found = kernels(image)
        for name, registers, local in found:
            total += 1
            reason = next((why for part, (most, why) in EXEMPT.items() if part in name and local <= most), None)
            if local > 0:
                print(f"sm_{gpu} {registers:3} registers {local:4} bytes of local memory {reason or 'NOT ALLOWED'}: {short(name)}")
            if local > 0 and reason is None:
                spilling.append(name)
    print(f"{total} kernels, {len(spilling)} of them with local memory that they should not have")
    if total < int(sources):
        sys.exit(f"spill_test: {sources} CUDA sources must bring at least as many kernels")
    sys.exit(1 if spilling else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
