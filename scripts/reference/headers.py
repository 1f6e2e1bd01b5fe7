"""Pages of the C++ and C API, made from the public headers: each declaration with the comment above it."""

import re

INCLUDE = "include/imbrex"
# page -> title, headers. Every header of include/imbrex is on one page.
GROUPS = {
    "operators": ("Operators", ["imbrex.hpp", "ops.hpp", "operands.hpp", "options.hpp", "packed.hpp", "types.hpp"]),
    "collectives": ("Collectives and codecs", ["collectives.hpp", "codec.hpp"]),
    "embedding": ("Embedding tables", ["embedding.hpp", "tables.hpp"]),
    "world": ("Worlds, errors, environment", ["world.hpp", "error.hpp", "environment.hpp", "gpu.hpp", "version.hpp"]),
    "plans": ("Problems, plans, machines, executors", ["problem.hpp", "plan.hpp", "machine.hpp", "timeline.hpp", "advanced/execute.hpp"]),
    "files": ("Files and integers", ["file.hpp", "npy.hpp", "integers.hpp"]),
    "shmem": ("OpenSHMEM for C++ and kernels", [
        "shmem.hpp", "shmem/rings.hpp", "device/shmem.cuh", "device/shmem/context.hpp", "device/shmem/collectives.hpp", "device/shmem/group.hpp",
        "device/shmem/handle.hpp", "device/shmem/kernel.hpp", "device/shmem/operations.hpp", "device/shmem/load_store.hpp",
        "device/shmem/bulk.hpp", "device/shmem/words.hpp"]),
    "device": ("Memory order and signals in kernels", ["device/memory.hpp", "device/ordering.hpp", "device/protocol.hpp"]),
    "c": ("C", ["c.h", "c/infer.h"]),
    "shmem-names": ("OpenSHMEM's names in C", ["shmem.h"]),
}
HIDDEN = ("device/shmem/ring/",)  # a transport, which the library's own contexts choose

NAMESPACE = re.compile(r'(?:inline )?namespace ([\w:]*)\s*\{|extern "C" \{')
TYPE = re.compile(r"(?:template <.*?>\s*)?(?:typedef )?(struct|class|union|enum(?: class)?)\b(?:\s+(?:alignas\([^)]*\)|\[\[[^\]]*\]\])*\s*([\w:]+))?", re.S)
RULE = re.compile(r"^/\* -{20,} ?(.*?) ?-*\s*\*/$|^// -{20,} ?(.*)$")


def end_of(text, at, opening="{", closing="}"):
    """The place behind the bracket that closes the one at `at`; comments and strings are passed over."""
    depth = 0
    while at < len(text):
        if text.startswith("//", at):
            at = text.find("\n", at)
            if at < 0:
                return len(text)
        elif text.startswith("/*", at):
            at = text.find("*/", at) + 1
        elif text[at] in "\"'" and not (text[at] == "'" and text[at - 1].isalnum()):
            quote = text[at]
            at += 1
            while text[at] != quote:
                at += 2 if text[at] == "\\" else 1
        elif text[at] == opening:
            depth += 1
        elif text[at] == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return at


def statements(text):
    """Declarations and comments in order, each as it stands: [('comment' | 'code' | 'macro', text)]. Namespaces are entered."""
    at, found = 0, []
    while at < len(text):
        if text[at].isspace() or text[at] in "};":
            at += 1
        elif text.startswith(("//", "/*"), at):
            if text.startswith("/*", at):
                stop = text.find("*/", at) + 2
            else:
                stop = at
                while text.startswith("//", stop):
                    line = text.find("\n", stop)
                    stop = len(text) if line < 0 else line + 1
                    following = re.compile(r"[ \t]*").match(text, stop).end()
                    stop = following if text.startswith("//", following) else stop
            found.append(("comment", text[at:stop].strip()))
            at = stop
        elif text[at] == "#":
            stop = at
            while True:
                line = text.find("\n", stop)
                if line < 0 or text[line - 1] != "\\":
                    break
                stop = line + 1
            stop = len(text) if line < 0 else line
            found.append(("macro", text[at:stop]))
            at = stop
        elif match := NAMESPACE.match(text, at):
            if match.group(1) is not None and (not match.group(1) or "detail" in match.group(1)):
                at = end_of(text, match.end() - 1)
            else:
                at = match.end()
        else:
            stop = declaration_end(text, at)
            tail = re.compile(r"[ \t]*(///<[^\n]*(?:\n[ \t]*///<[^\n]*|\n[ \t]{8,}///[^\n]*)*)").match(text, stop)
            code = text[at:stop]
            found.append(("code", code + (" " + tail.group(1) if tail else "")))
            at = tail.end() if tail else stop
    return found


