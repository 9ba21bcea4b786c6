#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure what the time model of `memplan plan` needs of a card: rates of single operators, not of training steps.

Each line of the output is {"op", shape and type, "s": median seconds}: matrix products, attention forwards and backwards,
operators that only move memory, optimizer steps, transfers from and to the host, and the time between two launches.
Step times, against which the model is judged, are `step_s` in the output of measure.py.

    python3 validate/steptime.py > validate/results/CARD-rates.jsonl        about a minute and a half
"""
import argparse
import json
import statistics
import sys
import time

TOKENS = (512, 2048, 8192, 16384)
WIDTHS = ((768, 3072), (1024, 4096), (2048, 2048), (2048, 8192), (4096, 4096), (4096, 11008), (2048, 50257), (4096, 128256))
ATTENTION = ((4, 16, 2048, 128), (16, 16, 512, 64), (2, 32, 2048, 64), (1, 32, 4096, 128), (8, 12, 1024, 64))
MOVED_BYTES = (1 << 20, 1 << 24, 1 << 27, 1 << 30)


def clock(torch, call, repeats=7, inner=1):
    """Median seconds of one call on the device."""
    call()
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(inner):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3 / inner)
    return statistics.median(times)


def products(torch, emit):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for tf32 in (False, True) if dtype is torch.float32 else (False,):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            for m in TOKENS:
                for k, n in WIDTHS:
                    if dtype is torch.float32 and not tf32 and m * k * n > 1 << 38:
                        continue
                    a = torch.randn(m, k, device="cuda", dtype=dtype)
                    b = torch.randn(k, n, device="cuda", dtype=dtype)
                    emit(op="mm", m=m, k=k, n=n, dtype=str(dtype)[6:], tf32=tf32, s=clock(torch, lambda: torch.mm(a, b)))
                    del a, b
    torch.backends.cuda.matmul.allow_tf32 = False


def attentions(torch, emit):
    attend = torch.nn.functional.scaled_dot_product_attention
    for dtype in (torch.bfloat16, torch.float32):
        for batch, heads, seq, dim in ATTENTION:
            q, k, v = (torch.randn(batch, seq, heads, dim, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3))
            shape = {"batch": batch, "heads": heads, "seq": seq, "dim": dim, "dtype": str(dtype)[6:]}
            emit(op="attention", **shape, s=clock(torch, lambda: attend(q, k, v, is_causal=True)))
            out = attend(q, k, v, is_causal=True)
            grad = torch.randn_like(out)
            emit(op="attention_backward", **shape,
                 s=clock(torch, lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)))


def movers(torch, emit):
    for size in MOVED_BYTES:
        half = torch.randn(size // 2, device="cuda", dtype=torch.bfloat16)
        full = torch.randn(size // 4, device="cuda")
        rows = full.view(-1, 2048) if size >= 1 << 24 else full.view(-1, 256)
        weight = torch.ones(rows.shape[1], device="cuda")
        cases = {
            "copy": (2 * size, lambda: half.clone()),
            "to_float": (3 * size, lambda: half.float()),
            "add": (3 * size, lambda: full + full),
            "mul_number": (2 * size, lambda: full * 0.5),
            "tanh": (2 * size, lambda: torch.tanh(full)),
            "layer_norm": (2 * size, lambda: torch.nn.functional.layer_norm(rows, rows.shape[1:], weight, weight)),
            "log_softmax": (2 * size, lambda: torch.log_softmax(rows, -1)),
            "sum_rows": (size, lambda: rows.sum(0)),
            "zero": (size, lambda: full.zero_()),
        }
        for name, (moved, call) in cases.items():
            emit(op=name, bytes=moved, s=clock(torch, call))


def optimizers(torch, emit):
    for dtype in (torch.float32, torch.bfloat16):
        for name, settings in (("foreach", {"foreach": True}), ("fused", {"fused": True})):
            parameters = [torch.nn.Parameter(torch.randn(2048, 2048, device="cuda", dtype=dtype)) for _ in range(64)]
            for p in parameters:
                p.grad = torch.randn_like(p)
            optimizer = torch.optim.AdamW(parameters, **settings)
            emit(op="adamw", kind=name, elements=sum(p.numel() for p in parameters), dtype=str(dtype)[6:], s=clock(torch, optimizer.step))


def transfers(torch, emit):
    device = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    emit(op="to_host", bytes=1 << 28, s=clock(torch, lambda: host.copy_(device, non_blocking=True)))
    emit(op="to_device", bytes=1 << 28, s=clock(torch, lambda: device.copy_(host, non_blocking=True)))


def launches(torch, emit):
    """Seconds of the host between two launches: of plain operators, and of a forward and backward through small layers."""
    x = torch.randn(64, device="cuda")
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5000):
            torch.add(x, x)
        torch.cuda.synchronize()
        plain = (time.perf_counter() - start) / 5000
    emit(op="launch", s=plain)
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64, device="cuda") for _ in range(200)))
    y = torch.randn(8, 64, device="cuda")
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        layers(y).sum().backward()
        torch.cuda.synchronize()
        both = (time.perf_counter() - start) / 200
    emit(op="launch_linear_forward_backward", s=both)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.parse_args()
    import torch

    def emit(**row):
        print(json.dumps(row), flush=True)

    emit(op="device", name=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda)
    for part in (products, attentions, movers, optimizers, transfers, launches):
        part(torch, emit)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
