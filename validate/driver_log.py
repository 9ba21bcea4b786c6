#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""measure.py, with a log of what the driver was asked for beside every trace: DIR/ID.log.

  gcc -O1 -shared -fPIC -o driver_log.so driver_log.c -ldl
  LD_PRELOAD=./driver_log.so python3 driver_log.py specs.jsonl -o measured.jsonl --trace DIR

driver_log.c says what stands in it. Segments are in both, in the same order; so are marks.
"""
import ctypes
import os
import sys

import events
import measure

plain_child, plain_mark = measure.child, events.Recorder.mark


def log_mark(name):
    ctypes.CDLL(None).driver_log_mark(name.encode())


def child(connection, line, trace_path, labels):
    if trace_path:
        os.environ["DRIVER_LOG"] = trace_path.replace(".txt.gz", ".log")
    plain_child(connection, line, trace_path, labels)


def mark(recorder, name):
    log_mark(name)
    plain_mark(recorder, name)


if __name__ == "__main__":
    if not hasattr(ctypes.CDLL(None), "driver_log_mark"):
        sys.exit("driver_log.py: driver_log.so is not loaded: LD_PRELOAD=./driver_log.so")
    measure.child, events.Recorder.mark = child, mark
    sys.exit(measure.main())