def declaration_end(text, at):
    is_type = TYPE.match(text, at) is not None
    while at < len(text):
        if text.startswith("//", at):
            at = text.find("\n", at)
        elif text.startswith("/*", at):
            at = text.find("*/", at) + 2
        elif text[at] == "(":
            at = end_of(text, at, "(", ")")
        elif text[at] == ";":
            return at + 1
        elif text[at] == "{":
            at = end_of(text, at)
            rest = re.compile(r"\s*;").match(text, at)
            if rest:
                return rest.end()
            if not is_type and not re.compile(r"\s*[,{]").match(text, at):
                return at
        else:
            at += 1
    return at


def without_bodies(code):
    """A function's declaration without what it does, also inside of types; types without their private parts."""
    if TYPE.match(code) and "{" in code:
        opening = code.index("{")
        head, inner = code[:opening + 1], code[opening + 1:end_of(code, opening) - 1]
        tail = code[end_of(code, opening):]
        inner = re.sub(r"^[ \t]*private:.*", "", inner, flags=re.S | re.M)
        parts, at = [], 0
        while at < len(inner):
            if inner[at].isspace():
                parts.append(inner[at])
                at += 1
            elif inner.startswith("//", at) or inner[at] == "#":
                stop = inner.find("\n", at)
                stop = len(inner) if stop < 0 else stop
                parts.append(inner[at:stop])
                at = stop
            elif match := re.compile(r"(public|protected):").match(inner, at):
                parts.append(match.group())
                at = match.end()
            elif head.startswith(("enum", "typedef enum")):
                parts.append(inner[at])
                at += 1
            else:
                stop = declaration_end(inner, at)
                parts.append(without_bodies(inner[at:stop]))
                at = stop
        return head + "".join(parts).rstrip() + ("\n" if "\n" in code else " ") + "}" + tail
    if "(" in code and not re.search(r"=\s*\{|^\s*(?:inline )?constexpr [^(]*=", code):
        close = end_of(code, code.index("("), "(", ")")
        body = re.compile(r"(?:\s*(?:const|noexcept|override|final|&|->\s*[\w:<>*& ]+))*(?:\s*:\s*[^{;]*(?:\{[^{}]*\}[^{;]*)*)?\s*\{").search(code, close)
        if body and body.start() == close and not re.match(r"\s*\{\s*\}\s*;", code[close:]):
            qualifiers = re.compile(r"(?:\s*(?:const\b|noexcept|override|->\s*[\w:<>*& ]+))*").match(code, close)
            return code[:close] + qualifiers.group().rstrip() + ";"
    return code


def name_of(kind, code):
    if kind == "macro":
        return re.match(r"#\s*define\s+(\w+)", code).group(1)
    match = TYPE.match(code)
    if match and "{" in code or match and code.rstrip().endswith(";") and "(" not in code:
        if match.group(2):
            return match.group(2)
        after = re.search(r"\}\s*(\w+)\s*;", code)
        return after.group(1) if after else None
    if using := re.match(r"(?:template <.*?>\s*)?using (\w+)", code, re.S):
        return using.group(1)
    plain = re.sub(r"template <[^{};]*?>\s*(?=[\w\[])", "", code, count=1, flags=re.S)
    plain = re.sub(r"requires [^\n]*\n", "", plain)
    if "(" in plain and not re.match(r"[^(]*=", plain):
        return re.search(r"(operator\W+|~?\w+)\s*\($", plain[:plain.index("(") + 1]).group(1)
    found = re.search(r"(\w+)\s*(?:\[[^\]]*\])?\s*(?:=|\{|;)", plain)
    return found.group(1) if found else None


