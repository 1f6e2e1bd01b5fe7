"""Structured mutations of plans: what an attacker, or a strategy with a defect, would change in a plan file."""

import copy
import json

EXTREMES = [0, 1, -1, 2, 3, 7, 2**15, 2**16 - 1, 2**16, 2**30, 2**31 - 1, 2**31, 2**31 + 64, 2**32 - 1, 2**32, 2**32 + 64,
            2**33 + 262148, 2**46, 2**53, 2**62, 2**63 - 1, -2**31, -2**63, 2**64 - 1]
NOT_NUMBERS = [None, True, "1", 1.5, 1e300, [], {}]
TEXTS = ["", "fused", "sequential", "decomposed", "auto", "bf16", "fp16", "fp32", "e4m3", "store", "push", "pull", "tile",
         "tail", "reserved", "row_major", "column_major", "fragment", "input", "output", "workspace", "compute", "copy",
         "library", "load", "epilogue", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "naive", "none", "row",
         "tensor", "send_receive", "\x1b[31mred\x1b[0m", "line\nimbrex: sound", "\x00", "\u202egnp", "n" * 5000]


def tasks_of(plan):
    return [(queue["tasks"], i) for rank in plan["ranks"] for queue in rank["queues"] for i in range(len(queue["tasks"]))]


def regions_of(task):
    """Every region of a task, as the lists that hold them."""
    for kind in ("tile", "transfer", "reduction", "collective", "block"):
        work = task.get(kind, {})
        for key in ("a", "b", "a_scale", "from", "to", "adds", "stores", "reads"):
            value = work.get(key)
            if not value:
                continue
            if isinstance(value[0], list):
                yield from value
            else:
                yield value


