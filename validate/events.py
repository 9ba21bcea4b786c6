# SPDX-License-Identifier: MIT
"""Allocator event logs of a PyTorch process: records them and writes them as text.

A log has one line per event, `ACTION ADDRESS BYTES STREAM [LABEL]`, and `mark NAME` lines where a phase ended. ACTION is
PyTorch's: alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, oom, snapshot.
Addresses are hexadecimal. BYTES of alloc and free lines is what was asked for, of segment lines the segment's size.
LABEL, with labels=True, is where the event comes from: the innermost Python frames as file:line:function, innermost
first and joined by `<`; without Python frames (the backward thread) `@NODE`, the autograd node that was running.
"""
import gzip
import json
import os

import torch

MAX_ENTRIES = 4_000_000
N_FRAMES = 4


class Recorder:
    """Records every allocator event between start() and write()."""

    def __init__(self, labels=False):
        self.labels = labels
        self.marks = []
        self.end = None

    def start(self):
        torch.cuda.memory._record_memory_history(
            enabled="all", context="all" if self.labels else None, stacks="python", max_entries=MAX_ENTRIES)

    def mark(self, name):
        """A phase ends here."""
        self.marks.append((name, len(self.events())))

    def stop(self):
        """What follows is not part of the log."""
        self.end = len(self.events())

    def watch(self, loss):
        """Label what backward of `loss` does with the names of its nodes. Nothing is kept alive by this."""
        set_label = getattr(torch.cuda.memory, "_set_memory_metadata", None)
        if not self.labels or set_label is None or loss.grad_fn is None:
            return
        seen, stack = set(), [loss.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            stack.extend(parent for parent, _ in node.next_functions)
            if node.name() != "torch::autograd::AccumulateGrad":
                node.register_prehook(_Label(set_label, node.name()))

    @staticmethod
    def events():
        return torch.cuda.memory._snapshot()["device_traces"][0]

    def write(self, path, header):
        """The log as gzipped text; `header` goes into the first line."""
        events, marks = self.events()[:self.end], list(self.marks)
        temporary = path + ".part"
        with gzip.open(temporary, "wt") as out:
            out.write("# config " + json.dumps(header) + "\n")
            for i, event in enumerate(events):
                while marks and marks[0][1] <= i:
                    out.write("mark %s\n" % marks.pop(0)[0])
                address = event.get("addr", event.get("device_free", 0))
                line = "%s %x %d %d" % (event["action"], address, event["size"], event["stream"])
                out.write((line + " " + label(event)).rstrip() + "\n")
            for name, _ in marks:
                out.write("mark %s\n" % name)
        os.replace(temporary, path)
        return len(events)


class _Label:
    """A hook before an autograd node that names it in the events that follow."""

    def __init__(self, set_label, name):
        self.set_label, self.name = set_label, name

    def __call__(self, gradients):
        self.set_label(self.name)


def label(event):
    frames = event.get("frames") or []
    if frames:
        return "<".join("%s:%d:%s" % (os.path.basename(f["filename"]), f["line"], f["name"]) for f in frames[:N_FRAMES])
    return "@" + event["user_metadata"] if event.get("user_metadata") else ""