def prose(comment):
    """What a comment says, as Markdown; what it indents by four or more stays code."""
    if comment.startswith("/*"):
        lines = re.sub(r"^/\*+ ?|\s*\*/$", "", comment).split("\n")
        lines = [line[3:] if line.startswith("   ") else line for line in lines]
    else:
        lines = [re.sub(r"^\s*//[/!]? ?", "", line) for line in comment.split("\n")]
    return "\n".join(line.replace("<", "\\<") if "`" not in line and not line.startswith("    ") else line for line in lines).strip("\n")


def header_section(root, header):
    """Its Markdown and the names that it has headings for."""
    text = (root / INCLUDE / header).read_text(encoding="utf-8")
    found = statements(text)
    lines, names = [f"## `imbrex/{header}`", ""], []
    if found and found[0][0] == "comment":
        lines += [prose(found.pop(0)[1]), ""]
    above, last = None, None
    for kind, code in found:
        if kind == "comment":
            rule = RULE.match(code)
            if rule:
                lines += [f"*{(rule.group(1) or rule.group(2)).strip(' -')}*", ""]
                above = None
            else:
                above = f"{above}\n{code}" if above and above.startswith("///") and code.startswith("///") else code
            continue
        if kind == "macro" and not re.match(r"#\s*define\s+(IMBREX|SHMEM)_\w+", code):
            continue
        name = name_of(kind, code)
        if kind == "macro" and (above is None or name.endswith("_H")):
            continue
        if re.match(r"(template <[^;]*>\s*)?(struct|class) [\w:]+;$", code) and above is None:
            continue  # declared only
        if re.match(r"static_assert|IMBREX_\w+\(|friend|using namespace", code) and not header.endswith("shmem.h"):
            above = None
            continue
        if re.match(r"[^(]*\w(?:<\w+>)?::~?\w+\s*\(", code) and not re.match(r"[^(]*\s[\w:]+<?[\w:, ]*>?[&*]? +\w+\(", code):
            above = None
            continue  # defined behind its class
        shown = without_bodies(re.sub(r"^#.*\n|^_Noreturn\n", "", code, flags=re.M) if kind == "code" and not TYPE.match(code) else code)
        if above is None and last is not None and (name == last or header.endswith((".h",))) and lines[-2] == "```":
            lines[-2:] = [shown, "```", ""]
        else:
            if name and name not in names:
                lines += [f"### `{name}`", ""]
            if above:
                lines += [prose(above), ""]
            lines += ["```cpp", shown, "```", ""]
        if name:
            names.append(name)
        above, last = None, name
    return "\n".join(lines).rstrip() + "\n", names


def headers(root):
    found = sorted(str(path.relative_to(root / INCLUDE)) for path in (root / INCLUDE).rglob("*") if path.is_file())
    return [header for header in found if not header.startswith(HIDDEN)]


def listed_headers(root):
    """GROUPS, with what else device/shmem/ holds on the page of kernels."""
    title, listed = GROUPS["shmem"]
    others = [header for header in headers(root) if header.startswith("device/shmem/") and header not in listed]
    return {**GROUPS, "shmem": (title, listed + others)}


def pages(root):
    """name -> text. Fails where a header is on no page."""
    groups = listed_headers(root)
    grouped = [header for _, listed in groups.values() for header in listed]
    left = sorted(set(headers(root)) - set(grouped))
    gone = sorted(set(grouped) - set(headers(root)))
    if left or gone:
        raise SystemExit(f"docs: public headers on no page: {', '.join(left) or 'none'}; on a page but not there: {', '.join(gone) or 'none'}"
                         " (GROUPS in scripts/reference/headers.py)")
    made = {}
    for page, (title, listed) in groups.items():
        sections = [header_section(root, header)[0] for header in listed]
        made[f"cpp/{page}.md"] = f"# {title}\n\n" + "\n".join(sections)
    return made
