"""Whether a split model is the whole one: its logits, and its loss while it is trained."""

import torch
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from device import Failed
from layers import Model
from ways import Alone, Functional, Imbrex, Reported


def tokens_of(shape, sequence, batch, step, device):
    """Each sequence counts up by a step of its own: the model has to look back to tell the next token."""
    generator = torch.Generator().manual_seed(step)
    begin, rise = (torch.randint(1, shape.vocabulary, (batch,), generator=generator) for _ in range(2))
    return ((begin + rise * torch.arange(sequence + 1)[:, None]) % shape.vocabulary).to(device)


def whole_model(shape, count, device, dtype):
    """The same on every rank."""
    torch.manual_seed(1)
    return Model(shape, count, Alone(), device, dtype)


def logits(shape, count, group, sequence, batch, device, clock):
    """
    Each way's logits in bf16 against those of the whole model in fp32, whose weights are the same.

    Returns {way: {"error": rms of the difference over that of the logits, "largest": the largest difference}}, and for the
    codec "bound": the largest error that it reports to have caused in a sum. A way that fails has "failed": why.
    """
    whole = whole_model(shape, count, device, torch.bfloat16)
    wide = Model(shape, count, Alone(), device, torch.float32).take(whole)
    tokens = tokens_of(shape, sequence, batch, 0, device)[:-1]
    found = {}

    def compared(way):
        model = Model(shape, count, way, device, torch.bfloat16).take(whole)
        mine, theirs = (tokens.chunk(group.size())[group.rank()], part) if way.split else (tokens, want)
        difference = model(mine).float() - theirs
        sums = torch.stack([difference.pow(2).sum(), theirs.pow(2).sum()])
        sums = functional.all_reduce(sums, "sum", group)
        largest = functional.all_reduce(difference.abs().max().reshape(1), "max", group).item()
        return {"error": (sums[0] / sums[1]).sqrt().item(), "largest": largest}

    with torch.no_grad():
        want = wide(tokens)
        part = want.chunk(group.size())[group.rank()]
        for way in (Functional(group, True), Imbrex(group, True), Functional(group, False), Imbrex(group, False),
                    Imbrex(group, False, "int8"), Reported(group, "int8")):
            name = way.name + (", split by sequence" if way.split else "")
            try:
                told = clock.together(lambda: compared(way))
            except Failed as failed:
                told = {"failed": str(failed)}
            if isinstance(way, Reported):
                found[name] |= {"bound": way.bound} if "failed" not in told else told
            else:
                found[name] = told
    return found


def trained(shape, count, way, sequence, batch, steps, device):
    """The loss of each step in fp32, as a tensor, and the parameters behind the last."""
    whole = whole_model(shape, count, device, torch.float32)
    model = whole if way is None else Model(shape, count, way, device, torch.float32).take(whole)
    ranks, rank = (1, 0) if way is None else (way.ranks, way.rank)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        tokens = tokens_of(shape, sequence, batch, step, device)
        given, next_ones = (one.chunk(ranks)[rank] for one in (tokens[:-1], tokens[1:]))
        loss = F.cross_entropy(model(given).flatten(0, 1), next_ones.flatten()) / ranks
        loss.backward()
        if way is not None:
            for copy in model.copies():  # each rank has seen its part of the sequence only
                copy.grad = functional.all_reduce(copy.grad, "sum", way.group)
        optimiser.step()
        optimiser.zero_grad()
        total = loss.detach().reshape(1)
        losses.append(total if way is None else functional.all_reduce(total, "sum", way.group))
    return torch.cat([one.reshape(1) for one in losses]), [one.detach() for one in model.parameters()]


def training(shape, count, group, sequence, batch, steps, device):
    """
    The loss of the whole model and of Imbrex', trained twice alike, with algorithms that give the same bits.

    Returns the last losses, their largest distance over all steps, as a share, and whether both runs have the same bits.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        want, _ = trained(shape, count, None, sequence, batch, steps, device)
        runs = [trained(shape, count, Imbrex(group, True), sequence, batch, steps, device) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(before)
    (first, parameters), (second, again) = runs
    same = torch.equal(first, second) and all(torch.equal(one, two) for one, two in zip(parameters, again))
    same = functional.all_reduce(torch.tensor([int(same)], device=device), "min", group).item() == 1
    return {"first": want[0].item(), "whole": want[-1].item(), "Imbrex": first[-1].item(),
            "distance": ((first - want).abs() / want.abs()).max().item(), "same bits": same}
