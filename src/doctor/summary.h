/* SPDX-License-Identifier: MIT */
/*
 * Tables around a message: torch.cuda.memory_summary(), nvidia-smi.
 *
 * The summary's cells are cut to whole units (up to one MiB, from 768 MiB on, is lost; a GiB from
 * 768 GiB on), so its figures are for comparing, not for adding up to a byte.
 */
#ifndef MP_DOCTOR_SUMMARY_H
#define MP_DOCTOR_SUMMARY_H

#include "doctor/message.h"

/** The last memory_summary() table of a text: current and peak. */
struct mp_doctor_summary {
    bool found;
    size_t line; /* 0-based, of its heading */
    uint32_t device;
    struct mp_oom_bytes ooms, retries; /* counts */
    struct mp_oom_bytes allocated, allocated_peak;
    struct mp_oom_bytes requested, requested_peak; /* 2.0 and later */
    struct mp_oom_bytes reserved, reserved_peak;
    struct mp_oom_bytes non_releasable; /* free parts of segments in use: fragmentation */
};

void mp_doctor_summary_read(struct mp_doctor_summary *summary, const struct mp_doctor_text *text);

#define MP_SMI_MAX_GPUS 32

/** What nvidia-smi tables of a text show. */
struct mp_doctor_smi {
    bool found;
    size_t line;   /* 0-based, of the first row used */
    size_t n_gpus; /* rows "used / total" */
    struct {
        uint64_t used_bytes, total_bytes;
    } gpus[MP_SMI_MAX_GPUS];
    size_t n_processes; /* rows of the process table */
    /* Rows of GPU 0 that look like a bare context: at most 1400 MiB, at least two alike. */
    size_t n_small_on_gpu0;
    uint64_t small_bytes; /* of one of them */
};

void mp_doctor_smi_read(struct mp_doctor_smi *smi, const struct mp_doctor_text *text);

#endif