def leaves_of(value):
    """Every number, text and truth of a value, as (container, key)."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, (dict, list)):
            yield from leaves_of(item)
        else:
            yield value, key


class Mutator:
    """Each mutation changes the plan in place; one that finds nothing to change does nothing."""

    def __init__(self, random, partners):
        self.random, self.partners = random, partners

    def a_task(self, plan):
        tasks = tasks_of(plan)
        return self.random.choice(tasks) if tasks else (None, None)

    def number(self, value):
        near = isinstance(value, int) and not isinstance(value, bool) and self.random.random() < 0.6
        return value + self.random.choice([-64, -8, -2, -1, 1, 2, 8, 64]) if near else self.random.choice(EXTREMES)

    def any_leaf(self, plan):
        holder, key = self.random.choice(list(leaves_of(plan)))
        value = holder[key]
        if self.random.random() < 0.1:
            holder[key] = self.random.choice(NOT_NUMBERS)
        elif isinstance(value, str):
            holder[key] = self.random.choice(TEXTS)
        elif isinstance(value, bool):
            holder[key] = not value
        else:
            holder[key] = self.number(value)

    def region(self, plan):
        tasks, i = self.a_task(plan)
        regions = list(regions_of(tasks[i])) if tasks else []
        if regions:
            region = self.random.choice(regions)
            place = self.random.randrange(len(region))
            region[place] = self.number(region[place])

    def signal(self, plan):
        tasks, i = self.a_task(plan)
        if not tasks:
            return
        kind = self.random.choice(["waits", "posts"])
        entries = tasks[i][kind]
        change = self.random.random()
        if change < 0.25:
            entries.append([0, 1, "load", 0] if kind == "waits" else [0, 0])
        elif entries:
            at = self.random.randrange(len(entries))
            if change < 0.5:
                del entries[at]
            elif change < 0.65:
                entries.append(list(entries[at]))
            else:
                field = self.random.choice([0, 1, 3] if kind == "waits" else [0, 1])
                entries[at][field] = self.number(entries[at][field])

    def pitch(self, plan):
        """Wider or longer buffers: what lies in them does not change, the way to it does."""
        workspaces = [b for b in plan["buffers"] if b["role"] == "workspace"] or plan["buffers"]
        buffer = self.random.choice(workspaces)
        side = self.random.choice(["rows", "cols"])
        buffer[side] = self.random.choice([buffer[side] + 1, buffer[side] + 64, 2 * buffer[side], buffer[side] - 1, *EXTREMES])

    def by_way_of_a_workspace(self, plan):
        """An operand of a tile goes through a wide workspace first, as a sound plan may let it."""
        tasks, i = self.a_task(plan)
        if not tasks or "tile" not in tasks[i]:
            return
        operand = self.random.choice(["a", "b"])
        region = tasks[i]["tile"][operand]
        rank, source, rows, cols = region[0], plan["buffers"][region[1]], region[4], region[5]
        own = next(r for r, entry in enumerate(plan["ranks"]) for q in entry["queues"] if q["tasks"] is tasks)
        if rank != own or source["role"] != "input":
            return
        plan["buffers"].append({"name": "wide", "role": "workspace", "layout": "row_major", "type": source["type"], "rows": rows,
                                "cols": self.random.choice([cols, cols + 8, 2**20, 2**31 - 1, 2**31, 2**31 + cols, 2**32, 2**32 + cols]),
                                "copies": self.random.choice([1, 2])})
        signal = plan["ranks"][own]["signals"]
        plan["ranks"][own]["signals"] += 1
        wide = [rank, len(plan["buffers"]) - 1, 0, 0, rows, cols]
        tasks[i]["tile"][operand] = list(wide)
        tasks[i]["waits"].append([signal, 1, "load", 0])
        tasks.insert(i, {"transfer": {"from": region, "to": wide}, "waits": [], "posts": [[own, signal]]})

    def task(self, plan):
        tasks, i = self.a_task(plan)
        if not tasks:
            return
        change = self.random.randrange(5)
        if change == 0:
            del tasks[i]
        elif change == 1:
            tasks.insert(self.random.randrange(len(tasks) + 1), copy.deepcopy(tasks[i]))
        elif change == 2:
            tasks.insert(self.random.randrange(len(tasks)), tasks.pop(i))
        elif change == 3:
            others, at = self.a_task(plan)
            tasks[i], others[at] = others[at], tasks[i]
        else:
            others, _ = self.a_task(plan)
            others.append(tasks.pop(i))

    def collective(self, plan):
        """Who takes part, who sends to whom, and what it is."""
        all_tasks = [tasks[i] for tasks, i in tasks_of(plan) if "collective" in tasks[i]]
        if not all_tasks:
            return
        work, other = (self.random.choice(all_tasks)["collective"] for _ in range(2))
        change = self.random.choice(["swap", "kind", "group", "send_to", "receive_from", "ranks", "codec", "backend"])
        if change == "swap":
            key = self.random.choice(["from", "to", "group", "send_to", "receive_from"])
            work[key], other[key] = other[key], work[key]
        elif change == "kind":
            work["kind"] = self.random.choice(["send_receive", "all_to_all", "all_gather", "all_reduce", "reduce_scatter"])
        elif change == "ranks":
            work["ranks"] = self.random.choice([[], [0], [0, 0], [1, 0], [0, 1], [0, 2**31 - 1], [-1, 0], list(range(65)), [1]])
        elif change == "codec":
            work["codec"] = self.random.choice(["int8", "int4+int8", "", "?"])
        elif change == "backend":
            work["backend"] = self.random.choice(["imbrex", "nccl", ""])
        else:
            work[change] = self.random.choice([0, 1, 2, 3, -1, 64, *EXTREMES])

    def bags(self, plan):
        """What a task looks up, and the tables of the problem."""
        all_tasks = [tasks[i] for tasks, i in tasks_of(plan) if "block" in tasks[i]]
        if not all_tasks:
            return
        block, shards = self.random.choice(all_tasks)["block"], plan["problem"]["shards"]
        change = self.random.random()
        if change < 0.5:
            place = self.random.randrange(4)
            block["args"][place] = self.number(block["args"][place])
        elif change < 0.6:
            block["kind"] = self.random.choice(["", "bag", "tile", *TEXTS])
        elif change < 0.7:
            block["share"], block["shares"] = self.random.choice([0, 1, -1, *EXTREMES]), self.random.choice([1, 2, *EXTREMES])
        elif change < 0.8:
            shards.insert(self.random.randrange(len(shards)), list(self.random.choice(shards)))
        else:
            shard = self.random.choice(shards)
            place = self.random.randrange(len(shard))
            shard[place] = self.random.choice([0.5, 1e300, -0.0, -1e-300, 5e-324]) if place == 4 else self.number(shard[place])

    def pair(self, plan):
        """A mate more, less, or another; of another task, too."""
        tasks, i = self.a_task(plan)
        if not tasks:
            return
        change = self.random.random()
        if change < 0.3:
            tasks[i].pop("mate", None)
        elif change < 0.7:
            tasks[i]["mate"] = self.random.randint(1, max(1, min(i, 96)))
        else:
            tasks[i]["mate"] = self.number(tasks[i].get("mate", 0))

    def no_pairs(self, plan):
        for tasks, i in tasks_of(plan):
            tasks[i].pop("mate", None)

    def types(self, plan):
        kind = self.random.choice(["bf16", "fp16", "fp32", "e4m3"])
        if self.random.random() < 0.5:
            self.random.choice(plan["buffers"])["type"] = kind
        else:
            old = plan["problem"]["type"]
            plan["problem"]["type"] = kind
            for buffer in plan["buffers"]:
                if buffer["type"] == old:
                    buffer["type"] = kind

    def knob(self, plan):
        knob = self.random.choice(list(plan["knobs"]))
        value = plan["knobs"][knob]
        if isinstance(value, bool):
            plan["knobs"][knob] = not value
        else:
            plan["knobs"][knob] = self.random.choice(TEXTS) if isinstance(value, str) else self.number(value)

    def header(self, plan):
        part = self.random.choice(["problem", "strategy", "signal_copies", "name", "signals", "workers", "engine"])
        if part == "problem":
            field = self.random.choice(list(plan["problem"]))
            value = plan["problem"][field]
            plan["problem"][field] = self.random.choice(TEXTS) if isinstance(value, str) else self.number(value)
        elif part == "strategy":
            plan["strategy"] = self.random.choice(TEXTS)
        elif part == "signal_copies":
            plan["signal_copies"] = self.number(plan["signal_copies"])
        elif part == "name":
            self.random.choice(plan["buffers"])["name"] = self.random.choice(TEXTS)
        elif part == "signals":
            rank = self.random.choice(plan["ranks"])
            rank["signals"] = self.number(rank["signals"])
        else:
            queue = self.random.choice(self.random.choice(plan["ranks"])["queues"])
            queue[part] = self.number(queue["workers"]) if part == "workers" else self.random.choice(["compute", "copy", "library"])

    def list_of_plan(self, plan):
        """Buffers, ranks or queues come or go."""
        rank = self.random.choice(plan["ranks"])
        entries = self.random.choice([plan["buffers"], plan["ranks"], rank["queues"]])
        at = self.random.randrange(len(entries))
        if self.random.random() < 0.5:
            entries.insert(at, copy.deepcopy(entries[at]))
        else:
            del entries[at]

    def splice(self, plan):
        """A part of another plan."""
        other = copy.deepcopy(self.random.choice(self.partners))
        part = self.random.choice(["problem", "knobs", "buffers", "strategy", "signal_copies"])
        plan[part] = other[part]

    def scale(self, plan):
        """Every signal, or every count, of a kind is moved alike, which may leave the plan sound."""
        for rank in plan["ranks"]:
            rank["signals"] += 3
            for queue in rank["queues"]:
                for task in queue["tasks"]:
                    for wait in task["waits"]:
                        wait[0] += 3
                    for post in task["posts"]:
                        post[1] += 3

    def text(self, text):
        """The file's text itself."""
        change = self.random.randrange(7)
        at = self.random.randrange(len(text))
        if change == 0:
            return text[:at]
        if change == 1:
            return text[:at] + self.random.choice('{}[],:"0-.eE\\ \x00') + text[at:]
        if change == 2:
            return text[:at] + text[at + 1:]
        keys = [i for i in range(len(text)) if text.startswith('"', i) and text.find('": ', i, i + 20) > 0]
        if change == 3 and keys:  # a key twice
            key = self.random.choice(keys)
            name = text[key:text.index('"', key + 1) + 1]
            return text[:key] + f"{name}: {self.random.choice(['0', '1', '[]', text[:0] + 'null'])}, " + text[key:]
        digits = [i for i, c in enumerate(text) if c.isdigit()]
        place = self.random.choice(digits)
        if change == 4:
            return text[:place] + "1" * self.random.choice([19, 20, 400, 5000]) + text[place:]
        if change == 5:
            return text[:place] + self.random.choice(["1e999", "-0", "0x10", "1.0", "1e3", "NaN", "Infinity"]) + text[place + 1:]
        return text[:at] + "[" * 3000 + text[at:]

    KINDS = ["any_leaf", "region", "region", "signal", "signal", "pitch", "by_way_of_a_workspace", "by_way_of_a_workspace",
             "task", "collective", "bags", "pair", "types", "knob", "header", "list_of_plan", "splice", "scale"]

    def mutated(self, plan):
        """The text of a mutated plan, and the names of what was done."""
        plan = copy.deepcopy(plan)
        if self.random.random() < 0.5:  # pairs are wrong wherever tasks come or go, whatever else is
            self.no_pairs(plan)
        done = [self.random.choice(self.KINDS) for _ in range(self.random.choice([1, 1, 1, 2, 3]))]
        for kind in done:
            try:
                getattr(self, kind)(plan)
            except (IndexError, KeyError, TypeError, AttributeError, StopIteration, ValueError):
                pass  # an earlier mutation left nothing that this one could change
        text = json.dumps(plan)
        if self.random.random() < 0.1:
            done.append("text")
            text = self.text(text)
        return text, done
