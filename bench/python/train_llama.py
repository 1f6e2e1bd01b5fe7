#!/usr/bin/env python3
"""
Trains a Llama of transformers with tensor parallelism, by torch's styles and by Imbrex', and compares the losses.

    torchrun --standalone --nproc-per-node 2 bench/python/train_llama.py [--device cuda]

Every way trains under autocast (bf16), with checkpoints of activations, and with a distributed checkpoint in the middle,
from which a new model and a new optimizer go on. Ways:

    torch       torch's styles of tensor parallelism
    reordered   the same, with the inner features of each MLP in another order: the same model with other orders of sums
    swapped     imbrex.torch.parallel in place of torch.distributed.tensor.parallel
    again       the same once more
    dropped_in  torch's styles in a model that torch.compile compiles, within imbrex.torch.drop_in()

Rank 0 prints the losses of each way and how far they are from torch's, beside how far torch's own are from each other.
Exits 1 unless Imbrex' ways keep within twice that, and two runs of the same way give the same bits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.distributed.tensor.parallel as torchs
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM

import imbrex.torch as it

BATCHES = 4  # that come again, so that there is something to learn
WAYS = ("torch", "reordered", "swapped", "again", "dropped_in")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help="features; Llama 3 8B has 4096")
    parser.add_argument("--inner", type=int, default=688, help="features within an MLP; Llama 3 8B has 14336")
    parser.add_argument("--heads", type=int, default=8, help="of attention; Llama 3 8B has 32")
    parser.add_argument("--kv-heads", type=int, default=4, help="of keys and values; Llama 3 8B has 8")
    parser.add_argument("--words", type=int, default=512, help="of the vocabulary; Llama 3 8B has 128256")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--rate", type=float, default=3e-4, help="of learning")
    parser.add_argument("--fp32", action="store_true", help="train without autocast")
    parser.add_argument("--ways", default=",".join(WAYS), help="ways to train, with commas")
    parser.add_argument("--json", type=Path, help="also write the losses to this file")
    return parser.parse_args()


def make(asked: argparse.Namespace, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=asked.hidden,
        intermediate_size=asked.inner,
        num_hidden_layers=asked.layers,
        num_attention_heads=asked.heads,
        num_key_value_heads=asked.kv_heads,
        vocab_size=asked.words,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(asked.device)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def reorder(model: LlamaForCausalLM) -> None:
    """Inner features of each MLP in another order, which changes nothing but orders of sums."""
    for layer in model.model.layers:
        mlp = layer.mlp
        order = torch.randperm(mlp.gate_proj.out_features, generator=torch.Generator().manual_seed(1))
        order = order.to(mlp.gate_proj.weight.device)
        with torch.no_grad():
            for one in (mlp.gate_proj, mlp.up_proj):
                one.weight.copy_(one.weight[order].clone())
            mlp.down_proj.weight.copy_(mlp.down_proj.weight[:, order].clone())


def split(model: LlamaForCausalLM, mesh: Any, styles: Any) -> LlamaForCausalLM:
    """By the plan of torch's tutorial, without its parallel sequence."""
    plan = {}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        plan[f"model.layers.*.{name}"] = styles.ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[f"model.layers.*.{name}"] = styles.RowwiseParallel()
    return styles.parallelize_module(model, mesh, plan)


def train(way: str, asked: argparse.Namespace, mesh: Any, folder: str) -> list[float]:
    """The loss of each step."""
    styles = it.parallel if way in ("swapped", "again") else torchs

    def begin(seed: int) -> tuple[Any, Any]:
        model = make(asked, seed)
        if way == "reordered":
            reorder(model)
        split(model, mesh, styles)
        # Parameters are torch's DTensors and tensors, which its loops over many tensors refuse on GPUs.
        return model, torch.optim.AdamW(model.parameters(), lr=asked.rate, foreach=False)

    model, optimizer = begin(0)
    losses = []
    with it.drop_in() if way == "dropped_in" else contextlib.nullcontext():
        run = torch.compile(model) if way == "dropped_in" else model
        for step in range(asked.steps):
            if step == asked.steps // 2:
                parts, moments = get_state_dict(model, optimizer)
                checkpoint.save({"model": parts, "optimizer": moments}, checkpoint_id=folder)
                model, optimizer = begin(1)
                parts, moments = get_state_dict(model, optimizer)
                held = {"model": parts, "optimizer": moments}
                checkpoint.load(held, checkpoint_id=folder)
                set_state_dict(model, optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"])
                run = torch.compile(model) if way == "dropped_in" else model
            generator = torch.Generator().manual_seed(step % BATCHES)
            tokens = torch.randint(asked.words, (asked.batch, asked.length), generator=generator).to(asked.device)
            with torch.autocast(asked.device, torch.bfloat16, enabled=not asked.fp32):
                loss = run(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def main() -> int:
    asked = arguments()
    if asked.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if asked.device == "cuda" else "gloo")
    mesh = init_device_mesh(asked.device, (dist.get_world_size(),))
    found: dict[str, list[float]] = {}
    calls: dict[str, dict[str, int]] = {}
    for way in asked.ways.split(","):
        shared = [tempfile.mkdtemp(prefix="imbrex-llama-")] if dist.get_rank() == 0 else [""]
        dist.broadcast_object_list(shared)
        torch._dynamo.reset()
        before = it.stats().calls
        found[way] = train(way, asked, mesh, shared[0])
        calls[way] = {name: count - before.get(name, 0) for name, count in it.stats().calls.items()}
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(shared[0])
            told = ", ".join(f"{name} {count}" for name, count in calls[way].items() if count) or "none"
            print(f"{way}: loss {found[way][0]:.6f} to {found[way][-1]:.6f}; calls of Imbrex: {told}", flush=True)
    code = judge(found) if dist.get_rank() == 0 else 0
    if asked.json and dist.get_rank() == 0:
        asked.json.write_text(
            json.dumps({"losses": found, "calls": calls, "arguments": {k: str(v) for k, v in vars(asked).items()}})
        )
    it.destroy()
    dist.destroy_process_group()
    return code


def judge(found: dict[str, list[float]]) -> int:
    """Says how far each way is from torch's, and whether that is too far: 1."""
    if "torch" not in found:
        return 0
    code = 0

    def apart(way: str) -> float:
        return max(abs(x - y) for x, y in zip(found[way], found["torch"], strict=True))

    for way in found:
        print(f"{way}: at most {apart(way):.2e} from torch's losses")
    for way in ("swapped", "again", "dropped_in"):
        if way in found and "reordered" in found and apart(way) > 2 * apart("reordered"):
            print(f"{way}: more than twice what another order of sums makes ({apart('reordered'):.2e})")
            code = 1
    if {"swapped", "again"} <= found.keys() and found["swapped"] != found["again"]:
        print("swapped, again: two runs differ")
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
