#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure what the time model of `memplan plan` needs of a card, and what it is judged against.

  steptime.py rates > CARD-rates.jsonl             operators one at a time, over shapes
  steptime.py steps SPECS > CARD-steptimes.jsonl   training steps of run specs, as measure.py reads them

A line of `rates` is {"op", shape and type, "s": seconds of one call on the device}. Calls are captured in a CUDA graph where that
works, so that the time between launches is left out; `host_s` instead of `s` is time of the host. A line of `steps` has
`phase_s`, lists of seconds of forward, backward and optimizer with the device waited for after each; `step_s`, seconds of steps
waited for as a whole; `free_s`, seconds of each of several steps that nothing waits for. With --kernels FILE, the device's
kernels of one step by operator and shapes go there.
"""
import argparse
import contextlib
import gc
import json
import os
import signal
import statistics
import sys
import tempfile
import time

import measure

# ---- rates of single operators ----

TOKENS = (1024, 4096, 16384)
WIDTHS = ((768, 768), (768, 3072), (1024, 4096), (1280, 5120), (1600, 4800), (2048, 512), (2048, 2048), (2048, 8192), (4096, 4096),
          (4096, 11008))
HEADS = ((768, 50257), (1024, 50257), (1024, 30522), (2048, 32000), (2048, 128256), (896, 151936), (1024, 50304))
FP32_WIDTHS = ((768, 3072), (1024, 1024), (2048, 2048), (2048, 8192), (1024, 50257), (768, 30522))
BATCHED = ((96, 128, 64), (96, 512, 64), (64, 1024, 64), (32, 2048, 128), (50, 1024, 64), (96, 333, 64))
ATTENTION = ((32, 12, 128, 64), (16, 16, 512, 64), (8, 12, 1024, 64), (8, 16, 384, 64), (4, 16, 1024, 128), (2, 32, 2048, 64), (4, 16, 2048, 128),
             (1, 32, 4096, 128), (2, 25, 1024, 64), (1, 16, 8192, 64), (4, 20, 1000, 96))
MOVED_BYTES = (1 << 18, 1 << 21, 1 << 23, 1 << 25, 1 << 27, 1 << 29)


def timed(torch, call, n):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3 / n


def clock(torch, call, graph=True):
    """Median seconds of one call on the device, of calls back to back."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    once = timed(torch, call, 1)
    inner = max(3, min(50, int(4e-3 / max(once, 1e-6))))

    def many():
        for _ in range(inner):
            call()

    if not graph:
        return statistics.median(timed(torch, many, inner) for _ in range(4))
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        many()
    recorded.replay()
    torch.cuda.synchronize()
    return statistics.median(timed(torch, recorded.replay, inner) for _ in range(4))


def names(dtype):
    return str(dtype)[6:]


