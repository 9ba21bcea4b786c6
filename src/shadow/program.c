/* SPDX-License-Identifier: MIT */
/* The recorded program: its memory, and names of categories. */
#include "shadow/program.h"

#include "shadow/record.h"

const char *mp_category_text(enum mp_category category)
{
    static const char *const texts[] = {
#define X(name, text) text,
        MP_CATEGORY_MAP(X)
#undef X
    };
    return texts[category];
}

void mp_program_init(struct mp_program *program) { *program = (struct mp_program){0}; }

void mp_program_release(struct mp_program *program)
{
    free(program->events);
    free(program->phases);
    mp_program_release_ops(program);
    *program = (struct mp_program){0};
}
