/* SPDX-License-Identifier: MIT */
/* Names of element types. */
#include "spec/dtype.h"

const char *mp_dtype_name(enum mp_dtype dtype)
{
    static const char *const names[] = {
#define X(name, text, bytes, rank) text,
        MP_DTYPE_MAP(X)
#undef X
    };
    return (size_t)dtype < MP_ARRAY_LEN(names) ? names[dtype] : "?";
}
