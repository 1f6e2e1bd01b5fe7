"""Pages of the Python API, made from the package's sources: what `__all__` names, with signatures and docstrings. Needs no torch."""

import ast
import inspect
import re

PACKAGE = "python/imbrex"
# page -> title, modules: a package's own names, or every public class and function that a module defines.
PAGES = {
    "numpy": ("imbrex", [("imbrex", "__init__.py"), ("imbrex.vllm", "vllm.py")]),
    "torch": ("imbrex.torch", [("imbrex.torch", "torch/__init__.py")]),
    "torch-nn": ("imbrex.torch.nn and imbrex.torch.parallel", [("imbrex.torch.nn", "torch/nn/__init__.py"),
                                                               ("imbrex.torch.parallel", "torch/parallel.py")]),
}


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def exported(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return ast.literal_eval(node.value)
    return None


def definition(folder, tree, name):
    """Where a package's name is defined: the class or function, followed through `from .module import name`."""
    own = [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name]
    if own:
        return own[-1]  # behind its overloads
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    path = (folder, *folder.parents)[node.level - 1] / (node.module.replace(".", "/") + ".py")
                    return definition(path.parent, parsed(path), alias.name)
    return None


def signature(node, method=False):
    """Without annotations, which the text under it makes up for; with defaults."""
    arguments = node.args
    plain = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    shown = [one.arg + (f"={ast.unparse(default)}" if default is not None else "") for one, default in zip(plain, defaults, strict=True)]
    shown = shown[1:] if method and plain and plain[0].arg in ("self", "cls") else shown
    if arguments.vararg:
        shown.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        shown.append("*")
    shown += [one.arg + (f"={ast.unparse(default)}" if default is not None else "")
              for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        shown.append("**" + arguments.kwarg.arg)
    return f"{node.name}({', '.join(shown)})"


def docstring(node):
    """Google's sections as Markdown: arguments become a list, examples code."""
    text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
    lines, section = [], None
    for line in text.split("\n"):
        head = re.fullmatch(r"(Args|Raises|Returns|Example|Attributes|Note):", line)
        if head:
            if section == "Example":
                lines.append("```")
            section = head.group(1)
            lines += ["", f"*{section}*", ""]
            if section == "Example":
                lines.append("```python")
        elif section == "Example":
            lines.append(line[4:] if line.startswith("    ") else line)
        elif section in ("Args", "Raises", "Attributes") and (item := re.match(r" {4}(\*{0,2}\w+): (.*)", line)):
            lines.append(f"- `{item.group(1)}`: {item.group(2)}")
        else:
            lines.append(line.strip() if section in (None, "Returns") else "  " + line.strip() if line.strip() else "")
    if section == "Example":
        while not lines[-1]:
            lines.pop()
        lines.append("```")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def is_public_method(node):
    return isinstance(node, ast.FunctionDef) and (not node.name.startswith("_")) and ast.get_docstring(node)


def section(module, node):
    lines = [f"### `{module}.{node.name}`", ""]
    if isinstance(node, ast.FunctionDef):
        return [*lines, "```python", signature(node), "```", "", docstring(node), ""]
    init = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if init is not None:
        lines += ["```python", signature(init, method=True).replace("__init__", node.name), "```", ""]
    lines += [docstring(node), ""]
    if init is not None and "Args:" in (ast.get_docstring(init) or ""):
        lines += [docstring(init), ""]
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
              and not one.target.id.startswith("_")]
    for index, one in enumerate(node.body):
        if one in fields:
            following = node.body[index + 1] if index + 1 < len(node.body) else None
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            what = " ".join(inspect.cleandoc(str(following.value.value)).split()) if is_text else ast.unparse(one.annotation)
            lines.append(f"- `{one.target.id}`: {what}")
    if fields:
        lines.append("")
    for one in node.body:
        if is_public_method(one):
            is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in one.decorator_list)
            shown = one.name if is_property else signature(one, method=True)
            lines += [f"#### `{node.name}.{one.name}`", "", "```python", shown, "```", "", docstring(one), ""]
    return lines


def is_module(folder, name):
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def names(root, module, file):
    """[(name, node)] that the page tells of."""
    path = root / PACKAGE / file
    tree = parsed(path)
    listed = exported(tree)
    if listed is None:
        listed = [node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))
                  and not node.name.startswith("_") and ast.get_docstring(node)]
    found = [(name, definition(path.parent, tree, name)) for name in listed]
    missing = [name for name, node in found if node is None and not is_module(path.parent, name)]
    if missing:
        raise SystemExit(f"docs: {module} exports {', '.join(missing)}, which no module beside it defines")
    return [(name, node) for name, node in found if node is not None]


def pages(root):
    """name -> text."""
    made = {}
    for page, (title, modules) in PAGES.items():
        lines = [f"# `{title}`" if " " not in title else f"# {title}", ""]
        for module, file in modules:
            text = ast.get_docstring(parsed(root / PACKAGE / file)) or ""
            lines += [re.split(r"\n\n?Example:", text)[0].strip(), ""]
            for _, node in names(root, module, file):
                lines += section(module, node)
        made[f"python/{page}.md"] = "\n".join(lines).rstrip() + "\n"
    return made