def products(torch, emit):
    """The three products of a linear layer: x W^T, the gradient of x, the gradient of W."""
    def linear(dtype, m, k, n, **more):
        x, w, g = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((m, k), (n, k), (m, n)))
        emit(op="mm", kind="nt", m=m, k=k, n=n, dtype=names(dtype), **more, call=lambda: torch.mm(x, w.t()))
        emit(op="mm", kind="nn", m=m, k=n, n=k, dtype=names(dtype), **more, call=lambda: torch.mm(g, w))
        emit(op="mm", kind="tn", m=n, k=m, n=k, dtype=names(dtype), **more, call=lambda: torch.mm(g.t(), x))

    for m in TOKENS:
        for k, n in WIDTHS:
            linear(torch.bfloat16, m, k, n)
    for m in (2048, 8192):
        for k, n in HEADS:
            linear(torch.bfloat16, m, k, n)
    for m in (512, 2048, 8192):
        for k, n in FP32_WIDTHS:
            if m * n < 1 << 28:
                linear(torch.float32, m, k, n)
    torch.backends.cuda.matmul.allow_tf32 = True
    for k, n in ((768, 3072), (2048, 8192), (1024, 50257)):
        linear(torch.float32, 4096, k, n, tf32=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in (torch.bfloat16, torch.float32):
        for b, s, d in BATCHED:
            q, p = torch.randn(b, s, d, device="cuda", dtype=dtype), torch.randn(b, s, s, device="cuda", dtype=dtype)
            emit(op="bmm", kind="scores", b=b, m=s, k=d, n=s, dtype=names(dtype), call=lambda: torch.bmm(q, q.transpose(1, 2)))
            emit(op="bmm", kind="mix", b=b, m=s, k=s, n=d, dtype=names(dtype), call=lambda: torch.bmm(p, q))
            emit(op="bmm", kind="turned", b=b, m=s, k=s, n=d, dtype=names(dtype), call=lambda: torch.bmm(p.transpose(1, 2), q))


def attentions(torch, emit):
    attend = torch.nn.functional.scaled_dot_product_attention

    def both(dtype, batch, heads, seq, dim, causal, dropout, kv_heads):
        q, k, v = (torch.randn(batch, seq, n, dim, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_() for n in (heads, kv_heads, kv_heads))
        shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq": seq, "dim": dim, "dtype": names(dtype), "causal": causal,
                 "dropout": dropout}

        def call():
            return attend(q, k, v, is_causal=causal, dropout_p=dropout, enable_gqa=kv_heads != heads)

        emit(op="attention", **shape, call=call, graph=not dropout)
        out = call()
        grad = torch.randn_like(out)
        emit(op="attention_backward", **shape, graph=False,
             call=lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))

    for batch, heads, seq, dim in ATTENTION:
        both(torch.bfloat16, batch, heads, seq, dim, True, 0.0, heads)
        if seq <= 2048:
            both(torch.float32, batch, heads, seq, dim, True, 0.0, heads)
        if seq in (512, 1024) and dim == 64:
            both(torch.bfloat16, batch, heads, seq, dim, False, 0.0, heads)
            both(torch.bfloat16, batch, heads, seq, dim, True, 0.1, heads)
            both(torch.float32, batch, heads, seq, dim, False, 0.1, heads)
        if heads % 4 == 0 and seq >= 1024:
            both(torch.bfloat16, batch, heads, seq, dim, True, 0.0, heads // 4)


def movers(torch, emit):
    functional = torch.nn.functional
    for size in MOVED_BYTES:
        for dtype in (torch.bfloat16, torch.float32):
            width = 2 if dtype is torch.bfloat16 else 4
            x = torch.randn(size // width, device="cuda", dtype=dtype)
            other = torch.bfloat16 if width == 4 else torch.float32
            rows = x.view(-1, 2048 if size >= 1 << 21 else 256)
            tall = x.view(-1, 4, rows.shape[1] // 4)
            weight = torch.ones(rows.shape[1], device="cuda", dtype=dtype)
            y = torch.randn_like(x).view_as(rows)
            mean, rstd = (torch.ones(rows.shape[0], 1, device="cuda") for _ in range(2))
            aten = torch.ops.aten
            cases = {
                "copy": lambda: x.clone(), "cast": lambda: x.to(other), "add": lambda: x + x, "add_mixed": lambda: x + y.view(-1).to(other),
                "add_": lambda: x.add_(x), "mul": lambda: x * x, "mul_number": lambda: x * 0.5, "mul_row": lambda: rows * weight,
                "mul_column": lambda: rows * mean.to(dtype), "pow": lambda: x.pow(2), "pow3": lambda: x.pow(3.0), "tanh": lambda: x.tanh(), "neg": lambda: -x,
                "tanh_backward": lambda: aten.tanh_backward(x, x), "gelu": lambda: functional.gelu(x), "silu": lambda: functional.silu(x),
                "gelu_backward": lambda: aten.gelu_backward(x, x), "silu_backward": lambda: aten.silu_backward(x, x),
                "layer_norm": lambda: functional.layer_norm(rows, rows.shape[1:], weight, weight),
                "layer_norm_backward": lambda: aten.native_layer_norm_backward(y, rows, [rows.shape[1]], mean, rstd, weight, weight,
                                                                               [True, True, True]),
                "softmax": lambda: torch.softmax(rows, -1), "softmax_backward": lambda: aten._softmax_backward_data(y, rows, -1, dtype),
                "log_softmax": lambda: torch.log_softmax(rows, -1),
                "log_softmax_backward": lambda: aten._log_softmax_backward_data(y, rows, -1, dtype),
                "mean_last": lambda: rows.mean(-1, keepdim=True), "sum_rows": lambda: rows.sum(0), "sum_last": lambda: rows.sum(-1, keepdim=True),
                "cat": lambda: torch.cat((rows[:, 1:], rows[:, :1]), -1), "cat_half": lambda: torch.cat((-rows[:, 128:], rows[:, :128]), -1),
                "transpose_heads": lambda: tall.transpose(0, 1).contiguous(), "transpose_copy": lambda: rows.t().contiguous(),
                "zero": lambda: x.zero_(), "slice_add": lambda: rows[:, :128] + rows[:, -128:],
                "where": lambda: torch.where(rows > 0, rows, y),
                "dropout": lambda: functional.dropout(x, 0.1),
            }
            for name, call in cases.items():
                emit(op=name, bytes=size, dtype=names(dtype), call=call, graph=name != "dropout")
    for n, vocabulary in ((2048, 50257), (8192, 32000), (8192, 50257), (2048, 151936), (4096, 30522)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(n, vocabulary, device="cuda", dtype=dtype)
            target = torch.randint(0, vocabulary, (n,), device="cuda")
            one = torch.ones((), device="cuda")
            aten = torch.ops.aten
            shape = {"rows": n, "classes": vocabulary, "dtype": names(dtype)}
            emit(op="log_softmax_vocabulary", **shape, call=lambda: torch.log_softmax(x, -1))
            emit(op="log_softmax_backward_vocabulary", **shape, call=lambda: aten._log_softmax_backward_data(x, x, -1, dtype))
            emit(op="nll_backward_vocabulary", **shape,
                 call=lambda: aten.nll_loss_backward(one.to(dtype), x, target, None, 1, -100, torch.ones((), device="cuda", dtype=dtype)))
    for n, vocabulary, width in ((2048, 50257, 768), (8192, 32000, 2048), (4096, 151936, 896), (8192, 30522, 1024), (8192, 50257, 1280)):
        for dtype in (torch.float32, torch.bfloat16):
            table = torch.randn(vocabulary, width, device="cuda", dtype=dtype)
            ids = torch.randint(0, vocabulary, (n,), device="cuda")
            grad = torch.randn(n, width, device="cuda", dtype=dtype)
            shape = {"rows": n, "vocabulary": vocabulary, "width": width, "dtype": names(dtype)}
            emit(op="embedding", **shape, call=lambda: functional.embedding(ids, table))
            emit(op="embedding_backward", **shape, graph=False,
                 call=lambda: torch.ops.aten.embedding_dense_backward(grad, ids, vocabulary, -1, False))


def optimizers(torch, emit):
    makers = {
        "adamw-foreach": lambda p: torch.optim.AdamW(p), "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
        "adamw-forloop": lambda p: torch.optim.AdamW(p, foreach=False), "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
        "sgd-momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9), "adafactor": lambda p: torch.optim.Adafactor(p),
    }
    for dtype in (torch.float32, torch.bfloat16):
        for count, rows, width in ((300, 4, 16), (64, 1024, 1024), (48, 2048, 4096)):
            for name, make in makers.items():
                parameters = [torch.nn.Parameter(torch.randn(rows, width, device="cuda", dtype=dtype)) for _ in range(count)]
                for p in parameters:
                    p.grad = torch.randn_like(p)
                optimizer = make(parameters)
                shape = {"kind": name, "parameters": count, "elements": count * rows * width, "dtype": names(dtype)}
                emit(op="optimizer", **shape, call=optimizer.step, graph=False)
                if rows == 4:
                    emit(op="optimizer", **shape, host=optimizer.step)
                if name == "sgd":
                    emit(op="clip_grad_norm", **shape, call=lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0), graph=False)


def transfers(torch, emit):
    for size in (1 << 14, 1 << 18, 1 << 21, 1 << 24, 1 << 26, 1 << 28):
        device = torch.empty(size, device="cuda", dtype=torch.uint8)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        emit(op="to_host", bytes=size, call=lambda: host.copy_(device, non_blocking=True), graph=False)
        emit(op="to_device", bytes=size, call=lambda: device.copy_(host, non_blocking=True), graph=False)

        def pack():
            torch.empty(size, dtype=torch.uint8, pin_memory=True).copy_(device)

        emit(op="save_on_cpu", bytes=size, host=pack)


def launches(torch, emit):
    x, big = torch.randn(64, device="cuda"), torch.randn(64, 64, device="cuda")
    emit(op="launch_add", host=lambda: torch.add(x, x))
    emit(op="launch_mm", host=lambda: torch.mm(big, big))
    emit(op="empty_kernel", call=lambda: x.add_(x))
    linear = torch.nn.Linear(64, 64, device="cuda")
    emit(op="launch_linear", host=lambda: linear(big))


def host_clock(torch, call):
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 20)
    return statistics.median(times)


def measure_rates(out, limit_s):
    import torch

    started = time.monotonic()

    def emit(call=None, host=None, graph=True, **row):
        try:
            if host:
                row["host_s"] = host_clock(torch, host)
            elif call:
                row["s"] = clock(torch, call, graph)
        except Exception as error:  # one operator that cannot be captured must not cost the others
            row["error"] = repr(error)[:200]
            with contextlib.suppress(Exception):
                torch.cuda.synchronize()
        print(json.dumps(row), file=out, flush=True)

    emit(op="device", name=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda)
    for part in (launches, products, attentions, movers, optimizers, transfers):
        try:
            part(torch, emit)
        except Exception as error:
            print(json.dumps({"op": part.__name__, "error": repr(error)[:300]}), file=out, flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        if time.monotonic() - started > limit_s:
            break


# ---- training steps ----


class Late(Exception):
    pass


def on_alarm(number, frame):
    raise Late("took too long")


class Trainer:
    """The loop of measure.py, without what it measures of memory."""

    def __init__(self, torch, run):
        self.torch, self.run = torch, run
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = bool(measure.get(run, "tf32"))
        self.model = measure.build_model(torch, run)
        self.optimizer = measure.make_optimizer(torch, run, [p for p in self.model.parameters() if p.requires_grad], self.model)
        self.amp = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(measure.get(run, "precision"))
        self.scaler = torch.amp.GradScaler("cuda") if self.amp is torch.float16 else None
        self.accumulate = measure.get(run, "accumulate")
        vocabulary = run["model"].get("vocab_size") or self.model.config.vocab_size
        self.ids = torch.randint(0, vocabulary, (run["batch"], run["seq"]), device="cuda")

    def forward(self):
        torch = self.torch
        with torch.autocast("cuda", dtype=self.amp or torch.bfloat16, enabled=self.amp is not None):
            self.out = self.model(input_ids=self.ids, labels=self.ids)
        self.loss = self.out.loss / self.accumulate

    def backward(self):
        (self.scaler.scale(self.loss) if self.scaler else self.loss).backward()

    def update(self):
        if measure.get(self.run, "clip_grad_norm"):
            if self.scaler:
                self.scaler.unscale_(self.optimizer)
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self.optimizer is not None:
            self.optimizer.step()
        self.model.zero_grad(set_to_none=True)

    def step(self, wait=lambda name: None):
        for _ in range(self.accumulate):
            self.forward()
            wait("forward")
            self.backward()
            wait("backward")
        self.update()
        wait("optimizer")


def seconds(torch, call):
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def phase_seconds(torch, trainer, phases):
    torch.cuda.synchronize()
    last, sums = [time.perf_counter()], {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}

    def wait(name):
        torch.cuda.synchronize()
        now = time.perf_counter()
        sums[name] += now - last[0]
        last[0] = now

    trainer.step(wait)
    for name, value in sums.items():
        phases.setdefault(name, []).append(round(value, 6))


def kernel_table(torch, trainer):
    """Kernels of one step: operator, shapes, types, and which outermost operator or node it ran in; summed up."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        trainer.step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as text:
            events = json.load(text)["traceEvents"]
    calls = sorted((e for e in events if e.get("cat") in ("cpu_op", "user_annotation") and e.get("ph") == "X"),
                   key=lambda e: (e["tid"], e["ts"], -e["dur"]))
    outermost, operators, open_until = {}, {}, {}
    for e in calls:
        top = open_until.get(e["tid"])
        if top is None or e["ts"] >= top["ts"] + top["dur"]:
            top = open_until[e["tid"]] = e
        identity = e["args"].get("External id")
        operators[identity], outermost[identity] = e, top["name"]
    table = {}
    for e in events:
        if e.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        identity = e["args"].get("External id")
        operator = operators.get(identity, {"name": "?", "args": {}})
        arguments = operator["args"]
        key = json.dumps([outermost.get(identity, "?"), operator["name"], arguments.get("Input Dims"), arguments.get("Input type"),
                          e["name"][:110]])
        entry = table.setdefault(key, [0, 0.0])
        entry[0] += 1
        entry[1] += e["dur"]
    kernels = [json.loads(key) + [n, round(us, 2)] for key, (n, us) in table.items()]
    device = sorted((e["ts"], e["dur"]) for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    span = device[-1][0] + device[-1][1] - device[0][0] if device else 0
    return {"kernels": kernels, "span_us": span, "busy_us": round(sum(d for _, d in device), 1), "n": len(device), "n_calls": len(calls)}


def time_run(torch, line, kernels):
    trainer = Trainer(torch, line["run"])
    first = seconds(torch, trainer.step)
    for _ in range(2):
        once = seconds(torch, trainer.step)
    n = max(4, min(15, int(0.8 / once)))
    phases, result = {}, {"first_s": round(first, 6)}
    for _ in range(n):
        phase_seconds(torch, trainer, phases)
    result["phase_s"] = phases
    result["step_s"] = [round(seconds(torch, trainer.step), 6) for _ in range(n)]

    def several():
        for _ in range(n):
            trainer.step()

    result["free_s"] = round(seconds(torch, several) / n, 6)
    result["allocated_bytes"] = torch.cuda.max_memory_allocated()
    if kernels and not line.get("sealed"):
        print(json.dumps({"id": line["id"], **kernel_table(torch, trainer)}), file=kernels, flush=True)
    return result


def measure_steps(specs, out, kernels, limit_s, each_s):
    import torch

    started = time.monotonic()
    lines = measure.read_lines(specs)
    signal.signal(signal.SIGALRM, on_alarm)
    for line in lines:
        if time.monotonic() - started > limit_s:
            print("no time left for %s" % line["id"], file=sys.stderr, flush=True)
            continue
        begun = time.monotonic()
        signal.alarm(each_s)
        try:
            result = {"measured": time_run(torch, line, kernels)}
        except Exception as error:
            result = {"error": repr(error)[:300]}
        signal.alarm(0)
        gc.collect()
        with contextlib.suppress(Exception):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        kept = {key: line[key] for key in ("id", "run", "sealed") if key in line}
        print(json.dumps({**kept, **result}), file=out, flush=True)
        print("%s: %s, %.1f s" % (line["id"], result.get("error", "done"), time.monotonic() - begun), file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("rates", "steps"))
    parser.add_argument("specs", nargs="?", help="for steps: JSON Lines file with run specs")
    parser.add_argument("-o", "--output", help="file to write (default: standard output)")
    parser.add_argument("--kernels", metavar="FILE", help="for steps: write the kernels of one step of each run there")
    parser.add_argument("--limit", type=int, default=600, metavar="SECONDS", help="begin nothing new after that (default: %(default)s)")
    parser.add_argument("--each", type=int, default=60, metavar="SECONDS", help="give up on a run after that (default: %(default)s)")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as files:
        out = files.enter_context(open(arguments.output, "w", encoding="utf-8")) if arguments.output else sys.stdout
        kernels = files.enter_context(open(arguments.kernels, "w", encoding="utf-8")) if arguments.kernels else None
        if arguments.what == "rates":
            measure_rates(out, arguments.limit)
        else:
            measure_steps(arguments.specs, out, kernels, arguments.limit, arguments.each)
    return 0


if __name__ == "__main__":
    sys.exit(main())
