/* SPDX-License-Identifier: MIT */
/* A framework profile: the versions whose behaviour is mirrored, and its defaults, as data
 * (configs/frameworks/NAME.json). */
#ifndef MP_PROFILE_H
#define MP_PROFILE_H

#include "base/arena.h"
#include "base/error.h"

struct mp_profile {
    const char *name;        /* "hf" */
    const char *description; /* "transformers 5.17 on PyTorch 2.11, CUDA 13.0, cuDNN 9.19" */
    const char *torch, *transformers, *cuda, *cudnn; /* versions as text */
    int torch_version;                               /* 211 */
    /* "loop": a script of one's own, transformers' Trainer, or memplan-validate, which has no torch */
    bool trainer, validate;
};

/**
 * A shipped name, or the path of a file. Lives in the arena; NULL with *err: INPUT with all problems,
 * NOMEM.
 */
const struct mp_profile *mp_profile_read(struct mp_arena *arena, const char *name_or_path,
                                         struct memplan_error *err);

#endif
