/* SPDX-License-Identifier: MIT */
/* The predicted history of a job in PyTorch's snapshot format: its memory viewer shows a job that never ran. */
#ifndef MP_REPORT_HISTORY_H
#define MP_REPORT_HISTORY_H

#include "plan/evaluate.h"

/** Simulate run and append the pickle to *out. Frames are the operation, its layer and the phase; time is the number of the event. */
enum memplan_status mp_report_snapshot(const struct mp_run *run, struct mp_strbuf *out, struct memplan_error *err);

#endif
